"""``PyTorchTrialContext``: what a trial is given, and what it gives its models to."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hpcdet.core import Context
from hpcdet.data import rng
from hpcdet.errors import ConfigError, UsageError
from hpcdet.pytorch.api import traces
from hpcdet.pytorch.api.data_loader import TorchData, to_device
from hpcdet.pytorch.api.lr_scheduler import LRScheduler
from hpcdet.pytorch.api.trial_context import TrialContext
from hpcdet.pytorch.gradients import strategy
from hpcdet.pytorch.step.learning import ClipGrads, Learning, StepPosition
from hpcdet.pytorch.step.reducing import Reducing
from hpcdet.pytorch.step.wrap import wrap


class PyTorchTrialContext(TrialContext):
    """Made by ``pytorch.init``.

    Attributes:
        models, optimizers, lr_schedulers: what was wrapped, in order.
        profiler: torch's, of ``set_profiler``; None without.
        learning: what the trainer tells of each batch, and asks of gradients and optimizers.
        reducer: of gradients over all ranks.
        division: of each batch, over all ranks.
    """

    def __init__(
        self,
        core: Context,
        aggregation: int = 1,
        average: bool = True,
        exp_conf: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(core, exp_conf)
        session = core.session
        self.models: list[torch.nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.lr_schedulers: list[LRScheduler] = []
        self.experimental = Experimental(self)
        self.profiler: Any = None
        self.reducer, self.division = strategy.choose(
            session, lambda: self.models, lambda: self.reducers.all()
        )
        self.division.exempt(self, core, session, self.models)
        self.reducers = Reducing(self.division)
        self.learning = Learning(
            session.device,
            session.profile.phases,
            self.reducer,
            aggregation=aggregation,
            average=average,
            guard=core.governance.guard,
        )
        if core.governance.guard is not None:
            guard = core.governance.guard
            self.reducer.settling = guard.router.accounted
            self.reducer.summing = guard.optimizers.untouched.check
            self.reducer.summed = guard.optimizers.untouched.seal

    @property
    def virtual_rank(self) -> int:
        """Whose share of a batch is trained or evaluated now: this rank's, or a virtual rank's."""
        return self.division.current

    # -- wrapping ----------------------------------------------------------------------------

    def wrap_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model on this rank's device, its gradients averaged over all ranks.

        With ``distributed.strategy: fsdp2`` each rank keeps its rows of every parameter only;
        make optimizers from the parameters of what this returns.

        Raises:
            ConfigError: what the config asks for does not go with this model or this machine.
        """
        wrapped = wrap(model, self.core.session, self.reducer, self.core.governance)
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
        self.reducer.watch(optimizer)
        self.optimizers.append(optimizer)
        if self.learning.guard is not None:
            self.learning.guard.optimizers.watch(optimizer)
        if average_aggregated_gradients is not None:
            self.learning.averages[id(optimizer)] = average_aggregated_gradients
        return optimizer

    def wrap_lr_scheduler(
        self,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler | LRScheduler,
        step_mode: LRScheduler.StepMode = LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP,
        frequency: int = 1,
    ) -> Any:
        """Take a scheduler into checkpoints and step it by ``step_mode``.

        Returns:
            The scheduler that was given.

        Raises:
            UsageError: its optimizer is not wrapped, or it needs a metric at each step and is
                not stepped by the code.
        """
        wrapped = (
            lr_scheduler
            if isinstance(lr_scheduler, LRScheduler)
            else LRScheduler(lr_scheduler, step_mode, frequency)
        )
        wrapped.later = self.reducer.apply
        inner: Any = wrapped.scheduler
        if not any(getattr(inner, "optimizer", one) is one for one in self.optimizers):
            raise UsageError(
                "the optimizer of this scheduler was not wrapped",
                where=f"wrap_lr_scheduler({type(inner).__name__})",
                hint="pass the optimizer to context.wrap_optimizer before",
            )
        plateau = isinstance(inner, torch.optim.lr_scheduler.ReduceLROnPlateau)
        if plateau and wrapped.mode is not LRScheduler.StepMode.MANUAL_STEP:
            raise UsageError(
                "it needs a metric at each step",
                where="wrap_lr_scheduler(ReduceLROnPlateau)",
                hint="use step_mode MANUAL_STEP and step(metric) in a callback's on_validation_end",
            )
        self.lr_schedulers.append(wrapped)
        return lr_scheduler

    def wrap_scaler(self, scaler: Any) -> Any:
        """Take a ``torch.amp.GradScaler`` of one's own into checkpoints."""
        if self.scaler is not None:
            raise UsageError("a gradient scaler is wrapped already", where="wrap_scaler")
        if self.learning.guard is not None:
            self.learning.guard.refuse_scaler()
        self.learning.scaler = scaler
        return scaler

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

    def set_profiler(self, *args: Any, **options: Any) -> None:
        """Record with ``torch.profiler.profile``, of these arguments, during this attempt.

        It is stepped after each batch; files come to ``get_tensorboard_path()``.

        Raises:
            ConfigError: the config has ``profiling`` record already.
        """
        if self.core.session.config.profiling.enabled:
            raise ConfigError(
                "torch's profiler records one thing at a time",
                where="set_profiler",
                hint="leave it out, or profiling.enabled",
            )
        self.profiler = traces.profiler(self.get_tensorboard_path(), *args, **options)

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
        self.learning.backward(loss, gradient, retain_graph, create_graph)

    def step_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        clip_grads: ClipGrads | None = None,
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
        self.learning.step_optimizer(optimizer, clip_grads, auto_zero_grads, scaler)

    def autocast_forward_pass(self, to_wrap: torch.nn.Module) -> torch.nn.Module:
        """Run a wrapped model's forward in mixed precision, where the device has it."""
        enabled = self.device.type == "cuda"
        original = to_wrap.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(self.device.type, enabled=enabled):
                return original(*args, **kwargs)

        to_wrap.forward = forward
        return to_wrap

    def rows(
        self,
        indices: Sequence[int] | Sequence[Sequence[int]] | None = None,
        sources: Sequence[str | Sequence[str]] | None = None,
        *,
        unfolded: bool = False,
    ) -> contextlib.AbstractContextManager[None]:
        """Around forward and backward passes over other rows than those of the batch.

        Needed under a policy only; without one it does nothing::

            with context.rows(indices=[0, 0, 1, 1]):  # two views of each of two samples
                context.backward(self.loss(views))

        Args:
            indices: for each row its place in the batch as ``train_batch`` was given it, or the
                places of all rows that it was made from: it may change what each of them may.
            sources: for each row the name of its source, or several: of data without indices.
            unfolded: the model itself makes several consecutive rows of each, such as its tokens
                or frames; else every module must be given as many rows as are named.

        Raises:
            UsageError: a row is not in the batch.
            PolicyRefused: the policy does not know a source, or wants isolation; a module is given
                more or fewer rows.
        """
        if self.learning.guard is None:
            return contextlib.nullcontext()
        return self.learning.guard.rows(indices, sources, unfolded=unfolded)

    def current_train_batch(self) -> int:
        """Index of the batch under way, from 0, over all epochs."""
        return self.learning.current().batches

    def current_train_epoch(self) -> int:
        return self.learning.current().epoch

    def is_epoch_start(self) -> bool:
        return self.learning.current().starts

    def is_epoch_end(self) -> bool:
        return self.learning.current().ends

    # -- the trainer's part ------------------------------------------------------------------

    @property
    def step(self) -> StepPosition | None:
        """The step under way; None before the first."""
        return self.learning.step

    @property
    def scaler(self) -> Any:
        """The wrapped scaler of gradients, or None."""
        return self.learning.scaler

    def ready(self, data: TorchData) -> TorchData:
        """A batch as the trial gets it: on the device, unless it wants to see to that itself."""
        if self.experimental.manual_to_device:
            return data
        return to_device(data, self.core.session.device)


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
        scaler = self._context.wrap_scaler(torch.amp.GradScaler("cuda"))
        self._context.learning.use_amp(scaler)

    def disable_dataset_reproducibility_checks(self) -> None:
        """Take any loader, also one whose position cannot be saved.

        Sharding, repetition and skipping (``context.get_initial_batch()``) are the trial's then.
        """
        self.unchecked_data = True

    def disable_auto_to_device(self) -> None:
        """Give batches to the trial as they come; it calls ``context.to_device`` itself."""
        self.manual_to_device = True
