"""Coordination of all ranks: what one wants at the end of a step, and what they agree to do."""

from __future__ import annotations

import contextlib
import dataclasses

from hpcdet.process import signals
from hpcdet.process.location import AttemptLocation
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.train.attempt.control_reader import TrainingLength, Wanted
from hpcdet.train.attempt.rung_wait import RungWait
from hpcdet.train.attempt.stop_request import StopRequest
from hpcdet.train.checkpoints.checkpointer import Keeper
from hpcdet.train.checkpoints.deadline import Deadline, Every, StepTimer
from hpcdet.train.comm.agreement import NOTHING, Agreement, Cause, Orders
from hpcdet.train.comm.collectives import Peers
from hpcdet.train.telemetry.profile import Profile
from hpcdet.train.telemetry.tracker import Tracker
from hpcdet.units import Units

_LOOK_EVERY_S = 0.2
"""A rank that is alone; several ranks agree as often (``agreement``)."""
_CONTROL_EVERY_S = 2.0
_PROGRESS_EVERY_S = 5.0


class Preemption:
    """A signal to this rank; on rank 0 also a control, and the end of the allocation.

    Args:
        keeper: a checkpoint that it is writing delays the last one.
        chief: this is rank 0.
    """

    def __init__(
        self, wanted: Wanted, deadline: Deadline, keeper: Keeper, tracker: Tracker, *, chief: bool
    ) -> None:
        self._wanted, self._deadline, self._keeper = wanted, deadline, keeper
        self._tracker, self._chief = tracker, chief
        self._control = Every(_CONTROL_EVERY_S)
        self._noticed = False

    def cause(self, *, now: bool = False) -> Cause | None:
        """Return why this rank would leave; None if it would not.

        Args:
            now: rank 0 reads the control, however short ago it did.
        """
        leave: Cause | None = "signal" if signals.heard() else None
        if not self._chief:
            return leave
        if now or self._control.take() or leave:
            with contextlib.suppress(OSError):  # storage that is away for a moment ends nothing
                self._wanted.read()
        over = self._deadline.over(self._keeper.busy)
        return self._wanted.said.leave or leave or ("walltime" if over else None)

    def notice(self, why: Cause) -> None:
        """Record, once, that all ranks leave."""
        if not self._noticed:
            self._noticed = True
            self._deadline.hear(signals.heard(), signals.heard_at())
            self._tracker.record("notice", signal=signals.heard() or why)

    def hurries(self) -> bool:
        """True if this process may be killed soon."""
        return bool(signals.heard()) or self._deadline.over()


