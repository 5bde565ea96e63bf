"""How the metrics of many batches and ranks become one value."""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable
from typing import Any


class Reducer(enum.Enum):
    """Standard reductions. ``AVG`` weighs each batch by its samples."""

    AVG = 1
    SUM = 2
    MAX = 3
    MIN = 4


class MetricReducer(abc.ABC):
    """A reduction of one's own over batches and ranks.

    Its attributes are saved with checkpoints; one that holds more than plain values, arrays and
    tensors defines ``state_dict`` and ``load_state_dict``.
    """

    @abc.abstractmethod
    def reset(self) -> None:
        """Begin anew: before each validation, after each report of training metrics."""

    @abc.abstractmethod
    def per_slot_reduce(self) -> Any:
        """Return this rank's values since ``reset``, of types that ranks can send each other.

        These are None, bool, int, float, str, bytes, list, tuple, dict, numpy arrays and tensors.
        """

    @abc.abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """One value (or a dict of them) from what each rank has, in order of rank; on rank 0."""


class FunctionReducer(MetricReducer):
    """Made by ``wrap_reducer`` from a function of the list of all updates of all ranks."""

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self._function = function
        self.updates: list[Any] = []

    def update(self, value: Any) -> None:
        """Add a value."""
        self.updates.append(value)

    def reset(self) -> None:
        self.updates = []

    def per_slot_reduce(self) -> Any:
        return self.updates

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        return self._function([value for values in per_slot_metrics for value in values])

    def state_dict(self) -> dict[str, Any]:
        return {"updates": list(self.updates)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = list(state["updates"])


def state_of(reducer: MetricReducer) -> dict[str, Any]:
    """A reducer's state: its ``state_dict``, or its attributes."""
    if hasattr(reducer, "state_dict"):
        return dict(reducer.state_dict())
    return dict(vars(reducer))


def load_state(reducer: MetricReducer, state: dict[str, Any]) -> None:
    """The inverse of ``state_of``."""
    if hasattr(reducer, "load_state_dict"):
        reducer.load_state_dict(state)
    else:
        vars(reducer).update(state)
