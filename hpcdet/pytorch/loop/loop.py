"""The training loop.

What happens at the end of each batch, in this order: training metrics are reported if they are
due; all ranks agree whether to leave; a validation, if one is due; a checkpoint, if one is due.
The state saved at any of these points says what of it is still owed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from hpcdet.checkpoint import Manifest
from hpcdet.core import training
from hpcdet.core.training import NOTHING, Cause
from hpcdet.data.sample_order import Slice
from hpcdet.errors import ConfigError
from hpcdet.goals import refuse_reserved
from hpcdet.process.console import say
from hpcdet.pytorch.api.callback import PyTorchCallback, start_epoch
from hpcdet.pytorch.api.context import PyTorchTrialContext
from hpcdet.pytorch.api.traces import Traces
from hpcdet.pytorch.api.trial import PyTorchTrial
from hpcdet.pytorch.api.trial_context import GLOBAL_BATCH
from hpcdet.pytorch.loop.feeds import feed_of
from hpcdet.pytorch.loop.loop_progress import LoopPlan, LoopProgress
from hpcdet.pytorch.loop.probing import Probing
from hpcdet.pytorch.loop.saves import Saves
from hpcdet.pytorch.loop.unregistered import unregistered
from hpcdet.pytorch.loop.validation import Validator
from hpcdet.pytorch.metrics.metrics import Tally, named
from hpcdet.pytorch.step.learning import StepPosition
from hpcdet.units import Length, Units


class Loop:
    """Runs one attempt of a ``PyTorchTrial``; see ``Trainer.fit``."""

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext, plan: LoopPlan) -> None:
        self._trial = trial
        self._context = context
        self._plan = plan
        self._core = context.core
        self._session = context.core.session
        self._phases = context.core.session.profile.phases
        self._wanted = plan.max_length.length() if plan.max_length else None
        self._guard = context.learning.guard
        self._probing = None if self._guard is None else Probing(trial, context, self._guard)
        self._progress = LoopProgress()
        context.division.exempt(trial, *context.models)
        self._callbacks = trial.build_callbacks()
        self._validator = Validator(trial, context, self._callbacks, self._poll_validation)
        self._saves = Saves(context, self._callbacks, self._progress)
        self._saves_at_rungs = self._session.config.searcher.saves_at_rungs
        self._save_due = False
        self._leave: Cause | None = None

    # -- the whole ---------------------------------------------------------------------------

    def run(self) -> None:
        """Train, then say how it ended."""
        if self._until() is None:
            raise ConfigError(
                "no length of training is given",
                where="Trainer.fit",
                hint="give searcher.max_length in the config, or fit(max_length=Batch(…))",
            )
        with contextlib.ExitStack() as callbacks:
            self._begin(callbacks)
            cause = self._train()
            self._traces.close()
            self._session.keeper.drain()
            self._saves.announce()
            self._core.preempt.leave(cause)
        if self._core.governance.accounts is not None:
            self._core.governance.accounts.close()
        self._session.finish(cause, self._progress.units)

    def _begin(self, started: contextlib.ExitStack) -> None:
        """Everything before the first batch.

        Data are made while all ranks' random numbers are still alike, as in every attempt: a
        split that is drawn comes out the same.

        Args:
            started: what is to be called at the end, however it comes.
        """
        loaded = self._saves.restore()
        units = self._progress.units
        self._core.begin(loaded.manifest if loaded else None, units)
        name = loaded.manifest.name if loaded else None
        for callback in self._callbacks.values():
            callback.on_trial_startup(units.batches, name)
            started.callback(_shut_down, callback)
        data = self._trial.build_training_data_loader()
        self._feed = feed_of(data, self._context, self._global_batch(data))
        self._saves.feed = self._feed
        if self._guard is not None:
            self._guard.use(self._feed.sources, counted=self._feed.order is not None)
        if self._probing is not None and not getattr(data, "streams", True):
            self._probing.loader = data
        self._validator.build(self._feed)
        self._check_registered()
        if loaded is not None:
            self._saves.load(loaded, getattr(data, "batch_size", None))
            self._context.learning.step = self._last_step(loaded.manifest)
        for callback in self._callbacks.values():
            callback.on_training_start()
        self._traces = Traces(self._session, self._context.profiler)
        self._saves.begin_random(loaded)
        if loaded is None:
            self._saves.begin_governance()
            self._progress.owed = self._plan.step_zero_validation
            self._saves.save((), must=True)

    def _last_step(self, saved: Manifest) -> StepPosition | None:
        """The step before this attempt: a validation that it was left in may ask for it.

        Where batches are of no fixed size, the checkpoint says whether it began its epoch.
        """
        units, length = self._progress.units, self._feed.epoch_records
        if not units.batches:
            return None
        epoch, place = divmod(units.records - 1, length)
        starts, ends = place < (self._feed.batch or 1), place + 1 == length
        starts = saved.meta.get("starts_epoch", starts)
        return StepPosition(units.batches - 1, epoch, starts=starts, ends=ends, scale=1.0)

    def _check_registered(self) -> None:
        """Warn of state that no checkpoint would hold, or refuse it, as the config asks."""
        found = unregistered(self._trial, self._context, self._callbacks)
        if not found:
            return
        text = "a checkpoint would not have the state of"
        if self._session.config.on_unregistered == "refuse":
            raise ConfigError(f"{text} {'; '.join(found)}", where="on_unregistered: refuse")
        if self._session.ranks.chief:
            self._session.tracker.record("unregistered", found=found)
            for line in (text, *(f"  {one}" for one in found)):
                say(line)

    def _train(self) -> Cause:
        if self._progress.stopped and self._session.stopped_before():
            return "stopped"
        if self._progress.owed and (cause := self._validate(())):
            return cause
        if self._reached():
            return "completed"
        batches = self._feed.batches(self._progress.units.records)
        while True:
            before = self._progress.units
            self._traces.before(before.batches)
            self._phases.switch("data")
            part, batch = next(batches)
            self._step(part, batch, batches)
            if cause := self._boundary(before):
                return cause

    def _until(self) -> Length | None:
        if self._plan.test_mode:
            return Length("batches", self._core.first_batch + 1)
        return self._session.length.until or self._wanted

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
            part, batch: this rank's share of it, or the first of several.
            more: where the others come from.
        """
        units, context = self._progress.units, self._context
        starts = units.records % self._feed.epoch_records == 0
        if starts and self._callbacks:
            self._phases.switch("other")
            for callback in self._callbacks.values():
                start_epoch(callback, part.epoch)
        first = context.division.mine[0]

        def learn(share: int, tally: Tally) -> None:
            own = (part, batch)
            if share != first:
                self._phases.switch("data")
                own = next(more)
            # shares of different size must count by their size where their mean is taken, too
            weight = own[0].weight / part.records
            scale = own[0].weight * context.reducer.averaged / part.records
            context.learning.step = StepPosition(
                units.batches, part.epoch, starts=starts, ends=part.last, scale=scale
            )
            if self._guard is None:
                self._learn(*own, tally)
            else:  # the policy routes its rows
                with self._guard.share(own[0], weight, share, first=share == first):
                    self._learn(*own, tally)

        context.learning.begin(units.batches)
        if self._guard is not None:
            self._guard.begin(part.whole)
        context.division.step(units.batches, learn)
        context.learning.end()
        if self._guard is not None and self._probing is not None:
            self._guard.end()
            self._probing.after(units.batches)
        epochs = part.epoch + part.last
        self._saves.changed = True
        self._progress.units = Units(units.batches + 1, units.records + part.records, epochs)
        if (accounts := self._core.governance.accounts) is not None:
            accounts.stepped(self._progress.units)  # and what its optimizers left out
        for scheduler in context.lr_schedulers:
            scheduler.after_batch(
                units.batches + 1, epochs, ended=part.last, aggregation=context.learning.aggregation
            )
        if part.last:
            for callback in self._callbacks.values():
                callback.on_training_epoch_end(part.epoch)

    def _learn(self, part: Slice, batch: Any, tally: Tally) -> None:
        """Let the trial train a share of a global batch, and count its metrics."""
        units, context = self._progress.units, self._context
        profile = self._session.profile
        ready = context.ready(batch)
        if self._probing is not None and context.virtual_rank == context.mine[0]:
            self._probing.before(part, ready, units.batches)
        profile.begin_batch()
        self._phases.switch("forward")
        with context.learning.precision():
            metrics = self._trial.train_batch(ready, part.epoch, units.batches)
        self._phases.switch("other")
        profile.end_batch()
        length = self._trial.get_batch_length(batch) if part.weight else 0
        weight = part.weight if length is None else length
        if weight:
            tally.add(named(metrics), weight)

    def _boundary(self, before: Units) -> Cause | None:
        """Do what is due after a batch; return the cause to leave, if there is one."""
        plan, units = self._plan, self._progress.units
        self._core.train.set_progress(units)
        self._core.profiler.tick()
        ends = self._reached()
        if plan.reporting_period.due(before, units) or ends:
            self._report_training()
        orders = self._session.coordinator.poll(units, stop=self._context.get_stop_requested())
        if orders is not NOTHING:  # else neither the length nor a checkpoint is another
            self._saves.announce()
            ends = self._reached()
        at_rung = self._session.length.at_rung(before, units)
        self._progress.owed = (
            ends
            or at_rung
            or bool(plan.validation_period and plan.validation_period.due(before, units))
        )
        self._save_due = orders.save or (self._saves_at_rungs and at_rung)
        kept: tuple[str, ...] = ()
        if plan.checkpoint_period and plan.checkpoint_period.due(before, units):
            kept = ("period",)
        if orders.leave is not None:
            self._saves.save_last(kept, orders.leave)
            return orders.leave
        if self._progress.owed:
            return self._validate(kept)
        if kept or self._save_due:
            self._saves.save(kept)
        return None

    def _report_training(self) -> None:
        context, units = self._context, self._progress.units
        metrics: dict[str, Any] = {}
        with self._session.profile.phases.within("communication"):
            metrics |= context.division.report()
            metrics |= context.reducers.reduced(training=True)
        context.reducers.reset(training=True)
        refuse_reserved(metrics)
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
            self._context.reducer.sync_buffers()
            metrics = self._validator.run()
        if metrics is None:
            assert self._leave is not None
            self._saves.save_last(kept, self._leave)
            return self._leave
        self._progress.owed = False
        self._saves.changed = True
        refuse_reserved(metrics)
        metrics |= self._core.governance.metrics(self._validator.losses)
        if self._core.governance.accounts is not None:
            self._core.governance.accounts.evaluated(metrics)
        self._session.report("validation", units, metrics)
        metric = training.searcher_metric(self._session, metrics, units)
        if training.beats(self._session, metric, self._progress.best):
            # of this trial: a part of its state, whatever others do
            self._progress.best = metric
            if self._plan.checkpoint_policy == "best" and training.leads(self._session, metric):
                kept += ("best",)
        if self._plan.checkpoint_policy == "all":
            kept += ("all",)
        if self._reached():
            kept += ("end",)
        elif self._session.coordinator.stops(self._context.get_stop_requested()):
            self._saves.save(kept, metric=metric, wait=True)
            return "stopped"
        if kept or self._save_due:
            self._saves.save(kept, metric=metric, must="end" in kept)
        if not self._reached() and (cause := self._session.coordinator.wait_at_rung()):
            self._saves.save_last((), cause)
            return cause
        return "completed" if self._reached() else None

    def _poll_validation(self) -> bool:
        orders = self._session.coordinator.poll(self._progress.units, stepped=False)
        self._leave = orders.leave
        self._save_due = self._save_due or orders.save
        return orders.leave is not None


def _shut_down(callback: PyTorchCallback) -> None:
    callback.on_trial_shutdown()