class Coordinator:
    """Brings all ranks to leave, save, wait or train longer after the same step.

    Attributes:
        length: how long to train.
        preemption: why this rank would leave.
        stop: the stop that the user's code has asked for.
    """

    def __init__(
        self,
        place: AttemptLocation,
        config: Resolved,
        peers: Peers,
        keeper: Keeper,
        deadline: Deadline,
        tracker: Tracker,
        profile: Profile,
    ) -> None:
        ranks, wanted = peers.ranks, Wanted(place, config, tracker)
        self.length = TrainingLength(config.searcher, wanted, peers)
        self.preemption = Preemption(wanted, deadline, keeper, tracker, chief=ranks.chief)
        # with virtual ranks a run ends alike, whatever the number of real ones
        at_once = ranks.world == 1 and config.reproducibility.elastic is None
        self.stop = StopRequest(at_once=at_once)
        self._peers, self._keeper, self._tracker, self._profile = peers, keeper, tracker, profile
        self._rung_wait = RungWait(place, config, wanted, tracker)
        self._agreement = Agreement(peers)
        self._timer = StepTimer(deadline)
        self._look = Every(min(_LOOK_EVERY_S, config.checkpoint_every_s))
        self._steps = 0
        self._progress = Every(_PROGRESS_EVERY_S)
        self._save = Every(config.checkpoint_every_s)
        self._saved = False  # since what is under way was said

    def begin(self, units: Units) -> None:
        """Begin with the step after ``units``."""
        self._steps = units.batches
        self._timer.restart()

    def poll(self, units: Units, *, stepped: bool = True, stop: bool = False) -> Orders:
        """Agree on what all ranks do now; every rank calls it equally often, after each step.

        Args:
            stepped: a step of training lies behind (not one of validation).
            stop: the code of this rank has asked to end; all end at the same step, a few later.
        """
        first = self._timer.lap(stepped)
        if first and stepped:
            self._tracker.record("first_step")
            self._rung_wait.begin(units)
            # of the Core API's ranks one alone may have loaded a checkpoint
            self._steps = self._peers.broadcast(self._steps)
        self._steps += stepped
        if stop:
            self.stop.learn(self._steps)
        heard = self._heard(self._steps if stepped else None, first=first)
        if stepped:
            self._profile.step(units)
        orders = NOTHING
        if heard is not None:
            orders = self._obey(heard)
            if self._peers.ranks.chief and self._progress.take():
                self._tracker.record("progress", **dataclasses.asdict(units))
        if orders.wait and orders.leave is None:
            orders = orders._replace(leave=self.wait_at_rung())
        if stepped and self.stop.due(self._steps):
            orders = orders._replace(leave="stopped")
            self.stop.obey()
            self.preemption.notice("stopped")
        return orders

    def wait_at_rung(self) -> Cause | None:
        """After a validation, together: see ``rung_wait``; why to leave, if that is so."""
        if not self._rung_wait.bound_s:
            return None
        with self._profile.phases.within("waiting"):
            leave = self._rung_wait.wait(self._peers, lambda: self.preemption.cause(now=True))
        self._timer.restart()
        if leave is not None:
            self.preemption.notice(leave)
        return leave

    def stops(self, asked: bool) -> bool:
        """True if the code of any rank has asked to end, so that all do; all call together.

        Args:
            asked: that of this rank has.
        """
        self.stop.learn(self._steps if asked else None)
        if self.stop.anywhere(self._peers) is None:
            return False
        self.stop.obey()
        self.preemption.notice("stopped")
        return True

    def validated(self, units: Units) -> None:
        """Rank 0 has reported a validation."""
        self._rung_wait.report(units, self.length.rungs)

    def saved(self, *, alone: bool) -> None:
        """A checkpoint was made, or begun; ``alone``: by rank 0 without the others."""
        self._save.restart()
        self._saved = self._saved or (self._agreement.under_way and not alone)
        self._timer.restart()

    def settle(self) -> None:
        """Finish the exchange that is under way; all ranks leave."""
        self._agreement.settle()

    def _heard(self, step: int | None, *, first: bool) -> Orders | None:
        """Ask all ranks what they want, now and then; ``step`` as in ``Agreement.exchange``."""
        if self._peers.ranks.world == 1:
            looks = first or signals.heard() or self._rung_wait.due() or self._look.take()
            return self._mine() if looks else None
        with self._profile.phases.within("communication"):
            return self._agreement.exchange(self._mine, step)

    def _obey(self, orders: Orders) -> Orders:
        """Take in what all agreed on; what is left for the loop to do."""
        if self._saved:  # what is heard now was said before that
            orders = orders._replace(save=False, busy=True)
        self._saved = False
        if not orders.busy:
            self._keeper.conclude(orders.lost)
        if self._keeper.under_way:  # the next one is due once this one is there
            orders = orders._replace(save=False)
        if orders.until is not None:
            self.length.extend(orders.until)
        self.stop.learn(orders.stop)
        if orders.leave:
            self.preemption.notice(orders.leave)
        return orders

    def _mine(self) -> Orders:
        busy, leave = self._keeper.busy, self.preemption.cause()
        if not self._peers.ranks.chief:
            return Orders(leave, busy=busy, stop=self.stop.asked)
        lost, save, wait = not busy and self._keeper.lost, self._save.due(), self._rung_wait.due()
        return Orders(leave, self.length.asked, save, busy, lost, self.stop.asked, wait)
