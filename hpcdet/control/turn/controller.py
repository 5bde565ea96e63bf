"""One turn of the crank: learn what happened, let the searcher decide, act on the decisions.

Every action is recorded before it is done, and is idempotent, so that a turn may die at any
instruction and the next one, by any process, goes on as if nothing had happened.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Literal

from hpcdet.control.fleet import capacity, dependencies, stuck_jobs, successors, worker_count
from hpcdet.control.leader.leader import Fenced, Holder
from hpcdet.control.leader.lost_workers import FleetView, TaskPlace
from hpcdet.control.leader.trial_plan import TrialPlan
from hpcdet.control.turn import best_validation, write_controls
from hpcdet.control.turn.searcher_events import learn, tell_failures
from hpcdet.control.turn.user_commands import asked, obey
from hpcdet.control.upkeep import accounting, close_attempts
from hpcdet.control.upkeep.notify import notify
from hpcdet.control.upkeep.packing import pack_all, pack_ended
from hpcdet.errors import HpcdetError, IntegrityError
from hpcdet.search.api import events
from hpcdet.store.decisions import wakeup
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed, ExperimentState, Reopened
from hpcdet.store.fs import files
from hpcdet.store.trials.standing import Standing

__all__ = ["Holder", "Turn", "advance"]

_AIMLESS = "it wants no trial to run, and has not ended the search"
SUCCESSES = frozenset({"target", "stopped", "user_exit"})
REOPENING = frozenset({"resume", "retry", "set"})
"""What an experiment that is over may go on with."""


@dataclass(frozen=True)
class Turn:
    """The outcome of a turn.

    Attributes:
        held: the lease was ours; without it nothing was done.
        state: state of the experiment as last recorded.
        actions: what was done, one line each, for people.
        blind: why the scheduler could not be asked; "" if it could.
        live: submissions of which tasks wait or run.
        busy: trials that run.
        wanted: number of workers that should live.
        lacking: how many of those did not live before this turn, which may have submitted them.
        sent: tasks that this turn has submitted, or found to be submitted.
    """

    held: bool
    state: str = ""
    closed: bool = False
    actions: tuple[str, ...] = ()
    blind: str = ""
    live: tuple[int, ...] = ()
    busy: int = 0
    wanted: int = 0
    lacking: int = 0
    sent: int = 0

    @property
    def strands(self) -> bool:
        """True if trials wait for a worker while none lives and none was submitted.

        No worker is needed while the experiment waits for its user.
        """
        waits = self.state in ("PAUSED", "STOPPING")
        return bool(self.wanted) and not (self.live or self.sent or waits)


def advance(paths: ExperimentPaths, holder: Holder, *, calm: bool = False) -> Turn:
    """Turn the crank once, if the lease is held or free.

    Args:
        calm: a periodic turn, not one after a nudge that something has ended: trials that seem
            to run are not checked more closely.

    Raises:
        OSError: the file system refused something; nothing is lost, turn again.
    """
    closed = Closed.read(paths.closed)
    if closed is not None:
        holder.close()
        return Turn(False, closed.state, closed=True)
    try:
        if not holder.begin():
            return Turn(False, actions=tuple(holder.actions))
        try:
            turn = _turn(holder, calm)
        except IntegrityError as error:
            turn = Turn(True)
            holder.actions.append(str(error))
            _say(holder, "PAUSED", str(error), "files")
    except Fenced:
        return Turn(False, actions=tuple(holder.actions))
    except IntegrityError as error:
        holder.actions.append(str(error))
        holder.close()
        return Turn(False, actions=tuple(holder.actions))
    except BaseException:
        # what is on the disk may be more than is known here: a new term reads it again
        holder.close()
        raise
    closed = Closed.read(paths.closed)
    state = closed.state if closed else holder.decided.state[0]
    turn = dataclasses.replace(
        turn,
        state=state,
        closed=closed is not None,
        actions=tuple(holder.actions),
        blind=holder.watch.blind,
        sent=holder.sent,
    )
    if closed is not None:
        holder.close()
    elif holder.unmet:
        holder.lend()
    return turn


def _turn(holder: Holder, calm: bool) -> Turn:
    holder.sight.begin(calm=calm)
    obey(holder)
    decided = holder.decided
    if not decided.started:
        holder.tell(events.Start())
    if decided.unsaid and not (decided.deaf or decided.canceled):
        now = holder.resolved.searcher
        holder.tell(events.Limits(now.max_trials, now.max_concurrent_trials, now.max_length))
    seen = holder.watch.look(close_attempts.busy(holder))
    holder.lease.blind = holder.watch.blind
    holder.lease.waiting = sum(place.phase == "pending" for place in seen.places)
    stuck_jobs.tell(holder, seen)
    stuck_jobs.note_unlaunched(holder, seen)
    close_attempts.close_gone(holder, seen.gone)
    accounting.charge(holder, seen.places)
    standings = learn(holder)
    holder.commit()
    write_controls.apply(holder)
    tell_failures(holder)
    busy = sum(bool(standing.open_attempt) for standing in standings.values())
    if not busy and _is_over(holder, standings):
        return Turn(True) if _close(holder, seen) else _turn(holder, calm=False)
    waits_for = dependencies.waits_for(holder)
    waiting = _waiting(holder, standings)
    room = holder.spending.room() if waiting else 0
    broke = bool(waiting) and not busy and not room
    _say_state(holder, seen, busy, waits_for, broke)
    within = waiting[: int(min(room, len(waiting)))]
    wanted = 0 if waits_for else _provide(holder, seen, standings, within, busy)
    dependencies.tend(holder, seen)
    stuck_jobs.mend(holder, seen)
    pack_ended(holder)
    successors.post(holder, seen)
    holder.snapshot()
    live = tuple(dict.fromkeys(place.submission for place in seen.live))
    lacking = max(0, wanted - len(seen.live))
    return Turn(True, live=live, busy=busy, wanted=wanted, lacking=lacking)


def _is_over(holder: Holder, standings: dict[int, Standing]) -> bool:
    """True if nothing runs for the experiment and nothing can begin any more."""
    decided = holder.decided
    if decided.canceled:
        # only what a control has closed stays unclaimed
        return all(s.state in ("done", "stopped", "failed") for s in standings.values())
    if decided.shutdown is None or decided.deaf:
        return False
    return not decided.open


def _close(holder: Holder, seen: FleetView) -> bool:
    """Close the experiment: record its end, notify the user, leave nothing in the queue.

    Returns:
        False if a command has come meanwhile: the experiment is still open, and has to obey.
    """
    decided = holder.decided
    good = sum(plan.ended in SUCCESSES for plan in decided.plans.values())
    state: Literal["COMPLETED", "CANCELED", "ERROR"]
    if decided.canceled:
        state, why = "CANCELED", "canceled by its user"
    elif good:
        state, why = "COMPLETED", f"{good} of {len(decided.plans)} trials succeeded"
        also = decided.shutdown.why if decided.shutdown is not None else ""
        why = "; ".join(filter(None, (why, also, best_validation.lacking(holder))))
    else:
        state, why = "ERROR", _first_failure(holder)
    # not the next ones, if it is reopened while this process is suspended
    path, reopening = holder.paths.closed, holder.paths.reopening
    if decided.state[0] != state:
        holder.record("state", state=state, why=why)
    worker_count.cancel_all(holder, _waiting_jobs(seen))
    worker_count.prune(holder, seen)
    wakeup.take(holder.paths)
    end = path.stem.replace("closed", "end")
    notify(holder, f"{end} {state}: {why}", "end", f"{state}: {why}")
    pack_all(holder)
    if any(asked(holder)):
        return False
    holder.fence()
    Closed(state, why, holder.lease.term, files.now()).write_once(path)
    for seq, command in asked(holder):  # by who still found it open
        if state != "CANCELED" and command.verb in REOPENING:
            Reopened(seq, command.user, command.at).write_once(reopening)
            return False
    successors.dismiss(holder)
    holder.actions.append(f"closed: {state}")
    _wake_followers(holder)
    # a trial that ends well keeps by the rules itself, but always its newest checkpoint
    newest_goes = not holder.hands.resolved.checkpoint_storage.save_trial_latest
    left = good < len(decided.plans) or any(p.searcher == "pause" for p in decided.plans.values())
    if holder.hands.sweep and (newest_goes or left):
        holder.hands.sweep(holder.paths)
    return True


def _wake_followers(holder: Holder) -> None:
    """Turn the crank of the experiments that wait for this one's end. Best effort."""
    for follower in dependencies.followers(holder.paths):
        try:
            other = Holder.open(follower, "wake", submits=holder.submits)
            try:
                advance(follower, other)
            finally:
                other.close()
        except (HpcdetError, OSError) as error:
            holder.actions.append(f"{follower.id} could not be woken: {error}")
        else:
            holder.actions.append(f"woke {follower.id}")


