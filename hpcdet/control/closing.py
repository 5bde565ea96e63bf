"""Ending what lost workers left open, so that others can go on with it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpcdet.control.holder import Holder
from hpcdet.control.watch import Gone
from hpcdet.store import files, progress, trials
from hpcdet.store.layout import AttemptPaths, WorkerPaths
from hpcdet.store.records import Claim, End, Reason, Verdict, WorkerEnd

_WORKER = re.compile(r"(\d+)-(\d+)\.(\d+)")


def close_gone(holder: Holder, gone: list[Gone]) -> None:
    """Close workers that are gone, and the attempts that they left open."""
    open_attempts = list(_open_attempts(holder))
    for one in gone:
        mine = [(a, c) for a, c in open_attempts if c.worker == one.worker.name]
        attempts = [[attempt.trial, attempt.number] for attempt, _ in mine]
        holder.record("lost", worker=one.worker.name, reason=one.reason, attempts=attempts)
        for attempt, claim in mine:
            close_attempt(holder, attempt, claim, one.reason)
        holder.fence()
        end = WorkerEnd("lost", f"term {holder.lease.term}", files.now())
        end.write_once(one.worker.end)
        holder.actions.append(f"worker {one.worker.name} is gone ({one.reason})")
    for attempt, claim in open_attempts:
        key = ("orphan", attempt.trial, attempt.number)
        if _is_orphan(holder, claim) and holder.watch.confirmed(key, by_files=True):
            ids = [[attempt.trial, attempt.number]]
            holder.record("lost", worker=claim.worker, reason="lost", attempts=ids)
            close_attempt(holder, attempt, claim, "lost")


def close_attempt(holder: Holder, attempt: AttemptPaths, claim: Claim, reason: Reason) -> None:
    """Write why an attempt is over: what it said itself, or else what became of its worker."""
    verdict = Verdict.read(attempt.verdict)
    got = progress.of(attempt)
    end = End(
        reason=trials.reason_of(verdict) if verdict else reason,
        progressed=got.progressed,
        first_step=got.first_step,
        error=verdict.error if verdict else "",
        nodes=claim.nodes,
        closed_by=f"term {holder.lease.term}",
        at=files.now(),
    )
    holder.fence()
    if end.write_once(attempt.end):
        holder.actions.append(f"attempt {attempt.trial}.{attempt.number} ended: {end.reason}")


def _open_attempts(holder: Holder) -> Iterator[tuple[AttemptPaths, Claim]]:
    for plan in holder.decided.plans.values():
        if plan.ended:
            continue
        for attempt in reversed(trials.claimed(holder.paths.trial(plan.number))):
            claim = Claim.read(attempt.claim)
            if claim is None or End.read(attempt.end) is not None:
                break
            yield attempt, claim


def _is_orphan(holder: Holder, claim: Claim) -> bool:
    """Whether the worker of an open attempt has said goodbye or was followed by another."""
    match = _WORKER.fullmatch(claim.worker)
    if match is None:
        return False
    submission, index, incarnation = (int(group) for group in match.groups())
    worker = holder.paths.worker(submission, index, incarnation)
    if WorkerEnd.read(worker.end) is not None:
        return True
    return any(_follows(other, worker) for other in holder.paths.workers())


def _follows(other: WorkerPaths, worker: WorkerPaths) -> bool:
    place = (worker.submission, worker.index)
    same = (other.submission, other.index) == place
    return same and other.incarnation > worker.incarnation
