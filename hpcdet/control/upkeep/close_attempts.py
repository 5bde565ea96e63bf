"""The closing of attempts that lost workers left open, so that others can go on."""

from __future__ import annotations

import functools
import re

from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.lost_workers import Gone, Watch
from hpcdet.control.leader.trial_cache import OpenAttempts
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Claim, End, Reason, Verdict, WorkerEnd
from hpcdet.store.fs import files
from hpcdet.store.trials import progress, standing

_WORKER = re.compile(r"(\d+)-(\d+)\.(\d+)")


def close_gone(holder: Holder, open_attempts: OpenAttempts, gone: list[Gone]) -> None:
    """Close lost workers and the attempts that they left open."""
    for one in gone:
        mine = [(a, c) for a, c in open_attempts if c.worker == one.worker.name]
        mine = [(a, c) for a, c in mine if _is_open(holder, a)]
        if not mine and WorkerEnd.read(one.worker.end) is not None:
            continue  # it has left since it was looked at
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
        if (
            _is_orphan(holder.watch, holder.paths, claim)
            and _is_open(holder, attempt)
            and holder.watch.confirmed(key, by_files=True)
        ):
            ids = [[attempt.trial, attempt.number]]
            holder.record("lost", worker=claim.worker, reason="lost", attempts=ids)
            close_attempt(holder, attempt, claim, "lost")


def close_attempt(holder: Holder, attempt: AttemptPaths, claim: Claim, reason: Reason) -> None:
    """Write the end of an attempt: its verdict's reason, or else ``reason``."""
    verdict = Verdict.read(attempt.verdict)
    got = progress.of(attempt)
    end = End(
        reason=standing.reason_of(verdict) if verdict else reason,
        progressed=got.progressed,
        first_step=got.first_step,
        error=verdict.error if verdict else "",
        nodes=claim.nodes,
        closed_by=f"term {holder.lease.term}",
        at=files.now(),
    )
    holder.fence()
    holder.sight.forget(attempt.trial)
    if end.write_once(attempt.end):
        holder.actions.append(f"attempt {attempt.trial}.{attempt.number} ended: {end.reason}")


def busy(open_attempts: OpenAttempts) -> frozenset[str]:
    """Return the names of the workers that have an open attempt."""
    return frozenset(claim.worker for _, claim in open_attempts)


def find_open(holder: Holder) -> OpenAttempts:
    """Return the attempts that were claimed and have not ended, by trial."""
    return holder.sight.open(holder.decided.trials.open, holder.stay)


def _is_open(holder: Holder, attempt: AttemptPaths) -> bool:
    """True if an attempt that seems open is: the nudge that tells of its end may be lost."""
    if End.read(attempt.end) is None:
        return True
    holder.sight.forget(attempt.trial)
    return False


def _is_orphan(watch: Watch, paths: ExperimentPaths, claim: Claim) -> bool:
    """True if the worker of an open attempt has ended or was followed by another."""
    place = _place(claim.worker)
    if place is None:
        return False
    submission, index, incarnation = place
    newest = watch.files.newest.get((submission, index))
    if newest is not None and newest.incarnation != incarnation:
        return newest.incarnation > incarnation
    return watch.files.has_left(newest or paths.worker(*place))


@functools.lru_cache(maxsize=4096)
def _place(worker: str) -> tuple[int, int, int] | None:
    match = _WORKER.fullmatch(worker)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None
