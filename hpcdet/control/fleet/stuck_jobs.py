"""Pending jobs: the scheduler's reasons, and the jobs that will never start by themselves.

A task whose launch failed is over, or the scheduler holds it: then it is canceled. Another one is
submitted without its node. A job that can never start as it is gets canceled, and its user is told
the repair. A job that its owner holds is left alone, and all other reasons pass.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from hpcdet.control.fleet import intents
from hpcdet.control.leader.decided_parts import ALL
from hpcdet.control.leader.decided_state import Decided
from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.lost_workers import FleetView
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.base import Prunes, Remembers, Scheduler, Task, TaskState, WaitKind
from hpcdet.site import Site
from hpcdet.store.decisions import lease
from hpcdet.store.fs import files

REASONS = 8
"""So many different reasons for waiting are told at most."""
_CANCELED = "canceled before their worker came up"


def tell(holder: Holder, seen: FleetView) -> None:
    """Report with the next beats why tasks wait, the most frequent reason first."""
    jobs = {place.job for place in seen.live if place.phase == "pending"}
    now, most_s = files.now(), holder.hands.site.limits.waits_warn_s
    counts: Counter[tuple[str, WaitKind]] = Counter()
    for row in (row for row in holder.watch.scheduler.waiting() if row.job in jobs):
        reason: tuple[str, WaitKind] = (row.reason.partition(",")[0], row.wait.kind)
        if row.wait.kind == "held" and not holder.decided.user.held and holder.pace.kept:
            reason = (holder.pace.kept.get(row.job, reason[0]), "limit")
        counts[reason] += row.count
    since = _since(holder) if counts else {}
    holder.lease.waits = [
        {
            "reason": reason,
            "kind": kind,
            "tasks": tasks,
            "since": (begun := since.get(reason, now)),
            "long": kind == "outage" and _seconds(begun, now) > most_s,
        }
        for (reason, kind), tasks in counts.most_common(REASONS)
    ]


def note_unlaunched(holder: Holder, seen: FleetView) -> None:
    """Record the failed launches of tasks that may not be requeued.

    The scheduler has canceled them: they were given nodes, and their script never ran. A script
    that its user cancels, before or after its worker starts, ends by a signal.
    """
    for place in seen.places:
        if place.phase != "over" or place.submission <= holder.decided.user.resumed_after:
            continue
        if not {ALL, place.index}.isdisjoint(holder.decided.jobs.cancels.get(place.job, ())):
            continue
        row = holder.watch.scheduler.row(place.job, place.index)
        if row is None or row.state is not TaskState.CANCELED or not row.nodes or row.exit_code:
            continue
        if place.worker is None or place.worker.incarnation < row.restarts:
            _unlaunched(holder, row, place.submission, row.nodes, _CANCELED)


def mend(holder: Holder, seen: FleetView) -> None:
    """Cancel pending jobs that will not start by themselves.

    Raises:
        Fenced: the term ended meanwhile.
    """
    stuck = holder.watch.stuck()
    numbers = {place.job: place.submission for place in seen.live} if stuck else {}
    with intents.patience(holder):
        for row in stuck:
            key = ("stuck", row.job, row.index, row.restarts)
            held = row.job not in numbers or _is_held(holder.decided, row.job)
            if held or intents.lately(holder, *key):
                continue
            if row.wait.kind == "launch":
                _launch_failed(holder, row, numbers[row.job])
            elif not holder.decided.jobs.halted:
                holder.fence()
                _cancel(holder.hands.scheduler, row)
                why = f"job {row.job} cannot start ({row.reason}): {row.wait.repair}"
                intents.halt(holder, why, row.wait.change)
            intents.note(holder, *key)


def _launch_failed(holder: Holder, row: Task, submission: int) -> None:
    scheduler = holder.hands.scheduler
    nodes: tuple[str, ...] = ()
    if row.restarts and isinstance(scheduler, Remembers):
        nodes = scheduler.launched_on(row.job, row.index)
    _unlaunched(holder, row, submission, nodes, row.reason)
    holder.fence()
    _cancel(holder.hands.scheduler, row)
    on = f" on {', '.join(nodes)}" if nodes else ""
    holder.actions.append(f"cancel {_name(holder.hands.site, row)}: {row.reason}{on}")


def _unlaunched(
    holder: Holder, row: Task, submission: int, nodes: tuple[str, ...], why: str
) -> None:
    run = [row.job, row.index, row.restarts]
    key = ("unlaunched", *run)  # of a wide array there are more than ``decided`` remembers
    if key not in holder.written and all(
        run != one["run"] for one in holder.decided.jobs.unlaunched
    ):
        holder.record("unlaunched", run=run, submission=submission, nodes=list(nodes), why=why)
    holder.written[key] = True


def _cancel(scheduler: Scheduler, row: Task) -> None:
    """Cancel a row's tasks: a single one, or those of an array that were never started."""
    if row.index >= 0:
        scheduler.cancel(row.job, row.index)
    elif isinstance(scheduler, Prunes):
        scheduler.prune(row.job)
    else:
        scheduler.cancel(row.job)


def _name(site: Site, row: Task) -> str:
    names = opening.of(site).names
    return f"job {row.job}" if row.index < 0 else f"task {names.task_id(row.job, row.index)}"


def _is_held(decided: Decided, job: str) -> bool:
    """True if the user has held the job; some schedulers show an administrator's hold as such."""
    return decided.user.held or decided.jobs.holds.get(job, False)


def _since(holder: Holder) -> dict[str, str]:
    """Return when this holder or the one before it first saw each reason."""
    known = list(holder.lease.waits)
    if not known and (before := lease.before(holder.paths, holder.lease.term)) is not None:
        known = before.reasons()
    return {one["reason"]: one["since"] for one in known}


def _seconds(since: str, until: str) -> float:
    begun, ended = (datetime.fromisoformat(text) for text in (since, until))
    return (ended - begun).total_seconds()
