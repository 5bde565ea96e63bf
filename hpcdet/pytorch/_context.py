"""``PyTorchTrialContext``: what a trial is given, and what it gives its models to."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from hpcdet.core import Context, DistributedContext
from hpcdet.errors import ConfigError, UsageError
from hpcdet.pytorch import _sharding
from hpcdet.pytorch._data import TorchData, to_device
from hpcdet.pytorch._elastic import Elastic
from hpcdet.pytorch._lr import LRScheduler
from hpcdet.pytorch._metrics import across_ranks
from hpcdet.pytorch._parallel import Parallel
from hpcdet.pytorch._reducers import FunctionReducer, MetricReducer
from hpcdet.pytorch._wrap import wrap
from hpcdet.train import rng
from hpcdet.train.virtual import WHERE

GLOBAL_BATCH = "global_batch_size"


class Step:
    """The step of training under way.

    Attributes:
        batches: trained before it.
        epoch: the epoch it is in, from 0.
        starts, ends: it is the first, the last batch of its epoch.
        scale: weight of this rank's loss, 1 unless the global batch is a smaller last one.
    """

    def __init__(self, batches: int, epoch: int, *, starts: bool, ends: bool, scale: float) -> None:
        self.batches = batches
        self.epoch = epoch
        self.starts = starts
        self.ends = ends
        self.scale = scale


class PyTorchTrialContext:
    """Made by ``pytorch.init``.

    Attributes:
        core: the Core API's context below.
        models, optimizers, lr_schedulers, scaler: what was wrapped, in order.
        reducers: wrapped metric reducers by name.
        elastic: the virtual ranks of this rank, with ``reproducibility.elastic: exact``.
    """

    def __init__(
        self,
        core: Context,
        aggregation: int = 1,
        average: bool = True,
        exp_conf: Mapping[str, Any] | None = None,
    ) -> None:
        self.core = core
        self._exp_conf = exp_conf
        self.models: list[torch.nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.lr_schedulers: list[LRScheduler] = []
        self.reducers: dict[str, tuple[MetricReducer, bool, bool]] = {}
        self.scaler: Any = None
        self.step: Step | None = None
        self.experimental = Experimental(self)
        self._aggregation = aggregation
        self._average = average
        self._averages: dict[int, bool] = {}
        self._amp = False
        self._update_scaler = False
        self._stop_requested = False
        self._tensorboard = True
        self._writer: Any = None
        self._in_validation = False
        self._phases = core.session.profile.phases
        session = core.session
        self.elastic: Elastic | None = None
        if session.virtual is not None:
            self.elastic = Elastic(
                session.virtual,
                session.peers,
                lambda: self.models,
                lambda: {name: one for name, (one, _, _) in self.reducers.items()},
                session.generators,
                self._phases,
            )
            self.elastic.reducers.shared += [self, core, session, self.models]

    # -- what the trial is -------------------------------------------------------------------

    @property
    def distributed(self) -> DistributedContext:
        """Ranks and talk between them."""
        return self.core.distributed

    @property
    def device(self) -> torch.device:
        return self.core.session.device

    def get_hparams(self) -> dict[str, Any]:
        """All hyperparameters of this trial."""
        return dict(self.core.hparams)

    def get_hparam(self, name: str) -> Any:
        """One hyperparameter.

        Raises:
            ConfigError: there is none of this name.
        """
        if name not in self.core.hparams:
            raise ConfigError(
                f"there is no hyperparameter {name!r}",
                where="hyperparameters",
                hint=f"there are: {', '.join(sorted(self.core.hparams)) or 'none'}",
            )
        return self.core.hparams[name]

    def get_global_batch_size(self) -> int:
        """Samples per step over all ranks: the hyperparameter ``global_batch_size``."""
        return int(self.get_hparam(GLOBAL_BATCH))

    def get_per_slot_batch_size(self) -> int:
        """Samples per step of one rank (rounded down; the first ranks take the remainder).

        With ``reproducibility.elastic: exact``, of one virtual rank.
        """
        return max(1, self.get_global_batch_size() // self.shares)

    @property
    def shares(self) -> int:
        """Shares that a global batch is cut into: as many as ranks, or virtual ranks."""
        virtual = self.core.session.virtual
        return virtual.count if virtual is not None else self.distributed.size

    @property
    def mine(self) -> range:
        """Which of the shares are this rank's."""
        virtual, rank = self.core.session.virtual, self.distributed.rank
        return virtual.mine if virtual is not None else range(rank, rank + 1)

    @property
    def virtual_rank(self) -> int:
        """Whose share of a batch is trained or evaluated now: this rank's, or a virtual rank's."""
        turn = self.elastic.current if self.elastic is not None else None
        return self.distributed.rank if turn is None else turn

    def get_trial_seed(self) -> int:
        return self.core.seed

    def get_experiment_config(self) -> dict[str, Any]:
        """The resolved config as plain data; where the script runs alone, ``init``'s."""
        if self._exp_conf is not None and not self.core.session.attached:
            return dict(self._exp_conf)
        return dict(self.core.session.config.raw)

    def get_data_config(self) -> dict[str, Any]:
        """The config's ``data``, with its secrets."""
        return dict(self.core.data or self.get_experiment_config().get("data", {}))

    def get_experiment_id(self) -> str:
        experiment = self.core.session.place.experiment
        return experiment.id if experiment else ""

    def get_trial_id(self) -> int:
        return self.core.session.record.number

    def get_stop_requested(self) -> bool:
        return self._stop_requested

    def set_stop_requested(self, stop_requested: bool) -> None:
        """End the trial well after this step; obeyed if rank 0 or any other asks for it."""
        self._stop_requested = stop_requested

    # -- wrapping ----------------------------------------------------------------------------

    def wrap_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model on this rank's device, its gradients averaged over all ranks.

        With ``distributed.strategy: fsdp2`` each rank keeps its rows of every parameter only;
        make optimizers from the parameters of what this returns.

        Raises:
            ConfigError: what the config asks for does not go with this model or this machine.
        """
        wrapped = wrap(model, self.core.session)
        if isinstance(wrapped, Parallel):
            wrapped.phases = self._phases
        self.models.append(wrapped)
        return wrapped

    def wrap_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        backward_passes_per_step: int = 1,
        fp16_compression: bool | None = None,
        average_aggregated_gradients: bool | None = None,
    ) -> torch.optim.Optimizer:
        """Take an optimizer into checkpoints. Make it from parameters of wrapped models.

        Args:
            backward_passes_per_step, fp16_compression: Horovod's; they change nothing here.
            average_aggregated_gradients: of this optimizer, if not what the config says:
                whether gradients of several batches are averaged or summed.
        """
        if self.elastic is not None:
            optimizer.register_step_pre_hook(self.elastic.guard)
        self.optimizers.append(optimizer)
        if average_aggregated_gradients is not None:
            self._averages[id(optimizer)] = average_aggregated_gradients
        return optimizer

    def wrap_lr_scheduler(
        self,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler | LRScheduler,
        step_mode: LRScheduler.StepMode = LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP,
        frequency: int = 1,
    ) -> Any:
        """Take a scheduler into checkpoints and step it as ``step_mode`` says.

        Returns:
            The scheduler that was given.

        Raises:
            UsageError: its optimizer is not wrapped, or it wants a metric at each step and is
                not stepped by the code.
        """
        wrapped = (
            lr_scheduler
            if isinstance(lr_scheduler, LRScheduler)
            else LRScheduler(lr_scheduler, step_mode, frequency)
        )
        if self.elastic is not None:
            wrapped.later = self.elastic.later
        inner: Any = wrapped.scheduler
        if not any(getattr(inner, "optimizer", one) is one for one in self.optimizers):
            raise UsageError(
                "its optimizer is none that was wrapped",
                where=f"wrap_lr_scheduler({type(inner).__name__})",
                hint="pass the optimizer to context.wrap_optimizer before",
            )
        plateau = isinstance(inner, torch.optim.lr_scheduler.ReduceLROnPlateau)
        if plateau and wrapped.mode is not LRScheduler.StepMode.MANUAL_STEP:
            raise UsageError(
                "it wants a metric at each step",
                where="wrap_lr_scheduler(ReduceLROnPlateau)",
                hint="use step_mode MANUAL_STEP and step(metric) in a callback's on_validation_end",
            )
        self.lr_schedulers.append(wrapped)
        return lr_scheduler

    def wrap_scaler(self, scaler: Any) -> Any:
        """Take a ``torch.amp.GradScaler`` of one's own into checkpoints."""
        if self.scaler is not None:
            raise UsageError("a gradient scaler is wrapped already", where="wrap_scaler")
        self.scaler = scaler
        return scaler

    def wrap_reducer(
        self,
        reducer: MetricReducer | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> Any:
        """Add a metric reduced over batches and ranks.

        Args:
            reducer: a ``MetricReducer``, or a function of the list of all updates.
            name: of the metric; a reducer that gives a dict of metrics needs none.

        Returns:
            The reducer; one made from a function has ``update(value)``.
        """
        made = reducer if isinstance(reducer, MetricReducer) else FunctionReducer(reducer)
        made.reset()
        key = name if name is not None else f"#{len(self.reducers)}"
        if key in self.reducers:
            raise UsageError(f"there are two reducers {name!r}", where="wrap_reducer")
        self.reducers[key] = (made, for_training, for_validation)
        return made

    def register_generator(self, name: str, generator: rng.Generator) -> None:
        """Take a random generator of one's own (numpy, torch or python) into checkpoints."""
        self.core.register_generator(name, generator)

    def register_state(self, name: str, item: Any, *, per_rank: bool = False) -> None:
        """Take an object with ``state_dict`` and ``load_state_dict`` into checkpoints.

        Args:
            per_rank: each rank has a state of its own; else all have the same.

        Raises:
            UsageError: it has not both methods, or the name is taken.
        """
        self.core.register_state(name, item, per_rank=per_rank)

    def configure_apex_amp(
        self, models: Any, optimizers: Any, enabled: bool = True, **options: Any
    ) -> tuple[Any, Any]:
        """Determined's for NVIDIA's apex, which its makers have given up.

        Raises:
            ConfigError: it is enabled.
        """
        if enabled:
            raise ConfigError(
                "apex is not supported",
                where="configure_apex_amp",
                hint="use context.experimental.use_amp(), or context.wrap_scaler with autocast",
            )
        return models, optimizers

    def get_tensorboard_path(self) -> pathlib.Path:
        """A folder for files of TensorBoard, in the trial's folder."""
        return self.core.train.get_tensorboard_path()

    def get_tensorboard_writer(self) -> Any:
        """A ``torch.utils.tensorboard.SummaryWriter`` there, the same at each call.

        Raises:
            ConfigError: the package ``tensorboard`` is not installed.
        """
        if self._writer is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ConfigError(
                    "the package tensorboard is not installed", where="get_tensorboard_writer"
                ) from error
            self._writer = SummaryWriter(str(self.get_tensorboard_path()))
        return self._writer

    def set_enable_tensorboard_logging(self, enable_tensorboard_logging: bool) -> None:
        """Determined's; nothing is written for TensorBoard but by the code itself."""
        self._tensorboard = enable_tensorboard_logging

    def get_enable_tensorboard_logging(self) -> bool:
        return self._tensorboard

    # -- inside train_batch ------------------------------------------------------------------

    def backward(
        self,
        loss: torch.Tensor,
        gradient: torch.Tensor | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """``loss.backward``, weighted so that all ranks' and batches' gradients add up rightly.

        Args:
            loss: mean over this rank's samples.
        """
        before = self._phases.switch("backward")
        scale = self._current().scale
        if self._aggregation > 1 and self._average:
            scale /= self._aggregation
        if scale != 1.0:
            loss = loss * scale
        if self._amp:
            loss = self.scaler.scale(loss)
        waits = self.distributed.size > 1 and self.elastic is None
        if waits and self.steps_now and loss.requires_grad:
            loss.register_hook(self._backward_begins)  # type: ignore[no-untyped-call]
        with self.elastic.apart() if self.elastic is not None else contextlib.nullcontext():
            torch.autograd.backward(
                loss, gradient, retain_graph=retain_graph, create_graph=create_graph
            )
        self._phases.switch(before)

    def _backward_begins(self, _gradient: torch.Tensor) -> None:
        """Asks to be called when this rank has computed its gradients.

        That is right before the others' are waited for: callbacks run in the order in which
        they were asked for, and those that wait are asked for with the last gradient.
        """
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._gradients_computed)

    def _gradients_computed(self) -> None:
        self._phases.switch("communication")

    def step_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        clip_grads: Callable[[Any], Any] | None = None,
        auto_zero_grads: bool = True,
        scaler: Any = None,
    ) -> None:
        """Step the optimizer, if the gradients of enough batches are there.

        Args:
            clip_grads: called with the parameters before the step.
            auto_zero_grads: forget the gradients afterwards.
            scaler: the one that scaled the loss, if not ``experimental.use_amp``; calling its
                ``update`` is up to the caller.
        """
        if not self.steps_now:
            return
        if self._amp:
            scaler, self._update_scaler = self.scaler, True
        if self.elastic is None:
            self._step_optimizer(optimizer, clip_grads, auto_zero_grads, scaler)
            return
        if scaler is not None and not self._amp:
            raise ConfigError(
                "a scaler of one's own is updated before all virtual ranks have had their turn",
                where=WHERE,
                hint="use context.experimental.use_amp()",
            )
        self.elastic.later(
            lambda: self._step_optimizer(optimizer, clip_grads, auto_zero_grads, scaler)
        )

    def _step_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        clip_grads: Callable[[Any], Any] | None,
        auto_zero_grads: bool,
        scaler: Any,
    ) -> None:
        before = self._phases.switch("optimizer")
        self._weigh(optimizer)
        if clip_grads is not None:
            if scaler is not None:
                with contextlib.suppress(RuntimeError):  # the code has done it already
                    scaler.unscale_(optimizer)
            clip_grads([one for group in optimizer.param_groups for one in group["params"]])
        if scaler is not None:
            scaler.step(optimizer)
        else:
            optimizer.step()
        if auto_zero_grads:
            optimizer.zero_grad()
        self._phases.switch(before)

    def _weigh(self, optimizer: torch.optim.Optimizer) -> None:
        """Where an optimizer sums or averages, unlike the others: what ``backward`` left out."""
        average = self._averages.get(id(optimizer), self._average)
        if self._aggregation == 1 or average == self._average:
            return
        factor = 1 / self._aggregation if average else self._aggregation
        for group in optimizer.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    one.grad.mul_(factor)

    def autocast_forward_pass(self, to_wrap: torch.nn.Module) -> torch.nn.Module:
        """Run a wrapped model's forward in mixed precision, where the device has it."""
        enabled = self.device.type == "cuda"
        original = to_wrap.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(self.device.type, enabled=enabled):
                return original(*args, **kwargs)

        to_wrap.forward = forward
        return to_wrap

    def to_device(self, data: TorchData) -> TorchData:
        """A batch on this rank's device."""
        return to_device(data, self.device)

    def ready(self, data: TorchData) -> TorchData:
        """A batch as the trial gets it: on the device, unless it wants to see to that itself."""
        return data if self.experimental.manual_to_device else self.to_device(data)

    def current_train_batch(self) -> int:
        """Index of the batch under way, from 0, over all epochs."""
        return self._current().batches

    def current_train_epoch(self) -> int:
        return self._current().epoch

    def get_initial_batch(self) -> int:
        """The batch this attempt began at."""
        return self.core.first_batch

    def is_epoch_start(self) -> bool:
        return self._current().starts

    def is_epoch_end(self) -> bool:
        return self._current().ends

    # -- the trainer's part ------------------------------------------------------------------

    @property
    def aggregation(self) -> int:
        """Batches per step of the optimizers."""
        return self._aggregation

    @property
    def steps_now(self) -> bool:
        """Whether optimizers step after the batch under way."""
        return (self._current().batches + 1) % self._aggregation == 0

    def begin_step(self, step: Step) -> None:
        """A batch begins: gradients travel only if the optimizers step after it.

        Buffers always do, and with FSDP2 gradients, too, which are summed up where they are kept:
        each rank's rows. DDP would leave each rank its own while gradients are aggregated;
        then a checkpoint, which has one for all, would not be what training went on with.
        """
        self.step = step
        for model in self.models:
            if isinstance(model, Parallel):
                model.require_backward_grad_sync = self.steps_now
                model.require_forward_param_sync = True
            elif _sharding.is_sharded(model):
                _sharding.sync_buffers(model)

    def end_step(self) -> None:
        """A batch has been trained: the scaler learns once what all optimizers saw."""
        if self._update_scaler:
            self.scaler.update()
            self._update_scaler = False

    @property
    def sharded(self) -> bool:
        """Whether the ranks share some model's parameters, so that none can run it alone."""
        return any(_sharding.is_sharded(model) for model in self.models)

    def plain_models(self) -> list[torch.nn.Module]:
        """The models as the user made them."""
        return [one.module if isinstance(one, Parallel) else one for one in self.models]

    @contextlib.contextmanager
    def precision(self) -> Iterator[None]:
        """Mixed precision, if ``experimental.use_amp`` asked for it and the device has it."""
        if not self._amp:
            yield
            return
        with torch.autocast(self.device.type):
            yield

    @contextlib.contextmanager
    def validating(self) -> Iterator[None]:
        """Models in ``eval`` mode, without gradients, and silent towards other ranks."""
        modes = [(module, module.training) for one in self.models for module in one.modules()]
        self._in_validation = True
        for model in self.models:
            model.eval()
            if isinstance(model, Parallel):
                model.bypass = True
        try:
            with torch.no_grad(), self.precision():
                yield
        finally:
            self._in_validation = False
            for module, mode in modes:
                module.training = mode
            for model in self.models:
                if isinstance(model, Parallel):
                    model.bypass = False

    def reducers_for(self, *, training: bool) -> Mapping[str, MetricReducer]:
        """The reducers that count in training or in validation."""
        return {
            name: reducer
            for name, (reducer, in_training, in_validation) in self.reducers.items()
            if (in_training if training else in_validation)
        }

    def reset_reducers(self, *, training: bool) -> None:
        """Reducers of training or of validation begin anew."""
        found = self.reducers_for(training=training)
        if self.elastic is not None:
            self.elastic.reducers.reset(list(found))
            return
        for reducer in found.values():
            reducer.reset()

    def reduced(self, *, training: bool) -> dict[str, Any]:
        """Values of the reducers of training or of validation over all ranks, on all ranks."""
        found = self.reducers_for(training=training)
        if self.elastic is not None:
            return self.elastic.reducers.reduce(list(found))
        return across_ranks(found, self.core.session.peers)

    def _current(self) -> Step:
        if self.step is None:
            raise UsageError("no batch is being trained", where="PyTorchTrialContext")
        return self.step


class Experimental:
    """``context.experimental``, as in Determined."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self._context = context
        self.unchecked_data = False
        self.manual_to_device = False

    def use_amp(self) -> None:
        """Train and validate in mixed precision with a gradient scaler.

        Nothing changes on devices without it (CPU).
        """
        if self._context.device.type != "cuda":
            return
        self._context.wrap_scaler(torch.amp.GradScaler("cuda"))
        self._context._amp = True

    def disable_dataset_reproducibility_checks(self) -> None:
        """Take any loader, also one whose position cannot be saved.

        Sharding, repetition and skipping (``context.get_initial_batch()``) are the trial's then.
        """
        self.unchecked_data = True

    def disable_auto_to_device(self) -> None:
        """Give batches to the trial as they come; it calls ``context.to_device`` itself."""
        self.manual_to_device = True
