"""Determined's names for how ranks call; here all of them call together."""

from __future__ import annotations

import enum

from hpcdet.errors import UsageError


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
