"""The number of workers: as many as there is work for, in jobs as wide as are accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hpcdet import units
from hpcdet.control.fleet import (
    capacity,
    failed_submissions,
    intents,
    resized_workers,
    running_limits,
    spare_jobs,
)
from hpcdet.control.fleet.running_limits import Room
from hpcdet.control.leader import retry_rules
from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.lost_workers import FleetView, TaskPlace
from hpcdet.errors import Unavailable
from hpcdet.jobs.script import lanes, succession
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
        intents.later(holder, error.what)
        holder.unmet = not holder.submits and live < wanted
        return
    _throttle(holder, seen, wanted, room)
    if not holder.submits:
        holder.unmet = live < wanted
        return
    queued = capacity.queued_spares(holder, seen)
    live -= queued
    pending = [
        one
        for one in intents.of_unknown_jobs(holder)
        if not (one.is_spare and spare_jobs.are_chained(holder))
    ]
    if not pending and live >= wanted:
        return
    if holder.hands.clock() < holder.pace.throttled_until or holder.decided.jobs.halted:
        if room is not None and room.tasks <= live < wanted:
            running_limits.tell(holder, wanted - live, room.why)
        return
    if live < wanted and (why := failed_submissions.why(holder, seen)):
        intents.halt(holder, why)
        return
    try:
        for intent in pending:
            live += intents.settle(holder, intent, wanted - live, fresh=False)
        exclude = _excluded(holder) if live < wanted else []
        while live < wanted:
            new = _intend(holder, live, wanted - live, room, exclude, queued)
            if new is None:
                return
            live += intents.settle(holder, new, wanted - live, fresh=True)
    except Unavailable as error:
        intents.later(holder, error.what)
    except _Full as reason:
        running_limits.tell(holder, wanted - live, str(reason))
        intents.later(holder, f"as many jobs run or wait as it may have by {reason}")
    except intents.Later as reason:
        intents.later(holder, str(reason))


def cancel_all(holder: Holder, places: list[TaskPlace]) -> None:
    """Cancel whole jobs, the last first: none is to begin since the one before it has ended.

    Raises:
        Fenced: the term ended meanwhile.
    """
    try:
        for job in dict.fromkeys(place.job for place in reversed(places) if place.job):
            key: tuple[object, ...] = ("cancel", job)
            if key in holder.written:
                continue
            if host := holder.watch.scheduler.elsewhere(job):
                holder.actions.append(f"job {job} can only be canceled on {host}")
            else:
                holder.fence()
                holder.hands.scheduler.cancel(job)
                holder.actions.append(f"cancel job {job}")
            holder.written[key] = True
    except Unavailable as error:
        intents.later(holder, error.what)


def prune(holder: Holder, seen: FleetView) -> None:
    """Cancel the pending tasks of jobs that run other tasks: spares that are no longer needed.

    Raises:
        Fenced: the term ended meanwhile.
    """
    scheduler = holder.hands.scheduler
    running = {place.job for place in seen.live if place.phase == "running"}
    waiting = [p for p in seen.live if p.phase == "pending" and p.job in running and p.job]
    waiting = [place for place in waiting if not holder.watch.scheduler.elsewhere(place.job)]
    try:
        for job in dict.fromkeys(place.job for place in waiting):
            if ("prune", job) in holder.written:
                continue
            holder.fence()
            if isinstance(scheduler, Prunes):
                scheduler.prune(job)
            else:
                for place in waiting:
                    if place.job == job:
                        scheduler.cancel(job, place.index)
            holder.written["prune", job] = True
            holder.actions.append(f"cancel tasks of job {job} that wait")
    except Unavailable as error:
        intents.later(holder, error.what)


class _Full(Exception):
    """The site's limit of running jobs is reached."""


def cancel_surplus(holder: Holder, places: Iterable[TaskPlace], surplus: int) -> None:
    """Cancel single pending tasks that were never claimed, the last ones first.

    Raises:
        Fenced: the term ended meanwhile.
    """
    waiting = [p for p in places if p.phase == "pending" and p.worker is None and p.job]
    names = opening.of(holder.hands.site).names
    try:
        for place in waiting[::-1][:surplus]:
            key = ("cancel", place.job, place.index)
            if place.said is TaskState.PENDING and key not in holder.written:
                holder.fence()
                holder.hands.scheduler.cancel(place.job, place.index)
                holder.written[key] = True
                holder.actions.append(
                    f"cancel task {names.task_id(place.job, place.index)}: not needed any more"
                )
    except Unavailable as error:
        intents.later(holder, error.what)


def _throttle(holder: Holder, seen: FleetView, wanted: int, room: Room | None) -> None:
    """Set how many tasks of each array may run at once, where that has changed.

    Spare tasks must not start without work: only as many run as there is work for.
    """
    if holder.hands.clock() < holder.pace.throttled_until:
        return
    spared = holder.hands.site.capabilities.nobody_submits
    live = Counter(place.submission for place in seen.live if place.job)
    left = max(1, wanted)
    try:
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
    except Unavailable as error:
        intents.later(holder, error.what)


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


def _intend(
    holder: Holder, live: int, missing: int, room: Room | None, exclude: list[str], queued: int
) -> Intent | None:
    """Decide on a new submission, as wide as the scheduler accepts, and as the site allows."""
    limits, able = holder.hands.site.limits, holder.hands.scheduler.capabilities()
    spared = capacity.spares(holder.resolved, holder.hands.site, missing)
    width = min(missing + spared, holder.pace.width, limits.max_array, able.max_array_tasks)
    for most in (limits.max_submit, able.max_submit):
        if most is not None:
            free = most - live - queued
            behind = free > 1 and bool(spared or succession.after_end(holder.hands.site))
            width = min(width, free - behind)  # one is the small job behind the array
    if not able.arrays:
        width = min(width, 1)
    if width < 1:
        raise intents.Later("as many jobs are queued as the site allows")
    at_once = capacity.at_once(holder.resolved, holder.resolved.lanes) or width
    if room is not None:
        at_once = min(at_once, room.tasks - live)
        if at_once < 1:
            raise _Full(room.why)
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
