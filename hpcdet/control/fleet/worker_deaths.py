"""Workers that die repeatedly without progress, and when to ask the user."""

from __future__ import annotations

from collections.abc import Iterator

from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.lost_workers import FleetView, TaskPlace
from hpcdet.store.folder.layout import AttemptPaths, ExperimentPaths
from hpcdet.store.folder.records import End, WorkerEnd
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import journal
from hpcdet.store.trials import progress

_DEATHS = frozenset({"lost", "node_fail"})
"""Ends of attempts whose worker is gone without a record; preempted ones have a budget of their
own (``retry_rules.BUDGETS``)."""


def why(holder: Holder, seen: FleetView) -> str:
    """Return why submissions must stop until the user resumes the experiment; "" to go on.

    A task that is requeued counts each time, and an array once, however many of its tasks died:
    the failure of a node or a cluster ends several.
    """
    by_submission: dict[int, list[TaskPlace]] = {}
    for place in seen.places:
        by_submission.setdefault(place.submission, []).append(place)
    most, deaths = holder.hands.site.max_restarts_in_place, 0
    for number in sorted(by_submission, reverse=True):
        if number <= holder.decided.user.resumed_after:
            break
        places = by_submission[number]
        if any(place.phase != "over" for place in places):
            break
        died = [_deaths(holder, place.worker) for place in places if place.worker]
        if not died or None in died:
            break
        deaths += max(count or 0 for count in died)
    if deaths <= most:
        return ""
    return (
        f"workers died {deaths} times in a row before a trial got any further; "
        "see the workers' logs, repair the cause, then resume"
    )


def _deaths(holder: Holder, newest: WorkerPaths) -> int | None:
    """Return how often in a row this worker's task died without progress.

    None: the worker did not die, or one of its attempts ended in another way, or made progress.
    """
    end = WorkerEnd.read(newest.end)
    if end is None or end.why != "lost":
        return None
    ends = [End.read(attempt.end) for attempt in _attempts(holder.paths, newest)]
    if any(one is not None and one.reason not in _DEATHS for one in ends):
        return None
    count = 0
    for incarnation in range(newest.incarnation, -1, -1):
        holder.stay()
        worker = holder.paths.worker(newest.submission, newest.index, incarnation)
        if any(progress.of(attempt).progressed for attempt in _attempts(holder.paths, worker)):
            break
        count += 1
    return count or None


def _attempts(paths: ExperimentPaths, worker: WorkerPaths) -> Iterator[AttemptPaths]:
    """Yield the attempts that a worker ran, from the worker's own journal."""
    for line in journal.Reader(worker.journal).read("claimed"):
        yield paths.trial(int(line["trial"])).attempt(int(line["attempt"]))
