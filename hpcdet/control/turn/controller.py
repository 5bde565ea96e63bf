"""One turn of the crank: learn what happened, let the searcher decide, act on the decisions.

Every action is recorded before it is done, and is idempotent, so that a turn may die at any
instruction and the next one, by any process, goes on as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hpcdet.control.fleet import dependencies, running_limits, sentinel_jobs, stuck_jobs
from hpcdet.control.leader.leader import Fenced, Holder
from hpcdet.control.leader.lost_workers import FleetView
from hpcdet.control.messages import sender_process
from hpcdet.control.turn import experiment_state, worker_demand, write_controls
from hpcdet.control.turn.searcher_events import (
    learn,
    learn_of,
    notify_failures,
    tell_start_and_limits,
)
from hpcdet.control.turn.user_commands import obey
from hpcdet.control.upkeep import accounting, close_attempts, store_copies
from hpcdet.control.upkeep.packing import pack_ended
from hpcdet.errors import HpcdetError, IntegrityError
from hpcdet.store.decisions import lease, wakeup
from hpcdet.store.decisions.wakeup import Told
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed

__all__ = ["Holder", "Turn", "advance"]

_OTHERS_S = 300.0
"""A turn of another experiment takes less: a hook and a command of the scheduler, each at its
limit."""
_LOOK_S = 1.0


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


def advance(paths: ExperimentPaths, holder: Holder, *, everything: bool = False) -> Turn:
    """Turn the crank once, if the lease is held or free.

    Args:
        everything: look at all trials, else at those that nudges tell of, as ``Sight.begin``.

    Raises:
        OSError: the file system refused something; nothing is lost, turn again.
    """
    closed = Closed.read(paths.closed)
    if closed is not None:
        holder.close()
        if holder.kind != "worker":  # there may be many, and one has closed it
            sender_process.tend(paths)
        return Turn(False, closed.state, closed=True)
    try:
        if not holder.begin():
            return Turn(False, actions=tuple(holder.actions))
        try:
            turn = _turn(holder, everything)
        except IntegrityError as error:
            turn = Turn(True)
            holder.actions.append(str(error))
            experiment_state.record(holder, "PAUSED", str(error), "files")
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
        blind=holder.watch.scheduler.blind,
        sent=holder.sent,
    )
    if closed is not None:
        holder.close()
    elif holder.unmet or store_copies.should_lend(holder):
        holder.lend()
    sender_process.tend(paths, new=holder.left_message)
    return turn


def _turn(holder: Holder, everything: bool) -> Turn:
    """Take one turn under the lease: read, learn, decide, write.

    What is decided goes through ``Holder.record`` and ``Holder.tell`` into ``holder.decided``; the
    steps hand each other what they have seen.
    """
    told = wakeup.told(holder.paths)
    holder.sight.begin(told, everything=everything)
    obey(holder)
    tell_start_and_limits(holder)
    try:
        _answer(holder, told)
    except IntegrityError:
        _look_at_fleet(holder)  # whoever is gone is closed, though a trial cannot be read
        raise
    fleet = _look_at_fleet(holder)
    standings = learn(holder)
    holder.commit()
    write_controls.apply(holder)
    notify_failures(holder)
    running = len(holder.sight.running)
    if fleet.live and not running:  # before jobs are freed: one told to leave now may, unheard
        running = len({attempt.trial for attempt, _ in close_attempts.find_open(holder)})
    if not running and experiment_state.is_over(holder.decided, standings):
        return Turn(True) if _close(holder, fleet) else _turn(holder, everything=True)
    demand = worker_demand.demand(holder, standings, running)
    state = experiment_state.state_of(holder.decided, fleet, demand)
    experiment_state.record(holder, *state)
    wanted = worker_demand.provide(holder, fleet, standings, demand)
    if not wanted:
        running_limits.leave(holder, fleet)
    dependencies.tend(holder, fleet)
    stuck_jobs.mend(holder, fleet)
    pack_ended(holder)
    store_copies.tend(holder)
    sentinel_jobs.post(holder, fleet)
    holder.log.snapshot(holder.fence)
    _wake(holder, _stranded(holder))
    live = tuple(dict.fromkeys(place.submission for place in fleet.live))
    lacking = max(0, wanted - len(fleet.live))
    return Turn(True, live=live, busy=running, wanted=wanted, lacking=lacking)


def _answer(holder: Holder, told: Told) -> None:
    """Answer those who have left nudges, before jobs and all other trials are looked at."""
    if not (here := (told.reports | told.attempts) & holder.decided.trials.open):
        return
    for number in sorted(here):
        learn_of(holder, number)
    holder.commit()
    with contextlib.suppress(IntegrityError):  # it comes again once all has been learnt
        write_controls.apply(holder, copies=False)


def _look_at_fleet(holder: Holder) -> FleetView:
    """Return the tasks and workers that live; close those that are gone."""
    open_attempts = close_attempts.find_open(holder)
    fleet = holder.watch.look(close_attempts.busy(open_attempts))
    holder.lease.blind = holder.watch.scheduler.blind
    holder.lease.waiting = sum(place.phase == "pending" for place in fleet.places)
    stuck_jobs.tell(holder, fleet)
    stuck_jobs.note_unlaunched(holder, fleet)
    if not holder.watch.settled:
        close_attempts.close_gone(holder, open_attempts, fleet.gone)
    accounting.charge(holder, fleet.places)
    return fleet


def _close(holder: Holder, fleet: FleetView) -> bool:
    """Close the experiment; False if a command came meanwhile, so that it is still open."""
    if not experiment_state.close(holder, fleet):
        return False
    running_limits.leave(holder, fleet)
    others = [*dependencies.followers(holder.paths), *_stranded(holder)]
    _wake(holder, others, _last_turn)
    experiment_state.sweep(holder)
    return True


def _stranded(holder: Holder) -> list[ExperimentPaths]:
    """Return experiments that may run more than before, and have no job that would see to it."""
    now, found = holder.hands.clock(), []
    for root in holder.pace.stranded if holder.kind != "wake" else ():
        if now - holder.pace.woke.get(root, -math.inf) >= holder.hands.site.limits.poll_min_s:
            holder.pace.woke[root] = now
            found.append(ExperimentPaths(root))
    return found


def _wake(
    holder: Holder,
    others: Iterable[ExperimentPaths],
    turn_of: Callable[[ExperimentPaths, Holder], Turn] = advance,
) -> None:
    """Turn the crank of experiments that wait for this one, and keep its lease. Best effort."""
    for other in others:
        try:
            with holder.lease.kept(_OTHERS_S):
                its = Holder.open(other, "wake", submits=holder.submits)
                try:
                    turn = turn_of(other, its)
                finally:
                    its.close()
        except (HpcdetError, OSError) as error:
            holder.actions.append(f"{other.id} could not be woken: {error}")
        else:
            woken = turn.held or turn.closed
            holder.actions.append(f"{'woke' if woken else 'another process has'} {other.id}")


def _last_turn(other: ExperimentPaths, its: Holder) -> Turn:
    """Turn the crank of an experiment that nobody may wake later.

    Its holder may have died a moment ago, or be in its own last turn: until that is over, or the
    lease, this one waits.
    """
    clock, patience_s = its.hands.clock, its.lease.ttl_s + 2 * _LOOK_S
    first = seen = lease.last(other)
    until, at_most = clock() + patience_s, clock() + _OTHERS_S
    turn = advance(other, its)
    while not (turn.held or turn.closed or lease.attended(other, first)):
        if (now := lease.last(other)) != seen:
            seen, until = now, min(clock() + patience_s, at_most)
        if clock() >= until:
            break
        its.hands.sleep(_LOOK_S)
        turn = advance(other, its)
    return turn
