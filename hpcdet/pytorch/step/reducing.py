"""The metric reducers that a trial has wrapped: when each counts, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hpcdet.errors import UsageError
from hpcdet.pytorch.gradients.division import Division
from hpcdet.pytorch.metrics.reducers import FunctionReducer, MetricReducer


@dataclass(frozen=True)
class _Wrapped:
    reducer: MetricReducer
    training: bool
    validation: bool


class Reducing:
    """Reducers by name; iterating gives them in order.

    Attributes:
        division: of batches over all ranks.
    """

    def __init__(self, division: Division) -> None:
        self.division = division
        self._wrapped: dict[str, _Wrapped] = {}

    def __iter__(self) -> Iterator[MetricReducer]:
        return (one.reducer for one in self._wrapped.values())

    def add(
        self,
        reducer: MetricReducer | Callable[[list[Any]], Any],
        name: str | None,
        *,
        training: bool,
        validation: bool,
    ) -> MetricReducer:
        """Take in a reducer, or make one from a function of all updates.

        Raises:
            UsageError: the name is taken.
        """
        made = reducer if isinstance(reducer, MetricReducer) else FunctionReducer(reducer)
        made.reset()
        key = name if name is not None else f"#{len(self._wrapped)}"
        if key in self._wrapped:
            raise UsageError(f"there are two reducers {name!r}", where="wrap_reducer")
        self._wrapped[key] = _Wrapped(made, training, validation)
        return made

    def all(self) -> dict[str, MetricReducer]:
        """All of them."""
        return {name: one.reducer for name, one in self._wrapped.items()}

    def of(self, *, training: bool) -> dict[str, MetricReducer]:
        """Those that count in training, or those that do in validation."""
        return {
            name: one.reducer
            for name, one in self._wrapped.items()
            if (one.training if training else one.validation)
        }

    def reset(self, *, training: bool) -> None:
        """Those of training or of validation begin anew."""
        self.division.reset(self.of(training=training))

    def reduced(self, *, training: bool) -> dict[str, Any]:
        """Values of those of training or of validation over all ranks, on all ranks."""
        return self.division.reduce(self.of(training=training))
