"""``determined.pytorch``: hpcdet's own, which has its names, and what only Determined's has."""

from __future__ import annotations

import importlib
from typing import Any

from hpcdet.determined._absent import absent
from hpcdet.determined.pytorch import samplers
from hpcdet.determined.pytorch._load import CheckpointLoadContext, load_trial_from_checkpoint_path
from hpcdet.determined.pytorch.samplers import adapt_batch_sampler
from hpcdet.pytorch import (
    Batch,
    DataLoader,
    Epoch,
    LRScheduler,
    MetricReducer,
    PyTorchCallback,
    PyTorchTrial,
    PyTorchTrialContext,
    Record,
    Reducer,
    TorchData,
    Trainer,
    TrainUnit,
    data_length,
    init,
    to_device,
)
from hpcdet.pytorch.api.context import Experimental as PyTorchExperimentalContext

__all__ = [
    "Batch",
    "CheckpointLoadContext",
    "DataLoader",
    "Epoch",
    "LRScheduler",
    "MetricReducer",
    "PyTorchCallback",
    "PyTorchExperimentalContext",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Record",
    "Reducer",
    "TorchData",
    "TrainUnit",
    "Trainer",
    "adapt_batch_sampler",
    "data_length",
    "init",
    "load_trial_from_checkpoint_path",
    "samplers",
    "to_device",
]


def __getattr__(name: str) -> Any:
    if name in ("deepspeed", "experimental"):
        return importlib.import_module(f"{__name__}.{name}")
    absent(__name__, name)
