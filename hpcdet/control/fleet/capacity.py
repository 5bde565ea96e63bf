"""The number of workers, spare ones too, that trials need; each may run several side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.lost_workers import FleetView, TaskPlace
from hpcdet.jobs.script import lanes
from hpcdet.site.models import Site
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Claim
from hpcdet.store.fs import files
from hpcdet.store.trials.standing import Standing


def workers(
    holder: Holder,
    places: Sequence[TaskPlace],
    standings: Mapping[int, Standing],
    trials: int,
    since: int = 0,
) -> int:
    """Return how many tasks should live for the trials that run or wait for a worker.

    Args:
        places: tasks that live now.
        since: some of the trials may be taken by tasks of this submission or later ones only.
    """
    each = holder.resolved.lanes
    lanes_of = {number: _lanes(holder, number) for number in {one.submission for one in places}}
    if each == 1 and max(lanes_of.values(), default=1) == 1:
        return trials
    there = [lanes_of[place.submission] for place in places]
    open_lanes = _open_lanes(holder.paths, standings)
    for index, place in enumerate(places):
        full = place.submission < since or _takes_nothing_more(holder.hands.site, place)
        if place.worker is not None and full:
            there[index] = open_lanes[place.worker.name]
    spare = sum(there) - trials
    if spare < 0:
        return len(there) + lanes.tasks(-spare, each)
    return len(there) - spare // max(1, each, *there)


def at_once(resolved: Resolved, side_by_side: int) -> int:
    """Return how many tasks of ``side_by_side`` lanes may run at once; 0 means no limit.

    Only the number of tasks bounds the slots that are held; the searcher also decides how many
    trials there are to run.
    """
    most = resolved.searcher.max_concurrent_trials
    bounds = [lanes.tasks(most, side_by_side)] if most else []
    if held := by_slots(resolved, side_by_side):
        bounds.append(held)
    return min(bounds, default=0)


def by_slots(resolved: Resolved, side_by_side: int) -> int:
    """Return how many tasks of ``side_by_side`` lanes ``max_slots`` allows; 0 means no limit."""
    need = resolved.resources
    if not need.max_slots:
        return 0
    return max(1, need.max_slots // (need.slots_per_trial * side_by_side))


def _lanes(holder: Holder, submission: int) -> int:
    """Return how many trials each task of a submission runs at once."""
    intent, _ = holder.watch.files.submission(submission)
    return lanes.of_intent(holder.hands.resolved, intent) if intent else 1


def _open_lanes(paths: ExperimentPaths, standings: Mapping[int, Standing]) -> Counter[str]:
    """Return the number of open attempts of each worker, by its name."""
    found: Counter[str] = Counter()
    for number, standing in standings.items():
        if standing.open_attempt:
            attempt = paths.trial(number).attempt(standing.open_attempt)
            if (claim := Claim.read(attempt.claim)) is not None:
                found[claim.worker] += 1
    return found


def _takes_nothing_more(site: Site, place: TaskPlace) -> bool:
    """True if the worker of a task is leaving and the task will not be requeued."""
    beat = files.read_json(place.worker.beat) if place.worker else None
    leaving = beat.get("leaving", "") if isinstance(beat, dict) else ""
    can = site.capabilities
    wishes = can.requeue == "user" and leaving in ("time", "signal")
    returns = wishes or (can.rerun == "server" and leaving == "signal")
    return bool(leaving) and not returns


def spares(resolved: Resolved, site: Site, workers: int) -> int:
    """Return how many spare tasks to submit for a number of workers.

    Only where no process can submit others later. Unless the config sets the number: enough for
    each worker to be replaced ``max_restarts`` times, and for a task for each trial where each
    runs in its own.
    """
    if not site.capabilities.nobody_submits:
        return 0
    if resolved.worker.spares is not None:
        return resolved.worker.spares
    again = workers * max(1, resolved.max_restarts)
    if resolved.worker.mode == "per_trial":
        again += max(0, resolved.searcher.max_trials - workers)
    return again


def queued_spares(holder: Holder, seen: FleetView) -> int:
    """Return how many spare jobs wait behind one that lives: they add nothing to what runs."""
    live, found = {place.job for place in seen.live}, 0
    for place in seen.live:
        intent, _ = holder.watch.files.submission(place.submission)
        found += intent is not None and intent.is_spare and not live.isdisjoint(intent.behind)
    return found
