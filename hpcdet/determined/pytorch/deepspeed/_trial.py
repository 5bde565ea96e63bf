"""``DeepSpeedTrial`` and the loop that trains it."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from hpcdet.determined.pytorch.deepspeed._context import DeepSpeedTrialContext
from hpcdet.errors import ConfigError, UsageError
from hpcdet.integrations import deepspeed as ours
from hpcdet.integrations._steps import StepCounter
from hpcdet.pytorch import Batch, DataLoader, PyTorchCallback, Reducer, TrainUnit
from hpcdet.pytorch.api.callback import start_epoch
from hpcdet.pytorch.metrics.metrics import Tally
from hpcdet.units import Units

Metrics = dict[str, Any]


class DeepSpeedTrial(abc.ABC):
    """Engines, data and one batch of training; ``__init__`` hands engines to the context."""

    @abc.abstractmethod
    def __init__(self, context: DeepSpeedTrialContext) -> None: ...

    @abc.abstractmethod
    def build_training_data_loader(self) -> Any:
        """A ``DataLoader`` of micro-batches."""

    @abc.abstractmethod
    def build_validation_data_loader(self) -> Any:
        """A ``DataLoader`` of micro-batches."""

    @abc.abstractmethod
    def train_batch(
        self, dataloader_iter: Iterator[Any] | None, epoch_idx: int, batch_idx: int
    ) -> Metrics | torch.Tensor:
        """One micro-batch, or all of a step after ``disable_auto_grad_accumulation``."""

    @abc.abstractmethod
    def evaluate_batch(self, dataloader_iter: Iterator[Any] | None, batch_idx: int) -> Metrics:
        """Metrics of one micro-batch of validation."""

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Callbacks by name; the names find their state again. Checkpoints have no hooks."""
        return {}

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        """How ``evaluate_batch``'s metrics are reduced, all alike or by name."""
        return Reducer.AVG

    def evaluate_full_dataset(self, data_loader: Any) -> Metrics:
        """Not with DeepSpeed, whose engines are on all ranks: ``evaluate_batch``."""
        raise NotImplementedError

    def save(self, context: DeepSpeedTrialContext, path: Any) -> None:  # noqa: B027
        """Determined's: engines are saved by the trainer, and one of a trial's own is refused."""

    def load(self, context: DeepSpeedTrialContext, load_path: Any) -> None:  # noqa: B027
        """Same as ``save``."""

    def get_batch_length(self, batch: Any) -> int | None:
        """Determined's; a micro-batch is as long as in DeepSpeed's config."""
        return None


