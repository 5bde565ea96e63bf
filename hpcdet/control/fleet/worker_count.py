"""The number of workers: as many as there is work for, in jobs as wide as are accepted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from hpcdet import units
from hpcdet.control.fleet import (
    capacity,
    failed_submissions,
    intents,
    resized_workers,
    running_limits,
    sentinel_jobs,
    spare_jobs,
)
from hpcdet.control.fleet.running_limits import Room
from hpcdet.control.leader import retry_rules
from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.lost_workers import FleetView, TaskPlace
from hpcdet.errors import Unavailable
from hpcdet.jobs.script import lanes
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.base import (
    Prunes,
    TaskState,
)
from hpcdet.store.folder.records import End, Intent, WorkerClaim, WorkerEnd


def provide(holder: Holder, seen: FleetView, wanted: int) -> None:
    """Submit the workers that are missing and cancel surplus pending ones.

    Back-pressure of the scheduler is not an error: less is submitted, later. Where jobs cannot
    submit and no daemon may run, spare tasks wait in each array.

    Raises:
        Fenced: the term ended meanwhile.
    """
    live = len(seen.live)
    if live > wanted and not holder.hands.site.capabilities.nobody_submits:
        # a task that is over by one answer is not counted on: the one sent in its place would go
        sure = [place for place in seen.live if place.said is None or not place.said.final]
        cancel_surplus(holder, sure, max(0, len(sure) - wanted))
    try:
        room = running_limits.room(holder, seen, wanted)
    except Unavailable as error:
        # what there is goes on as it was allowed to
        running_limits.tell(holder, max(0, wanted - live), f"{error.where}: {error.what}")
        intents.later(holder, error.what, "worker")
        holder.unmet = not holder.submits and live < wanted
        return
    _throttle(holder, seen, wanted, room)
    if holder.submits:
        _submit(holder, seen, wanted, room)
    else:
        holder.unmet = live < wanted


def _submit(holder: Holder, seen: FleetView, wanted: int, room: Room | None) -> None:
    """Submit the workers that are missing, as far as they are taken.

    A place in the queue is first for what belongs behind the workers that live. A new holder
    completes chains of single jobs later: it may have to find a worker of theirs first.
    """
    queued = capacity.queued_spares(holder, seen)
    live, chained = len(seen.live) - queued, spare_jobs.are_chained(holder)
    pending = [one for one in intents.of_unknown_jobs(holder) if not (one.is_spare and chained)]
    if not pending and live >= wanted:
        return
    if "worker" in holder.pace.full_until or not chained:
        spare_jobs.chain(holder, seen)
        sentinel_jobs.post(holder, seen)
    if intents.rests(holder, "worker") or holder.decided.jobs.halted:
        if room is not None and room.tasks <= live < wanted:
            running_limits.tell(holder, wanted - live, room.why)
        return
    if live < wanted and (why := failed_submissions.why(holder, seen)):
        intents.halt(holder, why)
        return
    with intents.patience(holder, "worker"):
        for intent in pending:
            live += intents.settle(holder, intent, wanted - live, fresh=False)
        exclude = _excluded(holder) if live < wanted else []
        while live < wanted:
            free = _free(holder, seen, live + queued)
            new = _intend(holder, live, wanted - live, room, exclude, free)
            if new is None:
                return
            live += intents.settle(holder, new, wanted - live, fresh=True)


def cancel_all(holder: Holder, places: list[TaskPlace]) -> None:
    """Cancel whole jobs, the last first: none is to begin since the one before it has ended.

    Raises:
        Fenced: the term ended meanwhile.
    """
    with intents.patience(holder):
        for job in dict.fromkeys(place.job for place in reversed(places) if place.job):
            if host := holder.watch.scheduler.elsewhere(job):
                if ("elsewhere", job) not in holder.written:
                    holder.actions.append(f"job {job} can only be canceled on {host}")
                    holder.written["elsewhere", job] = True
            elif intents.cancel(holder, job):
                holder.actions.append(f"cancel job {job}")


def prune(holder: Holder, seen: FleetView) -> None:
    """Cancel the pending tasks of jobs that run other tasks: spares that are no longer needed.

    Raises:
        Fenced: the term ended meanwhile.
    """
    scheduler = holder.hands.scheduler
    running = {place.job for place in seen.live if place.phase == "running"}
    waiting = [p for p in seen.live if p.phase == "pending" and p.job in running and p.job]
    waiting = [place for place in waiting if not holder.watch.scheduler.elsewhere(place.job)]
    with intents.patience(holder):
        for job in dict.fromkeys(place.job for place in waiting):
            if intents.lately(holder, "prune", job):
                continue
            if isinstance(scheduler, Prunes):
                holder.fence()
                scheduler.prune(job)
            else:
                for place in waiting:
                    if place.job == job:
                        intents.cancel(holder, job, place.index)
            intents.note(holder, "prune", job)
            holder.actions.append(f"cancel tasks of job {job} that wait")


def cancel_surplus(holder: Holder, places: Iterable[TaskPlace], surplus: int) -> None:
    """Cancel single pending tasks that were never claimed, the last ones first.

    Raises:
        Fenced: the term ended meanwhile.
    """
    waiting = [p for p in places if p.phase == "pending" and p.worker is None and p.job]
    names = opening.of(holder.hands.site).names
    with intents.patience(holder):
        for place in waiting[::-1][:surplus]:
            if place.said is TaskState.PENDING and intents.cancel(holder, place.job, place.index):
                holder.actions.append(
                    f"cancel task {names.task_id(place.job, place.index)}: not needed any more"
                )


def _throttle(holder: Holder, seen: FleetView, wanted: int, room: Room | None) -> None:
    """Set how many tasks of each array may run at once, where that has changed.

    Spare tasks must not start without work: only as many run as there is work for.
    """
    if intents.rests(holder):
        return
    spared = holder.hands.site.capabilities.nobody_submits
    live = Counter(place.submission for place in seen.live if place.job)
    left = max(1, wanted)
    with intents.patience(holder):
        for place, number in enumerate(live, 1):
            intent, submitted = holder.watch.files.submission(number)
            if intent is None or submitted is None or not submitted.job:
                continue
            if holder.watch.scheduler.elsewhere(submitted.job):
                continue
            side_by_side = lanes.of_intent(holder.hands.resolved, intent)
            most = capacity.at_once(holder.resolved, side_by_side)
            share = min(intent.tasks, most or intent.tasks)
            if spared:
                mine = left if place == len(live) else min(left, live[number])
                share = max(1, min(share, mine))
                left = max(0, left - share)
            if room is not None and submitted.job in room.of_jobs:
                # no throttle stands for none at all: a job of which nothing runs is held then
                share = max(1, min(share, room.of_jobs[submitted.job]))
            _throttle_job(holder, intent, submitted.job, share)


def _throttle_job(holder: Holder, intent: Intent, job: str, running: int) -> None:
    """Throttle a job once per change; a new holder repeats it, as the former one may have died."""
    said = holder.decided.jobs.throttles.get(job, intent.throttle)
    key = ("throttle", job)
    if said == running and (job not in holder.decided.jobs.throttles or holder.written.get(key)):
        return
    if said != running:
        holder.record("throttle", job=job, running=running)
    holder.fence()
    holder.hands.scheduler.throttle(job, running)
    holder.written[key] = True
    holder.actions.append(f"job {job}: at most {units.counted(running, 'task')} at once")


def _free(holder: Holder, seen: FleetView, live: int) -> float:
    """Return how many places of the queue are left for workers, by the limits that are known.

    A single one goes to a worker, as without one there is nothing to watch.
    """
    limits = holder.hands.site.limits.max_submit, holder.hands.scheduler.capabilities().max_submit
    known = [most for most in limits if most is not None]
    if not known:
        return math.inf
    return max(min(known) - live - sentinel_jobs.places(holder, seen), 0 if live else 1)


def _intend(
    holder: Holder, live: int, missing: int, room: Room | None, exclude: list[str], free: float
) -> Intent | None:
    """Decide on a new submission, as wide as the scheduler accepts, and as the site allows."""
    limits, able = holder.hands.site.limits, holder.hands.scheduler.capabilities()
    spared = capacity.spares(holder.resolved, holder.hands.site, missing)
    taken = min(holder.pace.width, holder.pace.widest, able.max_array_tasks if able.arrays else 1)
    width = int(min(missing + spared, taken, limits.max_array, free))
    if width < 1:
        raise intents.Full("as many jobs are queued as the site allows")
    at_once = capacity.at_once(holder.resolved, holder.resolved.lanes) or width
    if room is not None:
        at_once = min(at_once, room.tasks - live)
        if at_once < 1:
            running_limits.tell(holder, missing, room.why)
            raise intents.Full(f"as many jobs run or wait as it may have by {room.why}")
    workers = min(missing, width)
    left = resized_workers.unfollowed(holder)
    return intents.of_workers(
        holder,
        width,
        min(workers, at_once),
        exclude=exclude,
        spares=width - workers,
        # each of several that take their places is behind some of them, the last behind the rest
        behind=[*(left if workers == missing else left[:workers]), *(room.behind if room else ())],
    )


def _excluded(holder: Holder) -> list[str]:
    """Return the nodes to avoid: the user's, those of repeated failed launches, reported bad ones.

    Of trials that have ended only the last ones are read: nodes do not stay bad for ever.
    """
    found: list[End] = []
    decided = holder.decided
    for number in sorted(decided.trials.open.union(decided.trials.recent)):
        holder.stay()
        found += [end for _, end in holder.sight.trial(number).files.ended]
    bad = retry_rules.black_holes(sorted(found, key=lambda end: end.at))
    for worker in holder.paths.workers():
        holder.stay()
        end, claim = WorkerEnd.read(worker.end), WorkerClaim.read(worker.claim)
        if end is not None and end.why == "bad_node" and not end.refused and claim is not None:
            bad.update(claim.nodes)
    bad.update(failed_submissions.nodes(decided), failed_submissions.refused(holder))
    return sorted(bad.union(holder.resolved.resources.exclude_nodes))
