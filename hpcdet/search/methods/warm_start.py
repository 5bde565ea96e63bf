"""Searches that do not begin from nothing: given points, what others have shown, a checkpoint."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hpcdet.search.api.events import Action, Create, Event, Method
from hpcdet.search.api.ranking import entry
from hpcdet.search.api.sampling import Around, Observation, Sampler, View
from hpcdet.space.space import Space
from hpcdet.store.trials.history import History
from hpcdet.store.trials.parents import ORIGIN


@dataclass(frozen=True)
class First(Around):
    """A sampler whose first suggestions are given; what a point leaves out is drawn."""

    points: Sequence[Mapping[str, Any]]
    space: Space
    seed: int

    @property
    def learns(self) -> bool:
        return self.sampler.learns

    @property
    def constant(self) -> bool:
        return False

    def suggest(self, view: View, number: int) -> dict[str, Any]:
        """Raises as the sampler does, and SpaceError for a point that is not in the space."""
        if number <= len(self.points):
            return self.space.completed(self.points[number - 1], self.seed, number)
        return self.sampler.suggest(view, number)


@dataclass(frozen=True)
class Heirs:
    """A searcher whose trials begin from one checkpoint, where they have no parent of their own."""

    method: Method[Any]
    parent: str = str(ORIGIN)

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def version(self) -> int:
        return self.method.version

    def initial(self) -> Any:
        return self.method.initial()

    def on_event(self, state: Any, event: Event) -> tuple[Any, list[Action]]:
        """Raises as the searcher does."""
        state, actions = self.method.on_event(state, event)
        return state, [self._made(action) for action in actions]

    def _made(self, action: Action) -> Action:
        if isinstance(action, Create) and not action.parent:
            return replace(action, parent=self.parent)
        return action


@dataclass(frozen=True)
class Informed(Around):
    """A sampler that learns, and has seen former experiments.

    Their trials count down from -1, so that they are older than all of this search.
    """

    params: Mapping[int, Mapping[str, Any]]
    seen: Sequence[Observation]
    learns: bool = field(default=True, init=False)

    @classmethod
    def by(cls, sampler: Sampler, history: History) -> Informed:
        numbered = list(enumerate(history.trials, 1))
        seen = [
            Observation(-number, length, loss)
            for number, past in numbered
            for length, loss in past.shown
        ]
        return cls(sampler, {-n: past.params for n, past in numbered}, sorted(seen, key=_order))

    def suggest(self, view: View, number: int) -> dict[str, Any]:
        """Raises as the sampler does."""
        return self.sampler.suggest(_Both(view, self), number)


@dataclass(frozen=True)
class _Both:
    """The present search and the former ones."""

    view: View
    past: Informed

    def params(self) -> Mapping[int, Mapping[str, Any]]:
        return {**self.past.params, **self.view.params()}

    def observations(self, most: int | None = None) -> Iterator[Observation]:
        return heapq.merge(self.view.observations(most), self.past.seen, key=_order)

    def open(self) -> list[int]:
        return self.view.open()


def _order(seen: Observation) -> tuple[int, list[Any]]:
    return -seen.length, entry(seen.loss, seen.trial)
