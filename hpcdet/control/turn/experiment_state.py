"""The state of the experiment: for people, and its end, with what is done once then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from hpcdet.control.fleet import sentinel_jobs, worker_count
from hpcdet.control.leader.decided_state import Decided
from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.lost_workers import FleetView
from hpcdet.control.turn import best_validation
from hpcdet.control.turn.user_commands import asked
from hpcdet.control.turn.worker_demand import Demand
from hpcdet.control.upkeep.notify import notify
from hpcdet.control.upkeep.packing import pack_all
from hpcdet.store.decisions import wakeup
from hpcdet.store.folder.records import Closed, ExperimentState, Reopened
from hpcdet.store.fs import files
from hpcdet.store.trials.standing import Standing

SUCCESSES = frozenset({"target", "stopped", "user_exit"})
REOPENING = frozenset({"resume", "retry", "set"})
"""What an experiment that is over may go on with."""
_AIMLESS = "it wants no trial to run, and has not ended the search"


def state_of(
    decided: Decided, fleet: FleetView, demand: Demand
) -> tuple[ExperimentState, str, str]:
    """Return the state, why, and the cause of a halt if it is one."""
    running = demand.running
    if decided.user.canceled:
        return "STOPPING", "canceled by its user", ""
    if decided.searcher.deaf:
        leaving = running and decided.searcher.halts
        state: ExperimentState = "STOPPING" if leaving else "PAUSED"
        return state, decided.searcher.broken or decided.searcher.asks, "searcher"
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
    state = "RUNNING" if begun or runs else "PENDING"
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


def is_over(decided: Decided, standings: Mapping[int, Standing]) -> bool:
    """True if nothing can begin any more, where nothing runs."""
    if decided.user.canceled:
        # only what a control has closed stays unclaimed
        return all(s.state in ("done", "stopped", "failed") for s in standings.values())
    if decided.searcher.shutdown is None or decided.searcher.deaf:
        return False
    return not decided.trials.open


def close(holder: Holder, fleet: FleetView) -> bool:
    """Close the experiment: record its end, notify the user, leave nothing in the queue.

    Returns:
        False if a command has come meanwhile: the experiment is still open, and has to obey.
    """
    state, why = _end(holder)
    # not the next ones, if it is reopened while this process is suspended
    path, reopening = holder.paths.closed, holder.paths.reopening
    if holder.decided.state[0] != state:
        holder.record("state", state=state, why=why)
    worker_count.cancel_all(holder, fleet.unstarted)
    worker_count.prune(holder, fleet)
    wakeup.take(holder.paths)
    wakeup.told(holder.paths)
    end = path.stem.replace("closed", "end")
    notify(holder, f"{end} {state}: {why}", "end", f"{state}: {why}")
    pack_all(holder)
    if any(asked(holder.paths, holder.decided)):
        return False
    holder.fence()
    Closed(state, why, holder.lease.term, files.now()).write_once(path)
    for seq, command in asked(holder.paths, holder.decided):  # of a user who still found it open
        if state != "CANCELED" and command.verb in REOPENING:
            Reopened(seq, command.user, command.at).write_once(reopening)
            return False
    sentinel_jobs.dismiss(holder)
    holder.actions.append(f"closed: {state}")
    return True


def sweep(holder: Holder) -> None:
    """Remove the checkpoints that no rule keeps once the experiment is over.

    A trial that ends well keeps by the rules itself, but always its newest checkpoint.
    """
    newest_goes = not holder.hands.resolved.checkpoint_storage.save_trial_latest
    plans = holder.decided.trials.plans.values()
    left = any(plan.ended not in SUCCESSES or plan.searcher == "pause" for plan in plans)
    if holder.hands.sweep and (newest_goes or left):
        holder.hands.sweep(holder.paths)


def _end(holder: Holder) -> tuple[Literal["COMPLETED", "CANCELED", "ERROR"], str]:
    """Return how the experiment ends, and why."""
    decided = holder.decided
    if decided.user.canceled:
        return "CANCELED", "canceled by its user"
    over = decided.searcher.shutdown
    said = over.why if over is not None else ""
    if good := sum(plan.ended in SUCCESSES for plan in decided.trials.plans.values()):
        why = f"{good} of {len(decided.trials.plans)} trials succeeded"
        if over is not None and over.failed and holder.hands.resolved.searcher.constraints:
            all_of = f"{good} of {len(decided.trials.plans)} trials ended without an error"
            why = f"{all_of}, and each broke a constraint"
        return "COMPLETED", "; ".join(filter(None, (why, said, best_validation.lacking(holder))))
    failures = (plan.failed for plan in decided.trials.plans.values() if plan.failed)
    return "ERROR", next(failures, said or "no trial")
