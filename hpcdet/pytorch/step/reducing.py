"""The metric reducers that a trial has wrapped: when each counts, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hpcdet.errors import UsageError
from hpcdet.pytorch.gradients.virtual import Elastic
from hpcdet.pytorch.metrics.metrics import across_ranks
from hpcdet.pytorch.metrics.reducers import FunctionReducer, MetricReducer
from hpcdet.train.comm.collectives import Peers


@dataclass(frozen=True)
class _Wrapped:
    reducer: MetricReducer
    training: bool
    validation: bool


class Reducing:
    """Reducers by name; iterating gives them in order.

    Attributes:
        elastic: set where virtual ranks have a state of each reducer of their own.
    """

    def __init__(self, peers: Peers) -> None:
        self.elastic: Elastic | None = None
        self._peers = peers
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
        found = self.of(training=training)
        if self.elastic is not None:
            self.elastic.reducers.reset(list(found))
            return
        for reducer in found.values():
            reducer.reset()

    def reduced(self, *, training: bool) -> dict[str, Any]:
        """Values of those of training or of validation over all ranks, on all ranks."""
        found = self.of(training=training)
        if self.elastic is not None:
            return self.elastic.reducers.reduce(list(found))
        return across_ranks(found, self._peers)
