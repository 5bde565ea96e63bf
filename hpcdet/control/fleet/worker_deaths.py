"""Workers that die, and those sent in their place that die as well: when to ask a person."""

from __future__ import annotations

from collections.abc import Iterator

from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.lost_workers import FleetView, TaskPlace
from hpcdet.store.folder.layout import AttemptPaths, WorkerPaths
from hpcdet.store.folder.records import End, WorkerEnd
from hpcdet.store.fs import journal
from hpcdet.store.trials import progress

_DEATHS = frozenset({"lost", "node_fail"})
"""Ends of attempts whose worker is gone without a word; preempted ones have a patience of their
own (``ends.BUDGETS``)."""


def why(holder: Holder, seen: FleetView) -> str:
    """Why nothing more shall be submitted until somebody has looked; "" to go on.

    A task that comes back in place counts each time, and an array once, however many of its tasks
    died: a node or a cluster takes several with it.
    """
    by_submission: dict[int, list[TaskPlace]] = {}
    for place in seen.places:
        by_submission.setdefault(place.submission, []).append(place)
    most, deaths = holder.hands.site.max_restarts_in_place, 0
    for number in sorted(by_submission, reverse=True):
        if number <= holder.decided.resumed_after:
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
    """How often in a row the task of this worker got nowhere, if it died without a word at last.

    None: it did not die, or an attempt of its had ended in another way or got further.
    """
    end = WorkerEnd.read(newest.end)
    if end is None or end.why != "lost":
        return None
    ends = [End.read(attempt.end) for attempt in _attempts(holder, newest)]
    if any(one is not None and one.reason not in _DEATHS for one in ends):
        return None
    count = 0
    for incarnation in range(newest.incarnation, -1, -1):
        holder.stay()
        worker = holder.paths.worker(newest.submission, newest.index, incarnation)
        if any(progress.of(attempt).progressed for attempt in _attempts(holder, worker)):
            break
        count += 1
    return count or None


def _attempts(holder: Holder, worker: WorkerPaths) -> Iterator[AttemptPaths]:
    """The attempts that a worker ran, by its own notes."""
    for line in journal.Reader(worker.journal).read("claimed"):
        yield holder.paths.trial(int(line["trial"])).attempt(int(line["attempt"]))