def _first_failure(holder: Holder) -> str:
    failures = [plan.failed for plan in holder.decided.plans.values() if plan.failed]
    shutdown = holder.decided.shutdown
    return failures[0] if failures else (shutdown.why if shutdown and shutdown.why else "no trial")


def _waiting_jobs(seen: FleetView) -> list[TaskPlace]:
    """Return the places of jobs of which no task runs; running workers end by themselves."""
    running = {place.job for place in seen.live if place.phase == "running"}
    return [place for place in seen.live if place.job not in running]


def _say_state(holder: Holder, seen: FleetView, busy: int, waits_for: str, broke: bool) -> None:
    decided = holder.decided
    state: ExperimentState
    why, by = "", ""
    if decided.canceled:
        state, why = "STOPPING", "canceled by its user"
    elif decided.deaf:
        state, why, by = "PAUSED", decided.broken or decided.asks, "searcher"
    elif decided.halted:
        state, why, by = "PAUSED", decided.halted, "scheduler"
    elif decided.alone:
        state, why = "RUNNING", f"paused by its user, but for {_trials(decided.alone)}"
    elif decided.paused:
        state, why = ("STOPPING" if busy else "PAUSED"), "paused by its user"
    elif broke:
        state, why, by = "PAUSED", _broke(holder), "budget"
    elif not busy and decided.aimless:
        state, why, by = "PAUSED", f"searcher {decided.method.name}: {_AIMLESS}", "searcher"
    else:
        begun = decided.state[0] not in ("", "PENDING")
        runs = busy or any(place.phase == "running" for place in seen.live)
        state = "RUNNING" if begun or runs else "PENDING"
        if state == "PENDING" and waits_for:
            why = f"waits for the end of {waits_for}"
        elif decided.held and not runs:
            why = "held by its user"
    _say(holder, state, why, by)


