"""Submissions without result, and when to ask the user instead of submitting again.

A worker may end before it takes a trial; a launch may fail, after which Slurm cancels or holds
the task; a job may ask for what it can never get.
"""

from __future__ import annotations

from collections import Counter

from hpcdet.control.fleet import worker_deaths
from hpcdet.control.leader.decided_state import Decided
from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.lost_workers import FleetView, TaskPlace
from hpcdet.schedulers.common.base import TaskState
from hpcdet.store.folder.records import Claim, WorkerEnd

WORKERS = 5
"""Submissions in a row of which no worker took a trial, until a person is asked."""
LAUNCHES = 3
"""Submissions in a row of which the scheduler could not launch a task, likewise."""


def why(holder: Holder, seen: FleetView) -> str:
    """Return why submissions must stop until the user resumes the experiment; "" to go on."""
    return _launches(holder) or _workers(holder, seen) or worker_deaths.why(holder, seen)


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


def _launches(holder: Holder) -> str:
    why = {one["submission"]: one["why"] for one in holder.decided.jobs.unlaunched}
    row: list[int] = []
    for number in sorted(holder.paths.submissions(), reverse=True):
        if (
            number <= holder.decided.user.resumed_after
            or number not in why
            or _took(holder, number)
        ):
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


def _workers(holder: Holder, seen: FleetView) -> str:
    by_submission: dict[int, list[TaskPlace]] = {}
    for place in seen.places:
        by_submission.setdefault(place.submission, []).append(place)
    count = 0
    for number in sorted(by_submission, reverse=True):
        if number <= holder.decided.user.resumed_after:
            break
        if all(_came_to_nothing(place) for place in by_submission[number]):
            if _took(holder, number):
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


def _took(holder: Holder, submission: int) -> bool:
    """True if a worker of a submission has ever claimed a trial."""
    if submission not in holder.pace.took:
        for number in holder.decided.trials.plans:
            holder.stay()
            holder.pace.took |= {
                int(claim.worker.partition("-")[0])
                for attempt in holder.paths.trial(number).attempts()
                if (claim := Claim.read(attempt.claim)) is not None
            }
    return submission in holder.pace.took


def _came_to_nothing(place: TaskPlace) -> bool:
    if place.phase != "over" or place.said is TaskState.CANCELED:
        return False
    end = WorkerEnd.read(place.worker.end) if place.worker else None
    return end is None or end.why not in ("idle", "closed", "signal", "bad_node")
