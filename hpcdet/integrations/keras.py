"""Keras 3 in an experiment, with any of its backends.

    with core.init() as context:
        model.compile(...)
        data = keras.Loader(context, digits, batch=64)         # a torch data set
        keras.fit(context, model, data, validation_data=(x, y))

Variables of the model (weights, statistics, seeds), the optimizer and the running metrics are in
hpcdet's checkpoints. With ``Loader`` a trial goes on in the middle of an epoch where it was; with
data of Keras's own, an epoch that was interrupted is begun anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from hpcdet import core
from hpcdet.errors import IntegrityError
from hpcdet.integrations._loader import Loader
from hpcdet.integrations._ranks import one_only
from hpcdet.integrations._rates import rate
from hpcdet.integrations._steps import StepCounter

__all__ = ["Callback", "Loader", "fit"]

_NO_END = 1 << 30


def fit(context: core.Context, model: Any, data: Any, *, epochs: int = 1, **own: Any) -> Any:
    """``model.fit``, going on from the newest checkpoint; what it returns.

    Args:
        data: a ``Loader``, or whatever ``fit`` takes as ``x``.
        epochs: where the searcher says no length.
        own: arguments of ``fit``: ``validation_data``, ``callbacks``, ``verbose``, …

    Raises:
        SystemExit: with 0, where the attempt was told to leave and has saved.
        ConfigError: there are several ranks.
    """
    callback = Callback(context, model, data if isinstance(data, Loader) else None)
    with warnings.catch_warnings():
        # the rest of an epoch that was interrupted is shorter than Keras expects
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        return model.fit(
            data,
            epochs=_NO_END if context.searcher.until is not None else epochs,
            initial_epoch=callback.epoch,
            callbacks=[*own.pop("callbacks", []), callback],
            **{"verbose": 2 if context.distributed.rank == 0 else 0, **own},
        )


class Callback(keras.callbacks.Callback):
    """Metrics, preemption, checkpoints; ``fit`` adds it.

    For a call of ``model.fit`` of your own; it restores the model when it is made.

    Args:
        model: compiled and built.
        loader: what it trains on, if that is a ``Loader``.

    Attributes:
        epoch: for ``fit``'s ``initial_epoch``.
    """

    def __init__(self, context: core.Context, model: Any, loader: Loader | None = None) -> None:
        super().__init__()
        one_only(context, "Keras's fit")
        self._context = context
        self._loader = loader
        self._steps = StepCounter(context)
        self._batches = self._records = 0  # of the whole trial
        self.epoch = self._behind = 0  # batches behind in this epoch
        self._held: list[Any] | None = None
        self._trained = model
        model.optimizer.build(model.trainable_variables)
        if (state := self._steps.restore()) is not None:
            self._load(state)

    # -- Keras's hooks ------------------------------------------------------------------------

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch != self.epoch:
            self.epoch, self._behind = epoch, 0
        if self._loader is not None:
            self._loader.position.set(epoch, self._behind)
        elif self._behind:  # begun anew
            self._behind, self._held = 0, None
        if self._held is not None:
            _assign(_metric_variables(self._trained), self._held, "metrics")
            self._held = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._steps.begin(self._state)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batches += 1
        self._behind += 1
        if self._loader is not None:
            self._records += self._loader.batch
        whole = self._loader is not None and self._behind == len(self._loader)
        period = self._context.session.config.scheduling_unit
        over = self._steps.done(
            self._batches, records=self._records, epochs=self.epoch + int(whole)
        )
        if over:
            self._trained.stop_training = True
            if not whole:  # validation begins them anew
                self._held = _values(_metric_variables(self._trained))
        if self._batches % period == 0:
            self._context.train.report_training_metrics(self._batches, _numbers(logs or {}))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        values = _numbers(logs or {})
        validated = {name: one for name, one in values.items() if name.startswith("val_")}
        trained = {name: one for name, one in values.items() if name not in validated}
        self._context.train.report_training_metrics(self._batches, trained)
        if validated:
            self._context.train.report_validation_metrics(self._batches, validated)
        if self._held is None:  # not stopped within it
            self.epoch, self._behind = epoch + 1, 0
            if self._steps.turned(self.epoch):
                self._trained.stop_training = True

    def on_test_begin(self, logs: Any = None) -> None:
        self._steps.validating()

    def on_test_end(self, logs: Any = None) -> None:
        self._steps.validated()

    def on_train_end(self, logs: Any = None) -> None:
        self._steps.save(self._state)

    def save_soon(self) -> None:
        """Make a checkpoint before the next step, or at the end of training."""
        self._steps.due()

    # -- the state ----------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        model = self._trained
        return {
            "model": _values(_own_variables(model)),
            "optimizer": _values(model.optimizer.variables),
            "metrics": self._held or _values(_metric_variables(model)),
            "position": {
                "batches": self._batches,
                "records": self._records,
                "epoch": self.epoch,
                "behind": self._behind,
            },
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        position = state["position"]
        self._batches, self._records = position["batches"], position["records"]
        self.epoch, self._behind = position["epoch"], position["behind"]
        self._held = state["metrics"]
        _assign(_own_variables(self._trained), state["model"], "model")
        optimizer = self._trained.optimizer
        own = rate(optimizer) if self._steps.inherited else None
        _assign(optimizer.variables, state["optimizer"], "optimizer", own)


def _own_variables(model: Any) -> list[Any]:
    """Weights, statistics and seeds."""
    metrics = {id(one) for one in _metric_variables(model)}
    return [one for one in model.variables if id(one) not in metrics]


def _metric_variables(model: Any) -> list[Any]:
    return [one for metric in model.metrics for one in metric.variables]


def _values(variables: Any) -> list[Any]:
    return [np.array(keras.ops.convert_to_numpy(one)) for one in variables]


def _assign(variables: Any, values: list[Any], what: str, own: Any = None) -> None:
    """Put values back into variables, in their order, but for ``own``.

    Raises:
        IntegrityError: their number or shapes are others.
    """
    shapes = [tuple(one.shape) for one in variables]
    if shapes != [value.shape for value in values]:
        raise IntegrityError(
            f"the checkpoint is of another {what}: {_first_other(shapes, values)}",
            where="keras.Callback",
            hint="build the model as it was when the trial began",
        )
    for one, value in zip(variables, values, strict=True):
        if one is not own:
            one.assign(value)


def _first_other(shapes: list[tuple[int, ...]], values: list[Any]) -> str:
    for number, (shape, value) in enumerate(zip(shapes, values, strict=False)):
        if shape != value.shape:
            return f"variable {number} has shape {value.shape} there and {shape} here"
    return f"{len(values)} variables there, {len(shapes)} here"


def _numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in logs.items()}