def _broke(holder: Holder) -> str:
    """Return the message that the budget is used up; constant per budget, so it is sent once."""
    spending = holder.spending
    terms = spending.terms(spending.limits)
    key = terms.exhausted(spending.account(), time.time())
    return f"budget of {terms.budget} is used up; to go on: hpcdet set {holder.paths.id} {key}=MORE"


def _trials(numbers: list[int]) -> str:
    return f"trial{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _say(holder: Holder, state: ExperimentState, why: str, by: str) -> None:
    """Record a new state. ``by``: the cause of a halt, if it is one."""
    decided = holder.decided
    if (state, why) != decided.state:
        holder.record("state", state=state, why=why, by=by)
        holder.actions.append(f"state {state}" + (f": {why}" if why else ""))
    if by:
        notify(holder, f"stuck {decided.resumed_after} {why}", "stuck", why)


def _waiting(holder: Holder, standings: dict[int, Standing]) -> list[TrialPlan]:
    """Return the trials that need a worker."""
    return [
        holder.decided.plans[number]
        for number in sorted(holder.decided.open)
        if _waits(holder, holder.decided.plans[number], standings.get(number))
    ]


def _provide(
    holder: Holder,
    seen: FleetView,
    standings: dict[int, Standing],
    waiting: list[TrialPlan],
    busy: int,
) -> int:
    """Provide the workers that trials need; free what a pause or a cancel leaves idle.

    Returns the number of workers that should live.
    """
    decided = holder.decided
    if decided.canceled or (decided.paused and not decided.alone):
        _free(holder, seen, busy)
        return 0
    holder.unheeded_since = None
    resolved = holder.resolved
    # who was asked to leave makes room for the next one
    leaving = sum(
        bool(standing.open_attempt) and decided.action(decided.plans[number]) != "run"
        for number, standing in standings.items()
    )
    wanted, most = busy - leaving + len(waiting), resolved.searcher.max_concurrent_trials
    since = max((plan.since for plan in waiting), default=0)
    outdated = _outdated(holder, seen, waiting, since)
    worker_count.cancel_surplus(holder, outdated, len(outdated))
    useful = [place for place in seen.live if place not in outdated]

    def needed(trials: int) -> int:
        together = min(trials, most) if most else trials
        found = capacity.workers(holder, useful, standings, together, since)
        return min(found, capacity.by_slots(resolved, resolved.lanes) or found)

    workers = needed(wanted)
    # a trial that waits for its parent's checkpoint may use a live worker, but none is submitted
    if early := sum(("record", plan.number) not in holder.written for plan in waiting):
        workers = max(needed(wanted - early), min(workers, len(useful)))
    worker_count.provide(holder, seen, workers + len(outdated))
    return workers


def _outdated(
    holder: Holder, seen: FleetView, waiting: list[TrialPlan], since: int
) -> list[TaskPlace]:
    """Return tasks of former submissions that cannot run trials which require newer ones.

    They may be pending, or hold an allocation that they soon release by themselves.
    """
    if not any(place.submission < since for place in seen.live):
        return []
    busy = close_attempts.busy(holder)
    old = [
        place
        for place in seen.live
        if place.submission < since and not (place.worker and place.worker.name in busy)
    ]
    content = sum(plan.since < since for plan in waiting)  # with any of them
    return old[content:]


def _waits(holder: Holder, plan: TrialPlan, standing: Standing | None) -> bool:
    """True if a trial needs a worker and has none."""
    if plan.ended or holder.decided.action(plan) != "run":
        return False
    if standing is not None and standing.state not in ("runnable", "doubtful", "running"):
        # as it stood before this turn's controls
        holder.stay()
        standing = holder.sight.trial(plan.number).standing
    return standing is None or standing.state in ("runnable", "doubtful")


def _free(holder: Holder, seen: FleetView, busy: int) -> None:
    """Let running trials save, then release all allocations.

    Code that does not react is ended through the scheduler, as at a time limit.
    """
    limits, now = holder.hands.site.limits, holder.hands.clock()
    if holder.unheeded_since is None:
        holder.unheeded_since = now
    patience = 0 if holder.decided.at_once else limits.signal_lead_s + limits.kill_wait_s
    if not busy or now - holder.unheeded_since >= patience:
        worker_count.cancel_all(holder, seen.live)
    else:
        worker_count.cancel_all(holder, _waiting_jobs(seen))
        worker_count.prune(holder, seen)
