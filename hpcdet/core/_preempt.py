"""``context.preempt``, and Determined's names for the ranks that call; here all call together."""

from __future__ import annotations

import enum
from collections.abc import Callable

from hpcdet.core._train import TrainContext
from hpcdet.errors import UsageError
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


class PreemptMode(enum.Enum):
    """The ranks that call ``should_preempt``: here all, after every step (``WorkersAskChief``)."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"
    WorkersAskMaster = "WORKERS_ASK_MASTER"


class DownloadMode(enum.Enum):
    """The ranks that download a checkpoint: here each reads for itself, from the shared folder."""

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class TensorboardMode(enum.Enum):
    """The ranks that handle files for TensorBoard: here none; they lie in the trial's folder."""

    AUTO = "AUTO"
    MANUAL = "MANUAL"


class SearcherMode(enum.Enum):
    """The ranks that ask the searcher: here every rank knows the length."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"


class Unit(enum.Enum):
    """Units of a length."""

    EPOCHS = "EPOCHS"
    RECORDS = "RECORDS"
    BATCHES = "BATCHES"


def check(mode: object, world: int) -> None:
    """Refuse a mode in which only some of several ranks ask.

    Raises:
        UsageError: they agree on when to leave, so that all of them must ask.
    """
    if world > 1 and mode in (PreemptMode.ChiefOnly, PreemptMode.WorkersAskMaster):
        raise UsageError(
            f"{mode} cannot be kept by {world} ranks: they agree on the step to leave at",
            where="core.init(preempt_mode=…)",
            hint="leave preempt_mode out, and call should_preempt on every rank after every step",
        )
