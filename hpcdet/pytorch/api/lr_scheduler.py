"""``LRScheduler``: a torch scheduler and when the trainer steps it."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch


class LRScheduler:
    """Wraps a torch scheduler.

    Args:
        scheduler: any of ``torch.optim.lr_scheduler``.
        step_mode: when it is stepped by the trainer.
        frequency: every how many of these it is.

    Attributes:
        later: does what needs the summed gradients (``GradientReducer.apply``).
    """

    class StepMode(enum.Enum):
        """``STEP_EVERY_OPTIMIZER_STEP`` differs from ``…_BATCH`` if gradients are aggregated."""

        STEP_EVERY_EPOCH = 1
        STEP_EVERY_BATCH = 2
        MANUAL_STEP = 3
        STEP_EVERY_OPTIMIZER_STEP = 4

    def __init__(
        self,
        scheduler: torch.optim.lr_scheduler.LRScheduler,
        step_mode: StepMode = StepMode.STEP_EVERY_OPTIMIZER_STEP,
        frequency: int = 1,
    ) -> None:
        if not isinstance(step_mode, LRScheduler.StepMode):
            raise TypeError(f"step_mode is {step_mode!r}; it is one of LRScheduler.StepMode")
        if frequency < 1:
            raise ValueError(f"frequency is {frequency}; it is a number of steps")
        self._scheduler = scheduler
        self._mode = step_mode
        self._frequency = frequency
        self.later: Callable[[Callable[[], None]], None] = _now

    @property
    def scheduler(self) -> torch.optim.lr_scheduler.LRScheduler:
        """The one that is wrapped."""
        return self._scheduler

    @property
    def mode(self) -> StepMode:
        """When it is stepped."""
        return self._mode

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step it now: for ``MANUAL_STEP``. In ``train_batch``, virtual ranks do so together."""
        self.later(lambda: self._scheduler.step(*args, **kwargs))

    def get_last_lr(self) -> list[float]:
        """Rates of all parameter groups, as last set."""
        return [float(rate) for rate in self._scheduler.get_last_lr()]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = _plain(self._scheduler.state_dict())
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scheduler.load_state_dict(state)
        _count_milestones(self._scheduler)

    def after_batch(self, batches: int, epochs: int, *, ended: bool, aggregation: int) -> None:
        """The trainer's call after each batch.

        Args:
            batches: trained so far, this one included; ``epochs``: completed.
            ended: this batch completed an epoch.
            aggregation: batches per step of the optimizer.
        """
        mode, count = self._mode, 0
        if mode is self.StepMode.STEP_EVERY_BATCH:
            count = batches
        elif mode is self.StepMode.STEP_EVERY_OPTIMIZER_STEP and batches % aggregation == 0:
            count = batches // aggregation
        elif mode is self.StepMode.STEP_EVERY_EPOCH and ended:
            count = epochs
        if count and count % self._frequency == 0:
            self._scheduler.step()


def _plain(value: Any) -> Any:
    """``MultiStepLR`` counts its milestones, alone and inside of others; a checkpoint has dicts."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _count_milestones(scheduler: Any) -> None:
    if isinstance(scheduler, torch.optim.lr_scheduler.MultiStepLR):
        scheduler.milestones = Counter(scheduler.milestones)
    for one in getattr(scheduler, "_schedulers", ()):
        _count_milestones(one)


def _now(action: Callable[[], None]) -> None:
    action()
