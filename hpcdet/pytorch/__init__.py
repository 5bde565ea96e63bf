"""Determined's PyTorch API: a ``PyTorchTrial`` says what to train, the ``Trainer`` does the rest.

    class MyTrial(pytorch.PyTorchTrial): ...

    with pytorch.init() as context:
        pytorch.Trainer(MyTrial(context), context).fit(max_length=pytorch.Batch(1000))

``entrypoint: model_def:MyTrial`` needs no main. The same script runs alone.
"""

from hpcdet.pytorch import samplers
from hpcdet.pytorch._callback import PyTorchCallback
from hpcdet.pytorch._context import PyTorchTrialContext
from hpcdet.pytorch._data import DataLoader, TorchData, data_length, to_device
from hpcdet.pytorch._init import init
from hpcdet.pytorch._lr import LRScheduler
from hpcdet.pytorch._reducers import MetricReducer, Reducer
from hpcdet.pytorch._trainer import Trainer
from hpcdet.pytorch._trial import PyTorchTrial
from hpcdet.pytorch._units import Batch, Epoch, Record, TrainUnit
from hpcdet.train.attempt.verdicts import InvalidHP

__all__ = [
    "Batch",
    "DataLoader",
    "Epoch",
    "InvalidHP",
    "LRScheduler",
    "MetricReducer",
    "PyTorchCallback",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Record",
    "Reducer",
    "TorchData",
    "TrainUnit",
    "Trainer",
    "data_length",
    "init",
    "samplers",
    "to_device",
]
