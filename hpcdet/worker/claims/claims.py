"""Claims by exclusive creation: a worker's place, an attempt of a trial."""

from __future__ import annotations

import functools
import itertools
import math
import os
import socket
from collections.abc import Callable, Iterator

from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.store.cost.spending import Spending, epoch
from hpcdet.store.decisions import wakeup
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Claim, End, Reason, Verdict, WorkerClaim, WorkerEnd
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import beat_age, files, packed
from hpcdet.store.trials import progress
from hpcdet.store.trials.standing import Standing, TrialFiles, claimed, reason_of
from hpcdet.worker.claims.claimable import Outlook
from hpcdet.worker.turns.storage_retry import insist


def take_place(
    paths: ExperimentPaths,
    submission: int,
    index: int,
    allocation: Allocation,
    left_s: Callable[[], float] = lambda: 0.0,
) -> WorkerPaths | None:
    """Claim the place of worker ``N-I.R``; None if it is taken, as when a script is run twice.

    Where nobody says how often the task was started, it is the first place that is free: later
    than those of all former starts that came so far, and never that of one that is counted.

    Args:
        left_s: seconds left to retry while the storage is unavailable.

    Raises:
        OSError: the storage is unavailable.
    """
    restarts = itertools.count() if not allocation.counted else [allocation.restart]
    for restart in restarts:
        worker = paths.worker(submission, index, restart)
        claim = WorkerClaim(
            job=allocation.job,
            host=socket.gethostname(),
            pid=os.getpid(),
            nodes=list(allocation.nodes),
            restart=restart,
            end_at=f"{allocation.end_at:.0f}" if allocation.end_at is not None else "",
            at=files.now(),
            counted=allocation.counted,
        )
        # read, not believed: one that failed may have made it, and an archive may have an older one
        if insist(functools.partial(_holds, worker, claim), left_s) == claim:
            return worker
    return None


def _holds(worker: WorkerPaths, claim: WorkerClaim) -> WorkerClaim | None:
    claim.write_once(worker.claim)
    return WorkerClaim.read(worker.claim)


def close_predecessors(paths: ExperimentPaths, worker: WorkerPaths) -> list[AttemptPaths]:
    """Close what earlier incarnations of this task left open: they have ended, as this one runs."""
    closed = []
    for incarnation in range(worker.incarnation):
        past = paths.worker(worker.submission, worker.index, incarnation)
        if not packed.exists(past.claim) or packed.exists(past.end):
            continue
        for attempt in attempts_of(paths, past):
            if End.read(attempt.end) is None:
                close_lost(attempt, worker.name)
                wakeup.tell(paths, attempt.trial, "attempt")
                closed.append(attempt)
        WorkerEnd("lost", closed_by=worker.name, at=files.now()).write_once(past.end)
    return closed


def close_lost(attempt: AttemptPaths, closed_by: str) -> bool:
    """Close an attempt whose worker is gone, with its verdict's reason or else as lost."""
    verdict = Verdict.read(attempt.verdict)
    claim = Claim.read(attempt.claim)
    reason: Reason = reason_of(verdict) if verdict else "lost"
    got = progress.of(attempt)
    return End(
        reason=reason,
        progressed=got.progressed,
        first_step=got.first_step,
        error=verdict.error if verdict else "",
        nodes=claim.nodes if claim else [],
        closed_by=closed_by,
        at=files.now(),
    ).write_once(attempt.end)


def attempts_of(paths: ExperimentPaths, worker: WorkerPaths) -> Iterator[AttemptPaths]:
    """Yield the attempts that a worker claimed."""
    for trial in paths.trials():
        for attempt in claimed(trial):
            claim = Claim.read(attempt.claim)
            if claim is not None and claim.worker == worker.name:
                yield attempt


def may_take(worker: WorkerPaths, stands: Standing) -> bool:
    """True if a trial may be claimed now, and by a worker of this submission."""
    return stands.state == "runnable" and stands.since <= worker.submission


def is_silent(paths: ExperimentPaths, longer_s: float) -> bool:
    """True if a worker with an open attempt has written no beat for more than ``longer_s``."""
    for worker in paths.workers():
        if packed.exists(worker.end):
            continue
        old = (beat_age.age_s(worker.beat) or 0.0) > longer_s
        if old and any(not packed.exists(one.end) for one in attempts_of(paths, worker)):
            return True
    return False


def next_attempt(
    paths: ExperimentPaths,
    worker: WorkerPaths,
    allocation: Allocation,
    spending: Spending | None = None,
    fits: Callable[[TrialFiles], bool] = lambda _: True,
    outlook: Outlook | None = None,
    heard: Callable[[], str] = lambda: "",
) -> AttemptPaths | None:
    """Claim an attempt of the lowest trial that may run; None if there is none now.

    Args:
        spending: keeps the claim within the experiment's limits; None: there are none.
        fits: whether a trial gets anywhere in what is left of the allocation; asked of the same
            reading of its files by which it may be claimed.
        outlook: what is known from former calls.
        heard: says something once there is no time for this any more.

    Raises:
        OSError: the storage is unavailable; the next call releases a claim made nevertheless.
    """
    outlook = outlook or Outlook(paths)
    outlook.begin()
    for trial in paths.trials():
        if heard():
            return None
        found = outlook.trial(trial.number)
        # a control is there before the record: what hides it may hide claims, too
        if not may_take(worker, found.standing) or found.control is None or not fits(found):
            continue
        attempt = trial.attempt(found.standing.next_attempt)
        at = files.now()
        reserved = spending.admit(allocation.end_at, epoch(at)) if spending else math.inf
        if reserved is None:
            return None
        claim = Claim(
            worker=worker.name,
            host=socket.gethostname(),
            job=allocation.job,
            nodes=list(allocation.nodes),
            at=at,
            reserved_slot_s=None if math.isinf(reserved) else reserved,
        )
        try:
            # read again: an older claim that an archive has may come into sight late
            made = claim.write_once(attempt.claim) and Claim.read(attempt.claim) == claim
            kept = made and (spending is None or spending.keep(attempt, claim))
        except OSError:
            outlook.perhaps(attempt, claim)
            raise
        if made:
            wakeup.tell(paths, trial.number, "attempt")
            return attempt if kept else None
    return None
