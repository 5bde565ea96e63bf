"""``PyTorchCallback``: hooks into training; its state travels with the checkpoints."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


class PyTorchCallback:
    """Override what is needed. ``state_dict`` is saved and given back after a restart.

    Where hooks are called on, unless said otherwise: every rank. Those of a validation find the
    models in ``eval`` mode, without gradients (``torch.enable_grad`` brings them back).
    """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """The attempt begins, at this batch, from this checkpoint; before data are loaded."""

    def on_trial_shutdown(self) -> None:
        """The attempt ends, for whatever reason but an error."""

    def on_training_start(self) -> None:
        """Before the first batch of this attempt."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Before the first batch of an epoch; not again when an attempt goes on inside one."""

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """After the last batch of an epoch."""

    def on_training_workload_end(
        self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        """After each report of training metrics; ``batch_metrics`` is empty (kept nowhere)."""

    def on_validation_start(self) -> None:
        """Before a validation. If that is interrupted, the callback's state is put back."""

    def on_validation_epoch_start(self) -> None:
        """Before the first batch of a validation."""

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """After the last batch, before reducers are asked.

        ``outputs``: what ``evaluate_batch`` returned on this rank.
        """

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """After a validation, with the reduced metrics, on every rank."""

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any] | None) -> None:
        """Before a state is loaded; ``checkpoint`` is the shared state."""

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Before a state is saved; what is put under new keys is saved, too."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Old name of ``on_checkpoint_write_end``."""

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """On rank 0: after a checkpoint is durable. More files may be put beside its own."""

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """After a checkpoint is durable and known by its name."""

    def state_dict(self) -> dict[str, Any]:
        """State to be saved: plain values, arrays and tensors."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take saved state back."""


def start_epoch(callback: PyTorchCallback, epoch: int) -> None:
    """``on_training_epoch_start``, which took no argument once."""
    told = callback.on_training_epoch_start
    told(*((epoch,) if takes(told, 1) else ()))


def takes(method: Callable[..., Any], arguments: int) -> bool:
    """Whether a method takes so many positional arguments; ``evaluate_batch(batch)`` takes one."""
    parameters = inspect.signature(method).parameters.values()
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return True
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in positional for one in parameters) >= arguments
