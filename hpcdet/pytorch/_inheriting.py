"""Going on from another trial's state under this trial's hyperparameters.

States (momenta, counts of steps, averages) are the other trial's. What its code made of its
hyperparameters, options of optimizers and arguments of schedulers, is what this trial's code has
made of its own.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler as TorchScheduler
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hpcdet.pytorch._lr import LRScheduler

_SEEN = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")
"""What ``ReduceLROnPlateau`` has seen; the rest of its state are its arguments."""


def options(
    optimizer: torch.optim.Optimizer, saved: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Groups of parameters: their options as the optimizer has them, the rest as saved.

    The rest is what some optimizers count in their groups (the steps of a schedule-free one): it
    stands among their defaults, but is nothing that one can ask them for.
    """
    asked = set(inspect.signature(type(optimizer)).parameters)
    counts = {name for name in optimizer.defaults if name not in asked}
    return [
        {
            **{name: value for name, value in own.items() if name not in counts},
            **{name: value for name, value in old.items() if name in counts or name not in own},
            "params": old["params"],
        }
        for own, old in zip(optimizer.param_groups, saved, strict=True)
    ]


def catch_up(scheduler: LRScheduler, saved: Mapping[str, Any]) -> None:
    """Bring a new scheduler to where a saved one was, by as many steps.

    It, and the rates it sets, are then what they had been with these arguments from the beginning.
    One that goes by a metric cannot be taken there: it keeps what it has seen, and begins with the
    new rate. A scheduler that is none of torch's is loaded as it was saved.
    """
    own = scheduler.scheduler
    if isinstance(own, ReduceLROnPlateau):
        own.load_state_dict({name: saved[name] for name in _SEEN if name in saved})
        return
    count = _steps(saved) if isinstance(own, TorchScheduler) else None
    if count is None:
        scheduler.load_state_dict(dict(saved))
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no step of the optimizer came before
        for _ in range(count):
            own.step()


def _steps(saved: Mapping[str, Any]) -> int | None:
    """How often a scheduler had been stepped; None if its state does not say."""
    if isinstance(count := saved.get("last_epoch"), int):
        return count
    inner = saved.get("_schedulers") or [{}]
    return _steps(inner[0]) if isinstance(inner[0], Mapping) and inner[0] else None
