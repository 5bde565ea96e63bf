"""``determined.keras``: Keras 3, on one rank, by ``hpcdet.integrations.keras``."""

from __future__ import annotations

from typing import Any

import keras

from hpcdet import core
from hpcdet.determined._absent import absent
from hpcdet.integrations.keras import Callback

__all__ = ["DeterminedCallback", "TensorBoard"]


class DeterminedCallback(keras.callbacks.Callback):
    """Reports, checkpoints, and leaving when that is asked for, for ``model.fit``.

    Model, optimizer and running metrics are in hpcdet's checkpoints, the newest of which the
    trial goes on from, whatever ``checkpoint`` names; ``fit``'s ``initial_epoch`` does not
    count. An epoch that was interrupted begins anew: ``hpcdet.integrations.keras`` has a loader
    that goes on within it. Metrics of a validation have Keras's names, ``val_loss``, ….

    Args:
        core_context: of ``core.init``.
        checkpoint, continue_id: Determined's; the trial knows both.
        train_metrics_report_period: Determined's; ``scheduling_unit`` and each epoch count.
        checkpoint_epochs: epochs between two checkpoints, beside those by time; 0: none.

    Raises:
        ConfigError: there are several ranks.
    """

    def __init__(
        self,
        core_context: core.Context,
        checkpoint: str | None,
        continue_id: int | str,
        *,
        train_metrics_report_period: int | str = "epoch",
        checkpoint_epochs: int = 1,
    ) -> None:
        super().__init__()
        self._core = core_context
        self._every = checkpoint_epochs
        self._inner: Callback | None = None

    @property
    def _at_work(self) -> Callback:
        assert self._inner is not None, "Keras calls on_train_begin before"
        return self._inner

    def on_train_begin(self, logs: Any = None) -> None:
        inner = self._inner = Callback(self._core, self.model)
        inner.set_params(self.params)
        inner.set_model(self.model)
        self.model._initial_epoch = inner.epoch  # as Keras's own BackupAndRestore has it
        inner.on_train_begin(logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._at_work.on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._at_work.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._at_work.on_train_batch_end(batch, logs)

    def on_test_begin(self, logs: Any = None) -> None:
        if self._inner is not None:  # else `model.evaluate`, on its own
            self._inner.on_test_begin(logs)

    def on_test_end(self, logs: Any = None) -> None:
        if self._inner is not None:
            self._inner.on_test_end(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._at_work.on_epoch_end(epoch, logs)
        if self._every > 0 and (epoch + 1) % self._every == 0:
            self._at_work.save_soon()

    def on_train_end(self, logs: Any = None) -> None:
        self._at_work.on_train_end(logs)
        self._inner = None


class TensorBoard(keras.callbacks.TensorBoard):
    """Keras's, writing into the trial's folder whatever ``log_dir`` is."""

    def __init__(self, core_context: core.Context, *args: Any, **options: Any) -> None:
        options.pop("log_dir", None)
        super().__init__(str(core_context.train.get_tensorboard_path()), *args[1:], **options)


def __getattr__(name: str) -> Any:
    absent(__name__, name)
