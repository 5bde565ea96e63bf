"""Going on from another trial's state under this trial's hyperparameters.

States (momenta, counts of steps, averages) are the other trial's. What its code made of its
hyperparameters, options of optimizers and arguments of schedulers, is what this trial's code has
made of its own.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler as TorchScheduler
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hpcdet.errors import ConfigError

_SEEN = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")
"""What ``ReduceLROnPlateau`` has seen; the rest of its state are its arguments."""


def asked(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The options of each group of parameters, as this trial's code has made them.

    Without what some optimizers count in their groups (the steps of a schedule-free one): it
    stands among their defaults, but is nothing that one can ask them for.
    """
    takes = _askable(type(optimizer))
    counts = {name for name in optimizer.defaults if takes is not None and name not in takes}
    return [
        {name: value for name, value in own.items() if name != "params" and name not in counts}
        for own in optimizer.param_groups
    ]


def options(
    optimizer: torch.optim.Optimizer, saved: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Groups of parameters: what was asked of the optimizer as it has it, the rest as saved."""
    return [
        {**own, **{name: value for name, value in old.items() if name not in own}}
        for own, old in zip(asked(optimizer), saved, strict=True)
    ]


def load(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """``load_state_dict`` of another trial's state; options stay what they are.

    ``optimizer`` may be a framework's, which has the one that trains as its ``optimizer``.

    Raises:
        ValueError: it is the state of other groups of parameters.
    """
    trains = getattr(optimizer, "optimizer", optimizer)
    optimizer.load_state_dict({**saved, "param_groups": options(trains, saved["param_groups"])})


def catch_up(schedulers: Iterable[tuple[Any, Mapping[str, Any]]]) -> None:
    """Bring new schedulers to where the saved ones were, by as many steps.

    They, and the rates they set, are then what they had been with these arguments from the
    beginning: several are stepped in turn, as in training. One that goes by a metric cannot be
    taken there: it keeps what it has seen, and begins with the new rate. A scheduler that is none
    of torch's is loaded as it was saved.

    Raises:
        ConfigError: a schedule is shorter than the steps that were made.
    """
    steps: list[tuple[Fraction, int, TorchScheduler, int]] = []
    for place, (own, saved) in enumerate(schedulers):
        count = _steps(saved) if isinstance(own, TorchScheduler) else None
        if isinstance(own, ReduceLROnPlateau):
            own.load_state_dict({name: saved[name] for name in _SEEN if name in saved})
        elif count is None:
            own.load_state_dict(dict(saved))
        else:  # one that is stepped less often is so at equal distances
            steps += [(Fraction(n + 1, count), place, own, count) for n in range(count)]
    steps.sort(key=lambda step: step[:2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no step of the optimizer came before
        for _, _, own, count in steps:
            try:
                own.step()
            except ValueError as error:
                name = type(own).__name__
                raise ConfigError(
                    f"the schedule cannot continue its parent's after {count} steps: {error}",
                    where=name,
                    hint=f"make the schedule longer than {count} steps, or begin from an earlier "
                    "checkpoint",
                ) from error


def _steps(saved: Mapping[str, Any]) -> int | None:
    """How often a scheduler had been stepped; None if its state does not say."""
    if isinstance(count := saved.get("last_epoch"), int):
        return count
    inner = saved.get("_schedulers") or [{}]
    return _steps(inner[0]) if isinstance(inner[0], Mapping) and inner[0] else None


def _askable(kind: type[torch.optim.Optimizer]) -> set[str] | None:
    """Options that an optimizer's constructor takes; None where that cannot be determined.

    One that takes any (``**kwargs``) hands them on to that of the next class.
    """
    asked = set[str]()
    for base in kind.__mro__:
        if base in (torch.optim.Optimizer, object):  # whose own takes defaults of any name
            break
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        asked |= {one.name for one in parameters}
        if not any(one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in parameters):
            return asked
    return None
