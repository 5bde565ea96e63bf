"""The one path of gradients: from a backward pass, over all ranks, to the step of an optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from hpcdet.core.training import Session
from hpcdet.pytorch.gradients import buffers

State = dict[str, Any]

FREELY = contextlib.nullcontext()
"""Around what nothing is done about."""


class GradientReducer:
    """The gradients of a rank that is alone; the base of the reducers of several ranks.

    In each batch the trainer calls ``begin``, then ``collect`` around each backward pass,
    ``reduce`` once the backward passes of all shares are over, and ``apply`` for whatever needs
    gradients that are summed over all ranks: the steps of optimizers.

    Attributes:
        averaged: over so many ranks ``reduce`` takes the mean; 1: it takes the sum.
        settling: put around backward passes of the reducer's own, which change nothing.
        summing, summed: called around what ``reduce`` itself adds to the gradients.
    """

    averaged = 1

    def __init__(self, session: Session, models: Callable[[], Sequence[torch.nn.Module]]) -> None:
        """``models``: all that ``distribute`` has given so far."""
        self._session = session
        self._models = models
        self._phases = session.profile.phases
        self.settling: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        self.summing: Callable[[], None] = lambda: None
        self.summed: Callable[[], None] = lambda: None

    # -- models ------------------------------------------------------------------------------

    def units(self, model: torch.nn.Module) -> list[torch.nn.Module]:
        """The modules of a model between which no rank waits for another: compiled one by one."""
        return [model]

    def distribute(self, model: torch.nn.Module) -> torch.nn.Module:
        """A model that learns, on this rank's device, so that its gradients can be reduced."""
        return model.to(self._session.device)

    def plain(self) -> list[torch.nn.Module]:
        """The models as the user made them."""
        return list(self._models())

    @property
    def shares_parameters(self) -> bool:
        """True if each rank has a part of the parameters, and all must run each forward pass."""
        return False

    def silence(self) -> contextlib.AbstractContextManager[Any]:
        """Around a validation: forward passes exchange no gradients and no buffers."""
        return contextlib.nullcontext()

    def sync_buffers(self) -> None:
        """Give all ranks rank 0's buffers, which they get at the next step in any case."""

    def settle(self) -> None:
        """Make parameters what optimizers know and checkpoints hold."""

    # -- a batch -----------------------------------------------------------------------------

    def begin(self, batches: int, *, steps: bool) -> None:
        """Begin a batch.

        Args:
            batches: trained before it.
            steps: optimizers step after it. If not, gradients may stay with their rank.
        """

    def collect(self, loss: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
        """Around the backward pass of ``loss``: its gradients are taken in."""
        return FREELY

    def reduce(self) -> None:
        """Finish the sum of the batch's gradients, and do what ``apply`` has put off."""

    def apply(self, action: Callable[[], None]) -> None:
        """Do what needs the summed gradients, now or in ``reduce``."""
        action()

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse steps of an optimizer that do not come by ``apply``, where they would be wrong."""

    def check_scaler(self) -> None:
        """Refuse a gradient scaler of the user's own, where its update would come too early."""

    # -- state -------------------------------------------------------------------------------

    def spread(self, state: State) -> State:
        """The shared state of a checkpoint as this rank writes it."""
        return state

    def state(self) -> list[State]:
        """This rank's state between batches, by model; empty if there is none."""
        return []

    def load(self, saved: Sequence[State]) -> None:
        """The inverse of ``state``."""


class AveragingReducer(GradientReducer):
    """The base of reducers that average gradients over all ranks while backward runs."""

    def __init__(self, session: Session, models: Callable[[], Sequence[torch.nn.Module]]) -> None:
        super().__init__(session, models)
        self.averaged = session.ranks.world
        self._steps = True

    def begin(self, batches: int, *, steps: bool) -> None:
        self._steps = steps

    def collect(self, loss: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
        if self._steps and loss.requires_grad:
            loss.register_hook(self._backward_begins)  # type: ignore[no-untyped-call]
        return FREELY

    def _backward_begins(self, _gradient: torch.Tensor) -> None:
        """Ask to be called when this rank has computed its gradients.

        That is right before the others' are waited for: callbacks run in the order in which
        they were asked for, and those that wait are asked for with the last gradient.
        """
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._gradients_computed)

    def _gradients_computed(self) -> None:
        self._phases.switch("communication")

    def sync_buffers(self) -> None:
        models = self.plain()
        now = buffers.named(models)
        for name in buffers.alike(models, self._session.peers):
            dist.broadcast(now[name], src=0)
