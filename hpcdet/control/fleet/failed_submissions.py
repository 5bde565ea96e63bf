"""Submissions without result, and when to ask the user instead of submitting again.

A worker may end before it takes a trial, or die repeatedly before a trial gets any further; a
launch may fail, after which Slurm cancels or holds the task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hpcdet import units
from hpcdet.control.leader.decided_state import Decided
from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.lost_workers import FleetView, TaskPlace
from hpcdet.policy.codes import NODE_REFUSED
from hpcdet.schedulers.common.base import TaskState
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Claim, End, WorkerEnd
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import journal
from hpcdet.store.trials import progress

WORKERS = 5
"""Submissions in a row of which no worker took a trial, until a person is asked."""
LAUNCHES = 3
"""Submissions in a row of which the scheduler could not launch a task, likewise."""

REFUSALS = 2
"""Workers that could take no trial for the policy, or for what their nodes attest, likewise."""

_DEATHS = frozenset({"lost", "node_fail"})
"""Ends of attempts whose worker is gone without a record; preempted ones have a budget of their
own (``retry_rules.BUDGETS``)."""


def why(holder: Holder, seen: FleetView) -> str:
    """Return why submissions must stop until the user resumes the experiment; "" to go on."""
    took = _Took(holder)
    return (
        _refusals(holder)
        or _launches(holder, took)
        or _workers(holder, seen, took)
        or _deaths_in_a_row(holder, seen)
    )


def nodes(decided: Decided) -> set[str]:
    """Return the nodes of recently failed launches, since the user's last ``resume``.

    Of a job on several nodes, any of which may be at fault, those that failed more than once.
    """
    last = max((one["submission"] for one in decided.jobs.unlaunched), default=0)
    since = max(decided.user.resumed_after, last - LAUNCHES)
    recent = [one["nodes"] for one in decided.jobs.unlaunched if one["submission"] > since]
    times = Counter(node for found in recent for node in found)
    alone = {found[0] for found in recent if len(found) == 1}
    return alone | {node for node, count in times.items() if count > 1}


def refused(holder: Holder) -> dict[str, str]:
    """Return the nodes that do not attest what a policy requires, and what each lacks.

    Since the user's last ``resume``, which follows a repair.
    """
    met = [each for one in _met(holder) for each in one.items()]
    return {node: why for node, why in met if _is_of_node(why)}


def _met(holder: Holder) -> list[dict[str, str]]:
    """Return why workers could take no trial under a policy, by their nodes."""
    if holder.hands.resolved.governance is None:
        return []
    found = []
    for worker in holder.paths.workers():
        if worker.submission <= holder.decided.user.resumed_after:
            continue
        holder.stay()
        end = WorkerEnd.read(worker.end)
        if end is not None and end.refused:
            found.append(end.refused)
    return found


def _refusals(holder: Holder) -> str:
    met = _met(holder)
    if len(met) < REFUSALS:
        return ""
    *_, why = met[-1].values()
    if not _is_of_node(why):
        return f"{len(met)} workers in turn could take no trial; the last: {why}"
    return (
        f"{len(met)} workers in turn met nodes that do not attest what the policy requires "
        f"({', '.join(sorted(refused(holder)))}); the last: {why}"
    )


def _is_of_node(why: str) -> bool:
    """True if a refusal is the node's; else the experiment's own files or its site are at fault."""
    return f"{NODE_REFUSED}: " in why


def _launches(holder: Holder, took: _Took) -> str:
    why = {one["submission"]: one["why"] for one in holder.decided.jobs.unlaunched}
    row: list[int] = []
    for number in sorted(holder.paths.submissions(), reverse=True):
        if number <= holder.decided.user.resumed_after or number not in why or number in took:
            break
        row.append(number)
    if len(row) < LAUNCHES:
        return ""
    failed = (one["nodes"] for one in holder.decided.jobs.unlaunched if one["submission"] in row)
    where = sorted({node for nodes in failed for node in nodes})
    on = f" on {', '.join(where)}" if where else ""
    return (
        f"{len(row)} submissions in a row could not be launched{on} ({why[row[0]]}): "
        "ask the cluster's administrators, then resume"
    )


def _workers(holder: Holder, seen: FleetView, took: _Took) -> str:
    count = 0
    for number, places in seen.newest_first:
        if number <= holder.decided.user.resumed_after:
            break
        if all(map(_came_to_nothing, places)):
            if number in took:
                break
            count += 1
        elif number in holder.pace.took:
            break
    if count < WORKERS:
        return ""
    return (
        f"{count} submissions in a row ended before a worker took a trial; "
        "see the workers' logs, repair the cause, then resume"
    )


class _Took:
    """The submissions of which a worker has ever claimed a trial."""

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self._began = {submission for submission, _ in holder.watch.files.newest}
        self._is_read = False

    def __contains__(self, submission: int) -> bool:
        known = self._holder.pace.took
        if submission in self._began and submission not in known and not self._is_read:
            self._is_read = True
            self._read()
        return submission in known

    def _read(self) -> None:
        """Read the claims that are new; there may be many trials."""
        pace = self._holder.pace
        for number in self._holder.decided.trials.plans:
            self._holder.stay()
            for attempt in self._holder.paths.trial(number).attempts():
                key = (number, attempt.number)
                if key not in pace.claims and (claim := Claim.read(attempt.claim)) is not None:
                    pace.claims.add(key)
                    pace.took.add(int(claim.worker.partition("-")[0]))


def _came_to_nothing(place: TaskPlace) -> bool:
    if place.phase != "over" or place.said is TaskState.CANCELED:
        return False
    end = WorkerEnd.read(place.worker.end) if place.worker else None
    return end is None or end.why not in ("idle", "closed", "signal", "bad_node", "resized")


def _deaths_in_a_row(holder: Holder, seen: FleetView) -> str:
    """Return why the deaths of workers are a matter for the user; "" if they are none.

    A task that is requeued counts each time, and an array once, however many of its tasks died:
    the failure of a node or a cluster ends several.
    """
    most, deaths = holder.hands.site.max_restarts_in_place, 0
    for number, places in seen.newest_first:
        if number <= holder.decided.user.resumed_after:
            break
        if any(place.phase != "over" for place in places):
            break
        died = [_deaths(holder, place.worker) for place in places if place.worker]
        if not died or None in died:
            break
        deaths += max(count or 0 for count in died)
    if deaths <= most:
        return ""
    return (
        f"workers died {units.counted(deaths, 'time')} in a row before a trial got any further; "
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
