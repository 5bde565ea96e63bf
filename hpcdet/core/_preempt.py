"""``context.preempt``: is it time to leave?"""

from __future__ import annotations

from collections.abc import Callable

from hpcdet.core._train import TrainContext
from hpcdet.train.attempt.session import Session
from hpcdet.train.comm.agreement import Cause


class PreemptContext:
    """Asks costs next to nothing: call it after every step, on every rank.

    Args:
        each_step: called before the ranks agree.

    Attributes:
        cause: why to leave, once that is so.
        checkpoint_due: at the last call, a resume checkpoint was due by time.
    """

    def __init__(
        self, session: Session, train: TrainContext, each_step: Callable[[], None]
    ) -> None:
        self._session = session
        self._train = train
        self.cause: Cause | None = None
        self.checkpoint_due = False
        self._each_step = each_step

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Whether to save and leave now: a signal, little time left, or a control.

        All ranks get the same answer at the same call; one that was told so once is told so
        for ever. ``auto_ack`` is Determined's.
        """
        if self.cause is not None:
            return True
        self._each_step()
        orders = self._session.coordinator.poll(self._train.units)
        self.cause = orders.leave
        self.checkpoint_due = orders.save
        return self.cause is not None

    def leave(self, cause: Cause) -> None:
        """Record why a trainer's loop ends, which agrees with the other ranks by itself."""
        self.cause = None if cause == "completed" else cause

    def start(self) -> None:
        """Determined's; it listens already."""

    def close(self) -> None:
        """Determined's; leaving ``core.init`` is what counts."""

    def acknowledge_preemption_signal(self) -> None:
        """Determined's; leaving the ``with`` block is what counts."""
