"""The demand for workers: as many as trials need, and none while the user lets nothing run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from hpcdet.control.fleet import capacity, dependencies, spare_jobs, worker_count
from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.lost_workers import FleetView, TaskPlace
from hpcdet.control.leader.trial_plan import TrialPlan
from hpcdet.control.upkeep import close_attempts
from hpcdet.store.cost.spending import Spending
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.trials.standing import Standing


@dataclass(frozen=True)
class Demand:
    """The trials that run or wait.

    Attributes:
        running: how many have an open attempt; ``leaving``: of these, the ones asked to leave.
        waiting: those that need a worker, and which the budget lets begin.
        after: id of the experiment that this one waits for; "" if none.
        broke: why nothing can begin for want of budget, though nothing runs; "" if something can.
    """

    running: int
    leaving: int
    waiting: list[TrialPlan]
    after: str
    broke: str


def demand(holder: Holder, standings: Mapping[int, Standing], running: int) -> Demand:
    """Return the demand, by the budget that is left."""
    after = dependencies.waits_for(holder)
    trials, runs = holder.decided.trials, holder.sight.running
    idle = sorted(trials.open - runs - holder.told_to_leave)
    plans = (trials.plans[number] for number in idle)
    waiting = [plan for plan in plans if _waits(holder, plan, standings.get(plan.number))]
    leaving = len(runs & holder.told_to_leave)
    room = holder.spending.room() if waiting else 0
    broke = _broke(holder.spending, holder.paths) if waiting and not running and not room else ""
    return Demand(running, leaving, waiting[: int(min(room, len(waiting)))], after, broke)


def provide(
    holder: Holder, fleet: FleetView, standings: Mapping[int, Standing], demand: Demand
) -> int:
    """Provide the workers that trials need; free what a pause or a cancel leaves idle.

    Returns the number of workers that should live.
    """
    decided, waiting = holder.decided, demand.waiting
    if demand.after:
        return 0
    idle = decided.searcher.halts or (decided.user.paused and not decided.alone)
    if decided.user.canceled or idle:
        _free(holder, fleet, demand.running)
        return 0
    holder.pace.unheeded_since = None
    resolved = holder.resolved
    # a trial that was asked to leave makes room for the next one
    trials = demand.running - demand.leaving + len(waiting)
    most = resolved.searcher.max_concurrent_trials
    since = max((plan.since for plan in waiting), default=0)
    outdated = _outdated(holder, fleet, waiting, since)
    worker_count.cancel_surplus(holder, outdated, len(outdated))
    useful = [place for place in fleet.live if place not in outdated]

    def needed(trials: int) -> int:
        together = min(trials, most) if most else trials
        found = capacity.workers(holder, useful, standings, together, since)
        return min(found, capacity.by_slots(resolved, resolved.lanes) or found)

    workers = needed(trials)
    # a trial that waits for its parent's checkpoint may use a live worker, but none is submitted
    if early := sum(("record", plan.number) not in holder.written for plan in waiting):
        workers = max(needed(trials - early), min(workers, len(useful)))
    worker_count.provide(holder, fleet, workers + len(outdated))
    spare_jobs.chain(holder, fleet)
    return workers


def _outdated(
    holder: Holder, fleet: FleetView, waiting: list[TrialPlan], since: int
) -> list[TaskPlace]:
    """Return tasks of former submissions that cannot run trials which require newer ones.

    They may be pending, or hold an allocation that they soon release by themselves.
    """
    if not any(place.submission < since for place in fleet.live):
        return []
    busy = close_attempts.busy(close_attempts.find_open(holder))
    old = [
        place
        for place in fleet.live
        if place.submission < since and not (place.worker and place.worker.name in busy)
    ]
    content = sum(plan.since < since for plan in waiting)  # with any of them
    return old[content:]


def _waits(holder: Holder, plan: TrialPlan, standing: Standing | None) -> bool:
    """True if a trial that is to run, and has no worker, needs one."""
    if standing is not None and standing.state not in ("runnable", "doubtful"):
        # as it stood before this turn's controls
        holder.stay()
        standing = holder.sight.trial(plan.number).standing
    return standing is None or standing.state in ("runnable", "doubtful")


def _broke(spending: Spending, paths: ExperimentPaths) -> str:
    """Return the message that the budget is used up; constant per budget, so it is sent once."""
    terms = spending.terms(spending.limits)
    key = terms.exhausted(spending.account(), time.time())
    return f"budget of {terms.budget} is used up; to continue: hpcdet set {paths.id} {key}=MORE"


def _free(holder: Holder, fleet: FleetView, running: int) -> None:
    """Let running trials save, then release all allocations.

    Code that does not react is ended through the scheduler, as at a time limit.
    """
    limits, now = holder.hands.site.limits, holder.hands.clock()
    if holder.pace.unheeded_since is None:
        holder.pace.unheeded_since = now
    patience = 0 if holder.decided.user.at_once else limits.signal_lead_s + limits.kill_wait_s
    if not running or now - holder.pace.unheeded_since >= patience:
        worker_count.cancel_all(holder, fleet.live)
    else:
        worker_count.cancel_all(holder, fleet.unstarted)
        worker_count.prune(holder, fleet)