class Trainer:
    """Trains a trial.

    Raises:
        ConfigError: it has no engine, or saves by itself.
    """

    def __init__(self, trial: DeepSpeedTrial, context: DeepSpeedTrialContext) -> None:
        context.get_num_micro_batches_per_slot()
        for method in ("save", "load"):
            if getattr(type(trial), method) is not getattr(DeepSpeedTrial, method):
                raise ConfigError(
                    "engines are saved in hpcdet's checkpoints, not in files of the trial's own",
                    where=f"{type(trial).__name__}.{method}",
                    hint="leave it out",
                )
        self._trial, self._context = trial, context
        self._steps = StepCounter(context.core)
        self._callbacks = trial.build_callbacks()
        self._own: list[Any] = []
        self._records = 0
        self._tally = Tally(lambda _: Reducer.AVG)

    def fit(  # noqa: C901 - Determined's loop, in its order
        self,
        checkpoint_period: TrainUnit | None = None,
        validation_period: TrainUnit | None = None,
        max_length: TrainUnit | None = None,
        reporting_period: TrainUnit = Batch(100),  # noqa: B008
        checkpoint_policy: str = "best",
        latest_checkpoint: str | None = None,
        step_zero_validation: bool = False,
        test_mode: bool = False,
        profiling_enabled: bool = False,
    ) -> None:
        """Train until the searcher's length, else ``max_length``.

        Checkpoints are made by time, at ``checkpoint_period`` and at the end; the trial goes on
        from the newest. ``checkpoint_policy``, ``latest_checkpoint`` and ``profiling_enabled``
        are Determined's and change nothing.

        Raises:
            UsageError: nobody says a length.
            SystemExit: with 0, where the attempt was told to leave and has saved.
        """
        context, steps = self._context, self._steps
        steps.private = lambda: self._own
        if test_mode:
            max_length = Batch(1)
        until = context.core.searcher.until or (max_length.length() if max_length else None)
        if until is None:
            raise UsageError(
                "no length of training is given", where="Trainer.fit", hint="max_length=…"
            )
        state = steps.restore()
        self._load(state)
        data = self._micro_batches()
        for one in self._callbacks.values():
            one.on_trial_startup(context.batches, latest_checkpoint)
            one.on_training_start()
        if step_zero_validation and state is None:
            self._validate()
        units = self._units()
        while not units.reached(until):
            steps.begin(self._state)
            before = units
            if context.is_epoch_start():
                for one in self._callbacks.values():
                    start_epoch(one, context.current_train_epoch())
            self._train(data)
            if context.is_epoch_end():
                for one in self._callbacks.values():
                    one.on_training_epoch_end(context.current_train_epoch())
            context.batches += 1
            units = self._units()
            steps.done(units.batches, records=units.records, epochs=units.epochs)
            stops = any(context.distributed.allgather(context.get_stop_requested()))
            ends = units.reached(until) or stops
            if reporting_period.due(before, units) or ends or steps.at_rung:
                self._report(units)
            asked = validation_period is not None and validation_period.due(before, units)
            if asked or ends or steps.at_rung:
                self._validate()
            if checkpoint_period is not None and checkpoint_period.due(before, units):
                steps.due()
            if stops:
                break
        steps.save(self._state)
        for one in self._callbacks.values():
            one.on_trial_shutdown()

    def _units(self) -> Units:
        batches = self._context.batches
        return Units(batches, self._records, batches // max(1, self._context.epoch_length))

    # -- data ---------------------------------------------------------------------------------

    def _micro_batches(self) -> Iterator[Any]:
        """This rank's micro-batches, behind those that are trained."""
        context, loader = self._context, self._trial.build_training_data_loader()
        micro = context.get_num_micro_batches_per_slot()
        if not isinstance(loader, DataLoader):
            if not context.unchecked_data:
                raise ConfigError(
                    "only hpcdet's DataLoader has a position",
                    where="build_training_data_loader",
                    hint="use determined.pytorch.DataLoader, or call "
                    "context.disable_dataset_reproducibility_checks()",
                )
            context.epoch_length = max(1, len(loader) // micro)
            return _without_end(loader)
        world = context.distributed.size
        order = loader.order(context.core.seed, loader.batch_size * world)
        each = -(-len(loader.dataset) // (loader.batch_size * world))
        context.epoch_length = max(1, each // micro)
        parts = loader.training(order, context.core.seed, self._records, context.mine, world)
        return self._counted(parts)

    def _counted(self, parts: Iterator[Any]) -> Iterator[Any]:
        for part, batch in parts:
            self._records += part.records
            yield batch

    # -- a batch ------------------------------------------------------------------------------

    def _train(self, data: Iterator[Any]) -> None:
        context = self._context
        for model in context.models:
            model.train()
        micro = 1 if context.manual_accumulation else context.get_num_micro_batches_per_slot()
        for _ in range(micro):
            got = self._trial.train_batch(data, context.current_train_epoch(), context.batches)
            self._tally.add(got if isinstance(got, Mapping) else {"loss": got}, 1)

    def _report(self, units: Units) -> None:
        core = self._context.core
        metrics = self._tally.reduced(core.session.peers)
        metrics |= self._context.reducers.reduced(training=True)
        self._tally.clear()
        self._context.reducers.reset(training=True)
        core.train.report_training_metrics(units.batches, metrics)
        for one in self._callbacks.values():
            one.on_training_workload_end(metrics, [])

    def _validate(self) -> None:
        context, trial, steps = self._context, self._trial, self._steps
        steps.validating()
        kinds = trial.evaluation_reducer()
        tally = Tally(
            lambda name: kinds.get(name, Reducer.AVG) if isinstance(kinds, dict) else kinds
        )
        context.reducers.reset(training=False)
        loader = trial.build_validation_data_loader()
        for model in context.models:
            model.eval()
        for one in self._callbacks.values():
            one.on_validation_start()
            one.on_validation_epoch_start()
        outputs: list[Any] = []
        data: Iterator[Any]
        with torch.no_grad():
            if isinstance(loader, DataLoader):
                world = context.distributed.size
                count = -(-len(loader.dataset) // (loader.batch_size * world))
                parts = loader.validation(context.core.seed, context.mine, world)
                data = (batch for _, batch in parts)
            else:
                count, data = len(loader), _without_end(loader)
            for index in range(count):
                outputs.append(trial.evaluate_batch(data, index))
                tally.add(outputs[-1], 1)
        for one in self._callbacks.values():
            one.on_validation_epoch_end(outputs)
        metrics: Metrics = tally.reduced(context.core.session.peers)
        metrics |= context.reducers.reduced(training=False)
        for one in self._callbacks.values():
            one.on_validation_end(metrics)
        steps.validated()
        context.core.train.report_validation_metrics(context.batches, metrics)

    # -- the state ----------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        core = self._context.core
        parts = [ours.capture(core, model) for model in self._context.models]
        tally = core.distributed.allgather(self._tally.state())
        self._own = [own for _, own in parts]
        callbacks = {name: one.state_dict() for name, one in self._callbacks.items()}
        return {
            "engines": [state for state, _ in parts],
            "batches": self._context.batches,
            "records": self._records,
            "tallies": tally,
            "callbacks": core.distributed.broadcast(callbacks),
        }

    def _load(self, state: Mapping[str, Any] | None) -> None:
        if state is None:
            return
        context, core = self._context, self._context.core
        own = core.checkpoint.latest_private() or [{} for _ in context.models]
        for model, engine, of_rank in zip(context.models, state["engines"], own, strict=True):
            ours.put_back(core, model, engine, of_rank)
        context.batches, self._records = state["batches"], state["records"]
        if len(state["tallies"]) == context.distributed.size:
            self._tally.load(state["tallies"][context.distributed.rank], context.device)
        for name, one in self._callbacks.items():
            if name in state["callbacks"]:
                one.load_state_dict(state["callbacks"][name])


def _without_end(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader
