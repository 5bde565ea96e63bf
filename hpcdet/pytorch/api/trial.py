"""``PyTorchTrial``: what a user writes."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import torch

from hpcdet.pytorch.api.callback import PyTorchCallback
from hpcdet.pytorch.api.data_loader import DataLoader, TorchData
from hpcdet.pytorch.metrics.reducers import Reducer

if TYPE_CHECKING:
    from hpcdet.pytorch.api.context import PyTorchTrialContext

Metrics = dict[str, Any]


class PyTorchTrial(abc.ABC):
    """Model, data and one step of training.

    ``__init__`` makes models, optimizers and schedulers and hands them to ``context.wrap_*``.
    Every rank runs all methods, unless said otherwise.
    """

    @abc.abstractmethod
    def __init__(self, context: PyTorchTrialContext) -> None: ...

    @abc.abstractmethod
    def build_training_data_loader(self) -> DataLoader:
        """The training data."""

    @abc.abstractmethod
    def build_validation_data_loader(self) -> DataLoader:
        """The validation data."""

    @abc.abstractmethod
    def train_batch(
        self, batch: TorchData, epoch_idx: int, batch_idx: int
    ) -> Metrics | float | Any:
        """One step on this rank's share of a global batch (on its device).

        Calls ``context.backward(loss)`` and ``context.step_optimizer(optimizer)``. ``loss`` is
        the mean over the share.

        Returns:
            Scalar metrics (tensors or numbers), or the loss alone.
        """

    def losses(self, batch: TorchData) -> torch.Tensor:
        """The loss of each sample of a training batch, or of a part of one: a tensor[samples].

        Optional. Under a policy, probes ask it beside ``train_batch``: it shows more of what
        couples samples. It may be called any number of times.
        """
        raise NotImplementedError

    def evaluate_batch(self, batch: TorchData, batch_idx: int) -> Metrics:
        """Metrics of this rank's share of a validation batch, reduced by ``evaluation_reducer``.

        Must not talk to other ranks.
        """
        raise NotImplementedError

    def evaluate_full_dataset(self, data_loader: Any) -> Metrics:
        """Instead of ``evaluate_batch``: all metrics from all validation data, on rank 0 only."""
        raise NotImplementedError

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        """How ``evaluate_batch``'s metrics are reduced, all alike or by name (default ``AVG``)."""
        return Reducer.AVG

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Callbacks by name; the names find their state again."""
        return {}

    def get_batch_length(self, batch: TorchData) -> int | None:
        """Samples in a batch that weighs its metrics; None: as many as the loader took."""
        return None
