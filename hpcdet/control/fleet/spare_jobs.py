"""Spare jobs in a chain behind each worker, for sites where workers cannot submit others.

Each begins when the one before it has ended, however that was (``afterany``). In arrays, spare
tasks wait behind a throttle instead (``worker_count``). Chains are whole once the small job waits
behind them (``sentinel_jobs``), or one of their jobs is refused; until then each turn goes on with
them, whoever has begun them.
"""

from __future__ import annotations

from hpcdet.control.fleet import capacity, intents, sentinel_jobs
from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.lost_workers import FleetView
from hpcdet.store.folder.records import Intent, Submitted


def are_chained(holder: Holder) -> bool:
    """True if spare jobs wait behind workers here, and not spare tasks in their arrays."""
    able = holder.hands.scheduler.capabilities()
    return not able.arrays and holder.hands.site.capabilities.nobody_submits


def chain(holder: Holder, seen: FleetView) -> None:
    """Submit the spare jobs that are missing behind workers, as far as room is left.

    A holder that may not submit gives way to one that may, as where workers are missing.

    Raises:
        Fenced: the term ended meanwhile.
    """
    if not are_chained(holder) or holder.hold or holder.decided.jobs.halted:
        return
    if intents.rests(holder):
        return
    chains = _chains(holder, seen.over)
    if not holder.submits:
        holder.unmet |= _missing(holder, chains, seen) > 0
        return
    with intents.patience(holder, "spare"):
        for intent in (one for one in intents.of_unknown_jobs(holder) if one.is_spare):
            _settle(holder, intent, chains, fresh=False)
        for _ in range(_missing(holder, chains, seen)):
            new = intents.of_workers(holder, spares=1, behind=min(chains, key=len)[-1:])
            if new is None or not _settle(holder, new, chains, fresh=True):
                return


def _chains(holder: Holder, over: set[int]) -> list[list[str]]:
    """Return the jobs of each worker and of its spares, where these are not whole.

    Args:
        over: submissions of which nothing lives.
    """
    numbers = holder.paths.submissions()
    found, gone = list[list[str]](), set[str]()
    small = (n for n in reversed(numbers) if Intent.read(holder.paths.sentinel(n)) is not None)
    whole = max(next(small, 0), holder.watch.left_behind)
    for number in (number for number in numbers if number > whole):
        intent, submitted = holder.watch.files.submission(number)
        if intent is None or submitted is None:
            continue
        if number in over:
            gone.add(submitted.job)
        if submitted.job and not intent.is_spare:
            found.append([submitted.job])
        elif submitted.job:
            _lengthen(found, intent, submitted.job)
        elif intent.is_spare:
            return []  # it was refused: the next place in the queue is for the small job
    return [one for one in found if one[-1] not in gone]


def _lengthen(chains: list[list[str]], intent: Intent, job: str) -> None:
    for one in (one for one in chains if one[-1] in intent.behind):
        one.append(job)


def _missing(holder: Holder, chains: list[list[str]], seen: FleetView) -> int:
    """Return how many spare jobs are missing, and have room in the queue."""
    site, able = holder.hands.site, holder.hands.scheduler.capabilities()
    live = {intent.number for intent, one in holder.watch.files.submissions() if one.job}
    there = sum(len(one) - 1 for one in chains)
    missing = capacity.spares(holder.resolved, site, len(chains)) - there if chains else 0
    small = sentinel_jobs.places(holder, seen)
    room = [
        most - len(live - seen.over) - small
        for most in (site.limits.max_submit, able.max_submit)
        if most is not None
    ]
    return min([missing, *room])


def _settle(holder: Holder, intent: Intent, chains: list[list[str]], *, fresh: bool) -> bool:
    """Submit a spare job, or give it up if what it is behind is over; False if there is none."""
    wanted = any(one[-1] in intent.behind for one in chains)
    intents.settle(holder, intent, int(wanted), fresh=fresh)
    submitted = Submitted.read(holder.paths.submitted(intent.number))
    if submitted is None or not submitted.job:
        return False
    _lengthen(chains, intent, submitted.job)
    return True
