"""Limits (``max_running``) on jobs that run at once: of a user, in a partition, of a project.

What of them an experiment may use follows from the scheduler's queue and from what the user's other
experiments want (``running_shares``). Arrays are throttled, no other jobs are submitted than may
run, and those that are there already are held.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdet.control.fleet import running_shares
from hpcdet.control.fleet.running_shares import Bound, RunningShare
from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.lost_workers import FleetView
from hpcdet.errors import Unavailable
from hpcdet.jobs.checks import queue_limits
from hpcdet.schedulers import opening
from hpcdet.schedulers.calls.polling import cache_folder
from hpcdet.schedulers.common.base import CountsInPartitions, CountsJobs, Occupancy
from hpcdet.site.models import Site
from hpcdet.store.folder.records import Submitted
from hpcdet.store.fs import files


@dataclass(frozen=True)
class Room:
    """The tasks that may run.

    Attributes:
        tasks: of this experiment.
        of_jobs: of each of its jobs that live.
        why: the limit, for people.
        behind: jobs of others that have to end before any of them begins.
    """

    tasks: int
    of_jobs: Mapping[str, int]
    why: str
    behind: Sequence[str] = ()


def room(holder: Holder, seen: FleetView, wanted: int) -> Room | None:
    """Return how many tasks may run of those that are wanted; None: the site sets no limit.

    Jobs that may not begin, and experiments that may, are noted in ``holder.pace``.

    Raises:
        Unavailable: other experiments cannot be agreed with.
    """
    site, why = holder.hands.site, words(holder)
    if not why:
        if any(part.max_running is not None for part in site.partitions.values()):
            _give_back(holder)  # it may have been moved here from a partition with a limit
        return None
    live = [place for place in seen.live if place.job]
    running = Counter(place.job for place in live if place.phase == "running")
    # a spare job takes the place of the one that it waits for
    spare = {s.job for i, s in holder.watch.files.submissions() if i.is_spare}
    waiting = Counter(place.job for place in live if place.phase == "pending")
    waiting = Counter({job: waiting[job] for job in sorted(waiting, key=spare.__contains__)})
    partition = queue_limits.partition_limit(holder.resolved, site)
    most = partition[1] if partition else wanted  # the rest of a wider limit is for others
    bounds, queue, project = _bounds(holder, partition)
    there = {*queue.running, *queue.waiting} if queue is not None else set()
    submitted = {one.job for _, one in holder.watch.files.submissions() if one.job}
    held = [job for job in waiting if holder.decided.jobs.holds.get(job)]
    mine = RunningShare(
        root=str(holder.paths.root),
        project=project,
        partition=partition[0] if partition else "",
        wants=running.total() if holder.decided.jobs.halted else min(wanted, most),
        jobs=sorted({*running, *waiting, *(submitted & there)}),
        held=bool(held) and [*waiting] == held and not (running or holder.decided.user.held),
        seen=time.time(),
    )
    agreed = running_shares.agree(_file(site), mine, bounds, queue, _sentinels(holder))
    tasks, holder.pace.stranded = agreed.may, agreed.stranded
    of_jobs = running_shares.split(tasks, running, waiting)
    kept = [job for job in waiting if not (of_jobs[job] or running[job] or job in spare)]
    holder.pace.kept = dict.fromkeys(kept, why)
    if tasks > len(live):
        holder.pace.full_since = ""
    return Room(tasks, of_jobs, why, agreed.behind)


def _sentinels(holder: Holder) -> list[str]:
    """Return the small jobs of which one turns the crank now: what it submits begins behind it."""
    if holder.kind != "sentinel":
        return []
    paths = holder.paths
    posted = (Submitted.read(paths.sentinel_submitted(n)) for n in paths.submissions())
    return [one.job for one in posted if one is not None and one.job]


def tell(holder: Holder, tasks: int, why: str) -> None:
    """Report with the next beats that tasks, if any, are not submitted for a limit."""
    if not tasks:
        return
    holder.pace.full_since = since = holder.pace.full_since or files.now()
    told = {"reason": why, "kind": "limit", "tasks": tasks, "since": since, "long": False}
    holder.lease.waits = [*holder.lease.waits, told]


def leave(holder: Holder, seen: FleetView) -> None:
    """Give back what this experiment may run, as it wants to run nothing.

    Where that fails the share is free when the experiment is closed, or a day later.
    """
    if words(holder):
        _give_back(holder, {place.job for place in seen.live if place.job})


def _give_back(holder: Holder, ending: Collection[str] = ()) -> None:
    holder.pace.kept, holder.pace.full_since, holder.pace.stranded = {}, "", []
    partition = queue_limits.partition_limit(holder.resolved, holder.hands.site)
    mine = RunningShare(
        root=str(holder.paths.root),
        project=_project(holder),
        partition=partition[0] if partition else "",
        jobs=sorted(ending),
        seen=time.time(),
    )
    try:
        holder.pace.stranded = running_shares.leave(_file(holder.hands.site), mine)
    except Unavailable as error:
        holder.actions.append(f"{error.where}: {error.what}")


def words(holder: Holder) -> str:
    """The limits that are set, for people; "" if there are none."""
    site = holder.hands.site
    bound = queue_limits.partition_limit(holder.resolved, site)
    told = [f"partitions.{bound[0]}.max_running: {bound[1]}"] if bound else []
    told += [
        f"limits.{name}: {most}"
        for name in ("max_running", "max_running_project")
        if (most := getattr(site.limits, name)) is not None
    ]
    return f"{', '.join(told)} of site {site.name}" if told else ""


def _file(site: Site) -> Path:
    return cache_folder() / f"running-{site.name}.json"


def _project(holder: Holder) -> str:
    return opening.account(holder.hands.site, holder.resolved)


def _bounds(
    holder: Holder, partition: tuple[str, int] | None
) -> tuple[list[Bound], Occupancy | None, str]:
    """Return the limits, this user's jobs, and the project; None: the queue cannot be asked."""
    limits, scheduler, project = holder.hands.site.limits, holder.hands.scheduler, _project(holder)
    own: Occupancy | None = None
    all_of: Occupancy | None = None
    if isinstance(scheduler, CountsJobs):
        with contextlib.suppress(Unavailable):
            own = all_of = scheduler.occupancy()
            if project and limits.max_running_project is not None:
                all_of = scheduler.occupancy(project)
    bounds = []
    if partition is not None:
        there: Mapping[str, int] = {}
        if isinstance(scheduler, CountsInPartitions):
            with contextlib.suppress(Unavailable):
                there = scheduler.running_in(partition[0])
        bounds.append(Bound(partition[1], there, partition=partition[0]))
    if limits.max_running is not None:
        bounds.append(Bound(limits.max_running, own.running if own else {}))
    if limits.max_running_project is not None:
        running = all_of.running if all_of else {}
        bounds.append(Bound(limits.max_running_project, running, project))
    return bounds, own, project
