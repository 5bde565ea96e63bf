"""The training loop.

What happens at the end of each batch, in this order: training metrics are reported if they are
due; all ranks agree whether to leave; a validation, if one is due; a checkpoint, if one is due.
The state saved at any of these points says what of it is still owed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch.distributed as dist

from hpcdet.checkpoint import Loaded, spread
from hpcdet.errors import ConfigError
from hpcdet.pytorch import _gradients, _state
from hpcdet.pytorch._callback import PyTorchCallback, start_epoch
from hpcdet.pytorch._context import GLOBAL_BATCH, PyTorchTrialContext, Step
from hpcdet.pytorch._feeds import Feed, feed_of
from hpcdet.pytorch._metrics import Tally, named
from hpcdet.pytorch._reducers import Reducer
from hpcdet.pytorch._traces import Traces
from hpcdet.pytorch._trial import PyTorchTrial
from hpcdet.pytorch._units import TrainUnit
from hpcdet.pytorch._unregistered import unregistered
from hpcdet.pytorch._validation import Validator
from hpcdet.store.records import value
from hpcdet.train import rng
from hpcdet.train.agreement import Cause
from hpcdet.train.order import Slice
from hpcdet.train.session import Units
from hpcdet.train.tracking import finite
from hpcdet.units import Length


@dataclass(frozen=True)
class Plan:
    """What ``fit`` was asked for."""

    checkpoint_period: TrainUnit | None
    validation_period: TrainUnit | None
    reporting_period: TrainUnit
    max_length: TrainUnit | None
    checkpoint_policy: Literal["best", "all", "none"]
    step_zero_validation: bool
    test_mode: bool


@dataclass
class Progress:
    """How far the trial is, beside its models: a part of the saved state.

    Attributes:
        owed: the validation due here has not been finished.
        best: best value of the searcher's metric so far.
    """

    units: Units = dataclasses.field(default_factory=Units)
    owed: bool = False
    best: float | None = None

    def encode(self) -> dict[str, Any]:
        return {"units": dataclasses.asdict(self.units), "owed": self.owed, "best": self.best}

    @staticmethod
    def decode(state: dict[str, Any]) -> Progress:
        return Progress(Units(**state["units"]), state["owed"], state["best"])


class Loop:
    """Runs one attempt of a ``PyTorchTrial``; see ``Trainer.fit``."""

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext, plan: Plan) -> None:
        self._trial = trial
        self._context = context
        self._plan = plan
        self._core = context.core
        self._session = context.core.session
        self._progress = Progress()
        if context.elastic is not None:
            context.elastic.reducers.shared += [trial, *context.models]
        self._callbacks = trial.build_callbacks()
        self._tally = Tally(lambda _name: Reducer.AVG)
        self._validator = Validator(trial, context, self._callbacks, self._poll_validation)
        self._feed: Feed
        self._traces = Traces(self._session)
        self._saved_at = -1
        self._changed = True
        self._save_due = False
        self._leave: Cause | None = None

    # -- the whole ---------------------------------------------------------------------------

    def run(self) -> None:
        """Train, then say how it ended."""
        if self._until() is None:
            raise ConfigError(
                "nobody says how long to train",
                where="Trainer.fit",
                hint="give searcher.max_length in the config, or fit(max_length=Batch(…))",
            )
        with contextlib.ExitStack() as callbacks:
            self._begin(callbacks)
            cause = self._train()
            self._traces.close()
            self._session.keeper.drain()
            self._announce()
            self._core.preempt.cause = None if cause == "completed" else cause
            self._core.train.units = self._progress.units
        self._session.finish(cause, self._progress.units)

    def _begin(self, started: contextlib.ExitStack) -> None:
        """Everything before the first batch.

        Data are made while all ranks' random numbers are still alike, as in every attempt: a
        split that is drawn comes out the same.

        Args:
            started: what is to be called at the end, however it comes.
        """
        sharded = self._context.sharded
        weights = [] if sharded else [one.state_dict() for one in self._context.plain_models()]
        loaded = self._session.keeper.restore(sharded=sharded, into={"models": weights})
        if loaded is not None:
            self._progress = Progress.decode(loaded.shared["progress"])
            self._changed = False
        units = self._progress.units
        self._core.first_batch, self._core.train.units = units.batches, units
        self._session.begin(loaded.manifest if loaded else None, units)
        name = loaded.manifest.name if loaded else None
        for callback in self._callbacks.values():
            callback.on_trial_startup(units.batches, name)
            started.callback(_shut_down, callback)
        data = self._trial.build_training_data_loader()
        self._feed = feed_of(data, self._context, self._global_batch(data))
        self._validator.build()
        self._check_registered()
        if loaded is not None:
            self._check(loaded, getattr(data, "batch_size", None))
            self._load(loaded)
        for callback in self._callbacks.values():
            callback.on_training_start()
        self._begin_random(loaded)
        if loaded is None:
            self._progress.owed = self._plan.step_zero_validation
            self._save((), must=True)

    def _check_registered(self) -> None:
        """What a trial has and no checkpoint would: said, or refused, as the config wants it."""
        found = unregistered(self._trial, self._context, self._callbacks)
        if not found:
            return
        text = "a checkpoint would not have the state of " + "; ".join(found)
        if self._session.config.on_unregistered == "refuse":
            raise ConfigError(text, where="on_unregistered: refuse")
        if self._session.ranks.chief:
            print(f"hpcdet: {text}", file=sys.stderr)

    def _check(self, loaded: Loaded, size: int | None) -> None:
        """See that a step means what it meant when the checkpoint was made.

        Args:
            size: of the loader's batches.

        Raises:
            ConfigError: it has another number of samples now.
        """
        batch, before = self._feed.batch, loaded.manifest.meta.get("global_batch")
        if None not in (batch, before) and before != batch:
            raise ConfigError(
                f"a step would be {batch} samples, and was {before} with {loaded.manifest.world} "
                "ranks",
                where=f"DataLoader(batch_size={size})",
                hint="set the hyperparameter global_batch_size and take batch_size from "
                "get_per_slot_batch_size(), or go on with the same number of slots",
            )

    def _train(self) -> Cause:
        if self._progress.owed and (cause := self._validate(())):
            return cause
        batches = self._feed.batches(self._progress.units.records)
        phases = self._session.profile.phases
        while not self._reached():
            self._traces.before(self._progress.units.batches)
            phases.switch("data")
            part, batch = next(batches)
            phases.switch("other")
            before = self._progress.units
            self._step(part, batch, batches)
            if cause := self._boundary(before):
                return cause
        return "completed"

    def _until(self) -> Length | None:
        if self._plan.test_mode:
            return Length("batches", self._core.first_batch + 1)
        wanted = self._plan.max_length
        return self._session.until or (wanted.length() if wanted else None)

    def _reached(self) -> bool:
        until = self._until()
        return until is not None and self._progress.units.reached(until)

    def _global_batch(self, data: Any) -> int:
        """Samples over all ranks: the hyperparameter, if the loader wants a slot's share of it."""
        context, size = self._context, getattr(data, "batch_size", None) or 1
        if GLOBAL_BATCH in self._core.hparams and size == context.get_per_slot_batch_size():
            return context.get_global_batch_size()
        return size * context.shares

    # -- one batch ---------------------------------------------------------------------------

    def _step(self, part: Slice, batch: Any, more: Iterator[tuple[Slice, Any]]) -> None:
        """Train one global batch.

        Args:
            part, batch: this rank's share of it; of virtual ranks the first one's.
            more: where those of its other virtual ranks come from.
        """
        units, context = self._progress.units, self._context
        if units.records % self._feed.epoch_records == 0:
            for callback in self._callbacks.values():
                start_epoch(callback, part.epoch)
        if context.elastic is None:
            # all ranks' gradients are averaged; shares of different size must count by their size
            scale = part.weight * self._session.ranks.world / part.records
            self._learn(part, batch, scale, self._tally)
        else:

            def learn(v: int, tally: Tally) -> None:
                self._session.profile.phases.switch("data")
                own = (part, batch) if v == context.mine[0] else next(more)
                self._learn(*own, own[0].weight / part.records, tally)

            context.elastic.step(units.batches, learn)
            context.end_step()
        epochs = part.epoch + part.last
        self._changed = True
        self._progress.units = Units(units.batches + 1, units.records + part.records, epochs)
        for scheduler in context.lr_schedulers:
            scheduler.after_batch(
                units.batches + 1, epochs, ended=part.last, aggregation=context.aggregation
            )
        if part.last:
            for callback in self._callbacks.values():
                callback.on_training_epoch_end(part.epoch)

    def _learn(self, part: Slice, batch: Any, scale: float, tally: Tally) -> None:
        """Let the trial train a share of a global batch, and count its metrics."""
        units, context = self._progress.units, self._context
        starts = units.records % self._feed.epoch_records == 0
        context.begin_step(
            Step(units.batches, part.epoch, starts=starts, ends=part.last, scale=scale)
        )
        profile = self._session.profile
        profile.phases.switch("data")
        ready = context.ready(batch)
        profile.begin_batch()
        profile.phases.switch("forward")
        with context.precision():
            metrics = self._trial.train_batch(ready, part.epoch, units.batches)
        if context.elastic is None:
            context.end_step()
        profile.phases.switch("other")
        profile.end_batch()
        length = self._trial.get_batch_length(batch) if part.weight else 0
        weight = part.weight if length is None else length
        if weight:
            tally.add(named(metrics), weight)

    def _boundary(self, before: Units) -> Cause | None:
        """What is due after a batch; why to leave, if that is so."""
        plan, units = self._plan, self._progress.units
        self._core.train.units = units
        self._core.profiler.tick()
        if plan.reporting_period.due(before, units) or self._reached():
            self._report_training()
        stop: Cause | None = "stopped" if self._context.get_stop_requested() else None
        orders = self._session.poll(units, wish=stop)
        self._announce()
        period = plan.validation_period
        self._progress.owed = self._reached() or bool(period and period.due(before, units))
        self._save_due = orders.save
        kept: tuple[str, ...] = ()
        if plan.checkpoint_period and plan.checkpoint_period.due(before, units):
            kept = ("period",)
        if orders.leave is not None:
            self._save_last(kept, orders.leave)
            return orders.leave
        if self._progress.owed:
            return self._validate(kept)
        if kept or self._save_due:
            self._save(kept)
        return None

    def _report_training(self) -> None:
        context, units = self._context, self._progress.units
        metrics: dict[str, Any] = {}
        with self._session.profile.phases.within("communication"):
            if context.elastic is None:
                metrics |= self._tally.reduced(self._session.peers)
            else:
                metrics |= context.elastic.report()
            metrics |= context.reduced(training=True)
        self._tally.clear()
        context.reset_reducers(training=True)
        self._session.report("training", units, metrics)
        for callback in self._callbacks.values():
            callback.on_training_workload_end(metrics, [])

    # -- validation --------------------------------------------------------------------------

    def _validate(self, kept: tuple[str, ...]) -> Cause | None:
        """The validation that is owed, and the checkpoint it may lead to; why to leave instead.

        Args:
            kept: reasons to keep a checkpoint of this step in any case.
        """
        units = self._progress.units
        with self._session.profile.phases.within("validation"):
            self._sync_buffers()
            metrics = self._validator.run()
        if metrics is None:
            assert self._leave is not None
            self._save_last(kept, self._leave)
            return self._leave
        self._progress.owed = False
        self._changed = True
        self._session.report("validation", units, metrics)
        metric = self._searcher_metric(metrics)
        if self._better(metric):
            self._progress.best = metric
            if self._plan.checkpoint_policy == "best" and self._leads(metric):
                kept += ("best",)
        if self._plan.checkpoint_policy == "all":
            kept += ("all",)
        if self._reached():
            kept += ("end",)
        if kept or self._save_due:
            self._save(kept, metric=metric, must="end" in kept)
        return None

    def _poll_validation(self) -> bool:
        orders = self._session.poll(self._progress.units, stepped=False)
        self._leave = orders.leave
        self._save_due = self._save_due or orders.save
        return orders.leave is not None

    def _searcher_metric(self, metrics: dict[str, Any]) -> float | None:
        wanted = self._session.config.searcher.metric
        if wanted not in metrics and self._session.attached:
            raise ConfigError(
                f"the validation has no metric {wanted!r}",
                where="searcher.metric",
                hint=f"it has: {', '.join(sorted(metrics)) or 'none'}",
            )
        return finite(metrics.get(wanted))

    def _leads(self, metric: float | None) -> bool:
        """Whether a metric, the best of this trial, is the best of the experiment so far.

        As far as the holder of the lease has heard; two trials may both think so of themselves.
        """
        session = self._session
        known = session.known_best() if session.ranks.chief else None
        if known is not None and known.trial == session.record.number:
            known = None
        return session.peers.broadcast(known is None or self._beats(metric, value(known.metric)))

    def _better(self, metric: float | None) -> bool:
        """Whether a metric is the best of this trial; a part of its state, whatever others do."""
        return self._beats(metric, self._progress.best)

    def _beats(self, metric: float | None, best: float | None) -> bool:
        if metric is None or math.isnan(metric):
            return False
        smaller = self._session.config.searcher.smaller_is_better
        return best is None or (metric < best if smaller else metric > best)

    # -- state -------------------------------------------------------------------------------

    def _save(
        self,
        kept: tuple[str, ...],
        *,
        metric: float | None = None,
        must: bool = False,
        wait: bool = False,
    ) -> None:
        """A checkpoint of this step, unless this attempt has one or went on from this state.

        Args:
            wait: it is durable when this returns; else training goes on while it is written.
        """
        units = self._progress.units
        wait = wait or must
        if (self._saved_at == units.batches or not self._changed) and (
            not wait or self._session.keeper.drain()
        ):
            return
        with self._session.profile.phases.within("checkpoint"):
            self._save_all(units, kept, metric, must=must, wait=wait)

    def _save_all(
        self,
        units: Units,
        kept: tuple[str, ...],
        metric: float | None,
        *,
        must: bool,
        wait: bool,
    ) -> None:
        self._sync_buffers()
        common, own = _gradients.waiting(_state.parameters(self._context), self._session.peers)
        state = _state.shared(self._context, self._callbacks, self._progress.encode(), common)
        for callback in self._callbacks.values():
            callback.on_checkpoint_save_start(state)
        if self._context.sharded:
            ranks = self._session.ranks
            state = spread(state, ranks.rank, ranks.world, self._session.peers.allgather)
        private = {}
        if self._context.elastic is None:
            private = _state.private(self._context, self._callbacks, self._tally.state(), own)
        if (position := self._feed.state()) is not None:
            private["data"] = position
        meta = {"global_batch": self._feed.batch}
        if not self._session.save(
            units, state, private, kept=kept, metric=metric, must=must, wait=wait, meta=meta
        ):
            return
        self._saved_at, self._changed = units.batches, False
        self._announce()
        if wait:
            self._tell(self._session.keeper.latest)

    def _save_last(self, kept: tuple[str, ...], cause: Cause) -> None:
        """Before leaving: a checkpoint of this step, unless there is only time for the last."""
        in_haste = cause in ("signal", "walltime")
        if not (in_haste and self._session.keeper.skips(self._progress.units.batches)):
            self._save(kept, wait=True)

    def _announce(self) -> None:
        """Tell callbacks of what was written beside the training."""
        for name in self._session.keeper.take_written():
            self._tell(name)

    def _tell(self, name: str) -> None:
        for callback in self._callbacks.values():
            if self._session.ranks.chief:
                callback.on_checkpoint_end(str(self._session.place.trial.checkpoints / name))
                callback.on_checkpoint_write_end(self._session.place.trial.checkpoints / name)
            callback.on_checkpoint_upload_end(name)

    def _sync_buffers(self) -> None:
        """Rank 0's buffers are everybody's, as they will be at the next step in any case."""
        if self._session.ranks.world == 1 or self._context.elastic is not None:
            return
        for model in self._context.plain_models():
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def _load(self, loaded: Loaded) -> None:
        """Put everything back but random numbers."""
        for callback in self._callbacks.values():
            callback.on_checkpoint_load_start(loaded.shared)
        shared, private = loaded.shared, loaded.private or None
        _state.load_shared(self._context, shared)
        _state.load_gradients(self._context, shared, private)
        own = private.get("registered") if private is not None else None
        self._session.registered.load(shared.get("registered", {}), own)
        self._feed.load(private.get("data") if private is not None else None)
        if self._context.elastic is not None and "virtual" in shared:
            _state.load_callbacks(self._callbacks, shared["callbacks"])
            self._context.elastic.load(shared["virtual"], self._session.device)
        elif private is None:
            _state.load_callbacks(self._callbacks, shared["callbacks"])
        else:
            _state.load_private(self._context, self._callbacks, private)
            self._tally.load(private["training_metrics"], self._session.device)

    def _begin_random(self, loaded: Loaded | None) -> None:
        """Random numbers, last: nothing may draw between here and the first batch."""
        if loaded is not None and self._context.elastic is not None and "virtual" in loaded.shared:
            return  # each step begins its own
        if loaded is not None and loaded.private:
            rng.restore(loaded.private["rng"], self._session.generators)
        else:  # at the beginning, and with another number of ranks: the same at each such resume
            self._seed(self._progress.units.batches)

    def _seed(self, batches: int) -> None:
        """New streams of random numbers for a trial that is so far."""
        if self._context.elastic is not None:
            self._context.elastic.common("begin", batches)
        else:
            self._session.seed(self._session.ranks.rank, batches)


def _shut_down(callback: PyTorchCallback) -> None:
    callback.on_trial_shutdown()
