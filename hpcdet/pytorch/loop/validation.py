"""One validation: all data, all ranks; it can be interrupted and then leaves no trace."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from hpcdet.data import rng
from hpcdet.data.sample_order import Slice
from hpcdet.data.sourced import SourceTable
from hpcdet.errors import ConfigError
from hpcdet.pytorch.api.callback import PyTorchCallback, takes
from hpcdet.pytorch.api.context import PyTorchTrialContext
from hpcdet.pytorch.api.data_loader import DataLoader
from hpcdet.pytorch.api.trial import PyTorchTrial
from hpcdet.pytorch.loop.feeds import Feed, passes, whole
from hpcdet.pytorch.metrics.metrics import Tally, named
from hpcdet.pytorch.metrics.reducers import Reducer

if TYPE_CHECKING:  # of trials under a policy only
    from hpcdet.guard.keyed_records import Losses
    from hpcdet.pytorch.loop.record_losses import RecordLosses

Callbacks = Mapping[str, PyTorchCallback]


class Validator:
    """Validates a trial.

    Validation draws from the same random generators as training; afterwards they are put back,
    so that training goes on as if it had not happened, and one that was interrupted and runs
    again has the metrics it would have had.

    Args:
        interrupted: asked after each batch, on every rank equally often: must this stop?

    Attributes:
        losses: of twins and canaries at the last validation; None: there are none.
    """

    def __init__(
        self,
        trial: PyTorchTrial,
        context: PyTorchTrialContext,
        callbacks: Callbacks,
        interrupted: Callable[[], bool],
    ) -> None:
        self._trial = trial
        self._context = context
        self._callbacks = callbacks
        self._interrupted = interrupted
        self._data: Any = None
        self._sources: SourceTable | None = None
        self._tested: RecordLosses | None = None
        self.losses: Losses | None = None
        self._full = overrides(trial, "evaluate_full_dataset")
        self._numbered = takes(trial.evaluate_batch, 2)
        if self._full == overrides(trial, "evaluate_batch"):
            raise ConfigError(
                "define one of evaluate_batch and evaluate_full_dataset",
                where=type(trial).__name__,
            )

    def build(self, feed: Feed) -> None:
        """Make the data, once. ``feed``: of the training, which twins and canaries are of."""
        self._data = self._trial.build_validation_data_loader()
        known = isinstance(self._data, DataLoader) and self._context.learning.guard is not None
        self._sources = self._data.sources() if known else None
        state = self._context.core.governance.state
        if state is not None and state.tests:
            from hpcdet.pytorch.loop.record_losses import RecordLosses

            self._tested = RecordLosses(
                self._trial, self._context, feed, state.tests, self._interrupted
            )

    def run(self) -> dict[str, Any] | None:
        """The metrics, on all ranks; None if it was interrupted."""
        generators = self._context.core.session.registered.generators
        before = rng.capture(generators)
        states = {name: copy.deepcopy(one.state_dict()) for name, one in self._callbacks.items()}
        try:
            with _evaluating(self._context):
                metrics = self._validate()
        finally:
            rng.restore(before, generators)
        if metrics is None:
            for name, callback in self._callbacks.items():
                callback.load_state_dict(states[name])
        return metrics

    def _validate(self) -> dict[str, Any] | None:
        context, callbacks = self._context, self._callbacks.values()
        context.reducers.reset(training=False)
        for callback in callbacks:
            callback.on_validation_start()
            callback.on_validation_epoch_start()
        outputs: list[Any] = []
        with context.reducer.silence(), context.learning.precision():
            metrics = self._whole() if self._full else self._batches(outputs)
            measured = metrics is not None and self._measured()
        if metrics is None or not measured:
            return None
        for callback in callbacks:
            callback.on_validation_epoch_end(outputs)
        metrics |= context.reducers.reduced(training=False)
        context.reducers.reset(training=False)
        for callback in callbacks:
            callback.on_validation_end(metrics)
        return metrics

    def _measured(self) -> bool:
        """Measure twins and canaries, if there are any; False if it was interrupted."""
        if self._tested is None:
            return True
        self.losses = self._tested.run()
        return self.losses is not None

    def _batches(self, outputs: list[Any]) -> dict[str, Any] | None:
        context = self._context
        kinds = self._trial.evaluation_reducer()

        def kind(name: str) -> Reducer:
            return kinds.get(name, Reducer.AVG) if isinstance(kinds, dict) else kinds

        mine, batches = context.mine, context.core.train.units.batches
        tallies = {share: Tally(kind) for share in mine}
        for number, (part, batch) in enumerate(passes(self._data, context)):
            index, place = divmod(number, len(mine))
            share = mine[place]
            # where ranks share the parameters, one without samples must take part all the same
            if part.weight or context.reducer.shares_parameters:
                with context.division.evaluating(share, batches, index), self._whose(part):
                    ready = context.ready(batch)
                    position = (index,) if self._numbered else ()
                    found = named(self._trial.evaluate_batch(ready, *position))
            if part.weight:
                length = self._trial.get_batch_length(batch)
                tallies[share].add(found, part.weight if length is None else length)
                outputs.append(found)
            if share == mine[-1] and self._interrupted():
                return None
        return dict(context.division.validated(tallies, batches))

    def _whose(self, part: Slice) -> contextlib.AbstractContextManager[None]:
        """Around the evaluation of a batch: lanes are on for rows whose sources the data say."""
        guard = self._context.learning.guard
        if guard is None:
            return contextlib.nullcontext()
        return guard.evaluated(self._sources and self._sources.at(part.indices))

    def _whole(self) -> dict[str, Any]:
        context = self._context
        metrics: dict[str, Any] = {}
        if context.core.session.ranks.chief or context.reducer.shares_parameters:
            metrics = named(self._trial.evaluate_full_dataset(whole(self._data, context)))
        return context.core.session.peers.broadcast(metrics, "evaluate_full_dataset")


@contextlib.contextmanager
def _evaluating(context: PyTorchTrialContext) -> Iterator[None]:
    """Models in ``eval`` mode, without gradients."""
    modes = [(module, module.training) for one in context.models for module in one.modules()]
    for model in context.models:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def overrides(trial: PyTorchTrial, method: str) -> bool:
    """Whether a trial's class defines a method itself."""
    return getattr(type(trial), method) is not getattr(PyTorchTrial, method)
