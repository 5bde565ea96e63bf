"""Determined's PyTorch API: a ``PyTorchTrial`` defines the training, the ``Trainer`` runs it.

    class MyTrial(pytorch.PyTorchTrial): ...

    with pytorch.init() as context:
        pytorch.Trainer(MyTrial(context), context).fit(max_length=pytorch.Batch(1000))

``entrypoint: model_def:MyTrial`` needs no main. The same script runs alone.
"""

from hpcdet.core import InvalidHP
from hpcdet.data.source_lanes import Lane, remove_lanes
from hpcdet.data.sourced import Sourced
from hpcdet.pytorch import samplers
from hpcdet.pytorch.api.callback import PyTorchCallback
from hpcdet.pytorch.api.context import PyTorchTrialContext
from hpcdet.pytorch.api.data_loader import DataLoader, TorchData, data_length, to_device
from hpcdet.pytorch.api.lr_scheduler import LRScheduler
from hpcdet.pytorch.api.periods import Batch, Epoch, Record, TrainUnit
from hpcdet.pytorch.api.trial import PyTorchTrial
from hpcdet.pytorch.init_context import init
from hpcdet.pytorch.metrics.reducers import MetricReducer, Reducer
from hpcdet.pytorch.trainer import Trainer

__all__ = [
    "Batch",
    "DataLoader",
    "Epoch",
    "InvalidHP",
    "LRScheduler",
    "Lane",
    "MetricReducer",
    "PyTorchCallback",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Record",
    "Reducer",
    "Sourced",
    "TorchData",
    "TrainUnit",
    "Trainer",
    "data_length",
    "init",
    "remove_lanes",
    "samplers",
    "to_device",
]
