"""The state of the experiment for people, and the message that it is stuck."""

from __future__ import annotations

from hpcdet.control.leader.decided_state import Decided
from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.lost_workers import FleetView
from hpcdet.control.turn.worker_demand import Demand
from hpcdet.control.upkeep.notify import notify
from hpcdet.store.folder.records import ExperimentState

_AIMLESS = "it wants no trial to run, and has not ended the search"


def state_of(
    decided: Decided, fleet: FleetView, demand: Demand
) -> tuple[ExperimentState, str, str]:
    """Return the state, why, and the cause of a halt if it is one."""
    running = demand.running
    if decided.user.canceled:
        return "STOPPING", "canceled by its user", ""
    if decided.searcher.deaf:
        return "PAUSED", decided.searcher.broken or decided.searcher.asks, "searcher"
    if decided.jobs.halted:
        return "PAUSED", decided.jobs.halted, "scheduler"
    if decided.alone:
        return "RUNNING", f"paused by its user, but for {_trials(decided.alone)}", ""
    if decided.user.paused:
        return "STOPPING" if running else "PAUSED", "paused by its user", ""
    if demand.broke:
        return "PAUSED", demand.broke, "budget"
    if not running and decided.aimless:
        return "PAUSED", f"searcher {decided.method.name}: {_AIMLESS}", "searcher"
    begun = decided.state[0] not in ("", "PENDING")
    runs = bool(running) or any(place.phase == "running" for place in fleet.live)
    state: ExperimentState = "RUNNING" if begun or runs else "PENDING"
    if state == "PENDING" and demand.after:
        return state, f"waits for the end of {demand.after}", ""
    return state, "held by its user" if decided.user.held and not runs else "", ""


def record(holder: Holder, state: ExperimentState, why: str, by: str) -> None:
    """Record a new state. ``by``: the cause of a halt, if it is one."""
    decided = holder.decided
    if (state, why) != decided.state:
        holder.record("state", state=state, why=why, by=by)
        holder.actions.append(f"state {state}" + (f": {why}" if why else ""))
    if by:
        notify(holder, f"stuck {decided.user.resumed_after} {why}", "stuck", why)


def _trials(numbers: list[int]) -> str:
    return f"trial{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
