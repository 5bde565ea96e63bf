"""The Core API: the loop stays with the user, in any framework.

    from hpcdet import core

    with core.init() as context:
        state = context.checkpoint.latest() or {"model": model, "step": 0}
        for step in range(state["step"], context.searcher.length(1000)):
            ...
            context.train.report_training_metrics(step + 1, {"loss": loss})
            if context.preempt.should_preempt():
                context.checkpoint.save(state, step + 1)

Return:
Outside hpcdet the same script runs alone, with the same calls.
"""

from hpcdet.core._checkpoint import CheckpointContext
from hpcdet.core._context import Context, ExperimentalCoreContext, conclude, init
from hpcdet.core._distributed import DistributedContext
from hpcdet.core._preempt import (
    DownloadMode,
    PreemptContext,
    PreemptMode,
    SearcherMode,
    TensorboardMode,
    Unit,
)
from hpcdet.core._profiler import ProfilerContext
from hpcdet.core._searcher import SearcherContext, SearcherOperation
from hpcdet.core._train import EarlyExitReason, TrainContext
from hpcdet.core._virtual import VirtualContext
from hpcdet.train.attempt.verdicts import InvalidHP

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
    "VirtualContext",
    "conclude",
    "init",
]
