"""``determined.core``: hpcdet's own Core API, which has its names."""

from __future__ import annotations

import importlib
from typing import Any

from hpcdet import core
from hpcdet.core import (
    CheckpointContext,
    Context,
    DownloadMode,
    EarlyExitReason,
    ExperimentalCoreContext,
    InvalidHP,
    PreemptContext,
    PreemptMode,
    ProfilerContext,
    SearcherContext,
    SearcherMode,
    SearcherOperation,
    TensorboardMode,
    TrainContext,
    Unit,
    init,
)
from hpcdet.determined._absent import absent
from hpcdet.errors import ConfigError, UsageError
from hpcdet.process.ranks import Ranks

__all__ = [
    "CheckpointContext",
    "Context",
    "DistributedContext",
    "DownloadMode",
    "EarlyExitReason",
    "ExperimentalCoreContext",
    "InvalidHP",
    "PreemptContext",
    "PreemptMode",
    "ProfilerContext",
    "SearcherContext",
    "SearcherMode",
    "SearcherOperation",
    "TensorboardMode",
    "TrainContext",
    "Unit",
    "init",
]


class DistributedContext(core.DistributedContext):
    """hpcdet's, with what Determined has for TensorFlow."""

    @classmethod
    def from_tf_config(cls) -> tuple[DistributedContext | None, Any]:
        """The ranks and TensorFlow's strategy: with TensorFlow one rank trains.

        Returns:
            None, as there for one process, and ``tf.distribute.get_strategy()``.

        Raises:
            UsageError: there are several ranks.
            ConfigError: TensorFlow is not installed.
        """
        world = Ranks.from_environment().world
        if world > 1:
            raise UsageError(
                f"with TensorFlow one rank trains, and there are {world}",
                where="DistributedContext.from_tf_config",
                hint="set resources.slots_per_trial to 1",
            )
        try:
            tensorflow = importlib.import_module("tensorflow")
        except ImportError as error:
            raise ConfigError(
                f"tensorflow cannot be imported: {error}",
                where="DistributedContext.from_tf_config",
                hint="pip install 'hpcdet[tensorflow]'",
            ) from error
        return None, tensorflow.distribute.get_strategy()


def __getattr__(name: str) -> Any:
    absent(__name__, name)
