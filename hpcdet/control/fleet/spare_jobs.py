"""Spare jobs in a chain behind each worker, for sites where workers cannot submit others.

Each begins when the one before it has ended, however that was (``afterany``). In arrays, spare
tasks wait behind a throttle instead (``worker_count``).
"""

from __future__ import annotations

from hpcdet.control.fleet import capacity, intents
from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.lost_workers import FleetView
from hpcdet.errors import Unavailable
from hpcdet.store.folder.records import Submitted


def chain(holder: Holder, seen: FleetView) -> None:
    """Submit the spare jobs of workers that have none behind them yet, as far as room is left.

    Raises:
        Fenced: the term ended meanwhile.
    """
    site, able = holder.hands.site, holder.hands.scheduler.capabilities()
    if able.arrays or not (site.capabilities.nobody_submits and holder.submits) or holder.hold:
        return
    waits = holder.hands.clock() < holder.pace.throttled_until
    if holder.decided.jobs.halted or (waits and not holder.pace.full_since):
        return  # a limit of running jobs keeps no spare one from the queue
    live = {place.submission for place in seen.live}
    over = {place.submission for place in seen.places} - live
    last = max((n for n in holder.paths.submissions() if _is_spare(holder, n)), default=0)
    jobs = {i.number: one.job for i, one in holder.watch.files.submissions() if one.job}
    ends = [job for number, job in jobs.items() if number > last and number not in over]
    if not ends:
        return
    spares = capacity.spares(holder.resolved, site, len(ends))
    for most in (site.limits.max_submit, able.max_submit):
        if most is not None:
            spares = min(spares, most - len(jobs.keys() - over) - 1)  # one is the small job
    try:
        for number in range(spares):
            place = number % len(ends)
            job = _submit(holder, ends[place])
            if not job:
                return
            ends[place] = job
    except intents.Later:
        pass  # the queue is full: a shorter chain has to do
    except Unavailable as error:
        intents.later(holder, error.what)


def _is_spare(holder: Holder, number: int) -> bool:
    intent, _ = holder.watch.files.submission(number)
    return intent is not None and intent.is_spare


def _submit(holder: Holder, former: str) -> str:
    """Submit a job behind another one and return its id; "" if there is none."""
    intent = intents.of_workers(holder, spares=1, behind=[former])
    if intent is None:
        return ""
    intents.settle(holder, intent, 1, fresh=True)
    submitted = Submitted.read(holder.paths.submitted(intent.number))
    return submitted.job if submitted is not None else ""
