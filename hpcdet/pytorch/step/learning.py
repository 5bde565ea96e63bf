"""From the loss of a batch to a step of the optimizers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hpcdet.core.training import Phases
from hpcdet.errors import UsageError
from hpcdet.pytorch.gradients.reducer import FREELY, GradientReducer

if TYPE_CHECKING:  # imported where there is a policy only
    from hpcdet.guard.guard import Guard

ClipGrads = Callable[[Any], Any]
"""Called with an optimizer's parameters before its step."""


class StepPosition(NamedTuple):
    """The step of training under way.

    Attributes:
        batches: trained before it.
        epoch: the epoch it is in, from 0.
        starts, ends: it is the first, the last batch of its epoch.
        scale: weight of this rank's loss, 1 unless the global batch is a smaller last one.
    """

    batches: int
    epoch: int
    starts: bool
    ends: bool
    scale: float


class Learning:
    """Backward passes and steps of optimizers; gradients of all ranks and batches add up rightly.

    Args:
        device: of the models.
        phases: told what time is spent on.
        reducer: of gradients over all ranks.
        aggregation: batches per step of the optimizers.
        average: whether their gradients are averaged or summed.
        guard: enforces the experiment's policy; None without one.

    Attributes:
        scaler: of gradients; None if there is none.
        step: the one under way; None before the first.
        averages: of some optimizers, by ``id``, whether they do otherwise than ``average``.
        steps_now: whether optimizers step after the batch under way.
        guard: as given.
        taken: the losses of a trial that is probed; None while it trains.
    """

    def __init__(
        self,
        device: torch.device,
        phases: Phases,
        reducer: GradientReducer,
        *,
        aggregation: int,
        average: bool,
        guard: Guard | None = None,
    ) -> None:
        self.guard = guard
        self.aggregation = aggregation
        self.scaler: Any = None
        self.taken: list[torch.Tensor] | None = None
        self.step: StepPosition | None = None
        self.averages: dict[int, bool] = {}
        self.steps_now = True
        self._device = device
        self._phases = phases
        self._reducer = reducer
        self._average = average
        self._amp = False
        self._update_scaler = False

    def use_amp(self, scaler: Any) -> None:
        """Train in mixed precision from now on, with a scaler that is updated after each batch."""
        self.scaler, self._amp = scaler, True

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """Mixed precision, if it is used."""
        return torch.autocast(self._device.type) if self._amp else FREELY

    # -- a batch -----------------------------------------------------------------------------

    def begin(self, batches: int) -> None:
        """Begin the batch after so many ``batches``."""
        self.steps_now = (batches + 1) % self.aggregation == 0
        self._reducer.begin(batches, steps=self.steps_now)

    def current(self) -> StepPosition:
        """The step under way.

        Raises:
            UsageError: there is none.
        """
        if self.step is None:
            raise UsageError("no batch is being trained", where="PyTorchTrialContext")
        return self.step

    def end(self) -> None:
        """End the batch: all shares have had their backward passes.

        The scaler learns once what all optimizers saw.
        """
        self._reducer.reduce()
        if self._update_scaler:
            self.scaler.update()
            self._update_scaler = False

    # -- gradients ---------------------------------------------------------------------------

    def backward(
        self,
        loss: torch.Tensor,
        gradient: torch.Tensor | None,
        retain_graph: bool,
        create_graph: bool,
    ) -> None:
        """``loss.backward``, of a loss that is the mean over this rank's samples."""
        if self.taken is not None:
            self.taken.append(loss if gradient is None else (loss * gradient).sum())
            return
        before = self._phases.switch("backward")
        scale = self.current().scale
        if self.aggregation > 1 and self._average:
            scale /= self.aggregation
        if scale != 1.0:
            loss = loss * scale
        if self._amp:
            loss = self.scaler.scale(loss)
        passing = FREELY if self.guard is None else self.guard.passing()
        with passing, self._reducer.collect(loss):
            torch.autograd.backward(
                loss, gradient, retain_graph=retain_graph, create_graph=create_graph
            )
        self._phases.switch(before)

    # -- optimizers --------------------------------------------------------------------------

    def step_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        clip_grads: ClipGrads | None,
        auto_zero_grads: bool,
        scaler: Any,
    ) -> None:
        """Step an optimizer, if the gradients of enough batches are there.

        Raises:
            ConfigError: the reducer does not go with a scaler of the user's own.
        """
        if not self.steps_now or self.taken is not None:
            return
        if self._amp:
            scaler, self._update_scaler = self.scaler, True
        elif scaler is not None:
            self._reducer.check_scaler()
        step = functools.partial(self._step, optimizer, clip_grads, auto_zero_grads, scaler)
        self._reducer.apply(step)

    def _step(
        self,
        optimizer: torch.optim.Optimizer,
        clip_grads: ClipGrads | None,
        auto_zero_grads: bool,
        scaler: Any,
    ) -> None:
        before = self._phases.switch("optimizer")
        accounted: contextlib.AbstractContextManager[None] = FREELY
        if self.guard is not None:
            optimizers = self.guard.optimizers
            accounted = optimizers.step(optimizer, zeroes=auto_zero_grads, scaler=scaler)
        with accounted:
            if self.averages and self.aggregation > 1:
                self._weigh(optimizer)
            if clip_grads is not None:
                self._clip(optimizer, clip_grads, scaler)
            if scaler is not None:
                scaler.step(optimizer)
            else:
                optimizer.step()
        if auto_zero_grads:
            optimizer.zero_grad()
        self._phases.switch(before)

    def _clip(self, optimizer: torch.optim.Optimizer, clip_grads: ClipGrads, scaler: Any) -> None:
        if scaler is not None:
            with contextlib.suppress(RuntimeError):  # the code has done it already
                scaler.unscale_(optimizer)
        if self.guard is not None:
            self.guard.optimizers.clip(optimizer, clip_grads)
        else:
            clip_grads([one for group in optimizer.param_groups for one in group["params"]])

    def _weigh(self, optimizer: torch.optim.Optimizer) -> None:
        """Where an optimizer sums or averages, unlike the others: what ``backward`` left out."""
        average = self.averages.get(id(optimizer), self._average)
        if average == self._average:
            return
        factor = 1 / self.aggregation if average else self.aggregation
        for group in optimizer.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    one.grad.mul_(factor)
