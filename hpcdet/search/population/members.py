"""The state of a population: what is known of each member, and how they rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcdet.rungs import exact
from hpcdet.search.api import ranking
from hpcdet.search.api.codec import StateRecord
from hpcdet.search.api.sampling import Observation
from hpcdet.search.halving.sanity import Doubt

TRAINS, WAITS, HELD, DONE, GONE = "trains", "waits", "held", "done", "gone"
"""It has a place; waits for one; waits for all others; has trained in full; has no heir."""
LIVING = (TRAINS, WAITS, HELD)


@dataclass
class Member(StateRecord):
    """A member of a population; as it is made, nothing is known of it.

    Attributes:
        trial: the one that lives, 0 if none.
        at: the length that it has shown last, in ``generation`` intervals.
        score: what that is worth in a list; empty if it has shown nothing itself.
        goal: the length that it was asked for.
    """

    trial: int = 0
    status: str = WAITS
    at: int = 0
    generation: int = 0
    score: list[Any] = field(default_factory=list)
    goal: int = 0

    def replace(self, at: int = 0, generation: int = 0) -> None:
        """Forget its trial: another one is to take its place, which begins at a length."""
        self.trial, self.status, self.at, self.generation = 0, WAITS, at, generation
        self.score, self.goal = [], 0

    def shows(self, at: int, worth: Any, generation: int) -> None:
        self.at, self.score, self.generation = at, [worth], generation


@dataclass
class PopulationState(StateRecord):
    """The state of a search by a population.

    Attributes:
        of: the place in ``members`` of each trial.
        params, seeds: by the trial's number; those of all trials if the explorer learns.
        seen: reports (trial, length, loss), if the explorer learns.
        until: length of the whole training.
        places: members that may train at once; 0: all.
        mute: trials without the metric.
    """

    members: list[Member]
    of: list[int] = field(default_factory=list)
    params: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict)
    seen: list[list[Any]] = field(default_factory=list)
    until: int = 0
    places: int = 0
    mute: Doubt = field(default_factory=Doubt)
    failures: int = 0
    in_a_row: int = 0
    good: int = 0
    over: bool = False

    def member(self, trial: int) -> Member:
        return self.members[self.of[trial - 1]]

    @property
    def living(self) -> list[Member]:
        """Members that train, or will."""
        return [one for one in self.members if one.status in LIVING]

    @property
    def training(self) -> int:
        """How many members have a place."""
        return sum(one.status == TRAINS for one in self.members)


def cut(quantile: float, population: int, ranked: int) -> int:
    """How many are given up, and how many may be copied: never one and the same.

    While only some have shown anything it is their part of the whole population's number: the
    worse one of the first two is not bad on the word of one.
    """
    whole = math.ceil(exact(quantile) * population)
    return min(whole * ranked // population, ranked // 2)


def ranked(state: PopulationState, generation: int, order: ranking.Ordering) -> list[ranking.Entry]:
    """Living members that have shown something by themselves lately, best first."""
    least = max(generation - 1, 1)
    return sorted(
        order.entry(one.score[0], one.trial)
        for one in state.living
        if one.trial and one.score and one.generation >= least
    )


class PopulationView:
    """The data that an explorer or a sampler may read."""

    def __init__(self, state: PopulationState) -> None:
        self._state = state

    def params(self) -> Mapping[int, Mapping[str, Any]]:
        """Hyperparameters of all trials if the explorer learns, else of the live ones."""
        return {int(trial): params for trial, params in self._state.params.items()}

    def observations(self, most: int | None = None) -> Iterator[Observation]:
        """Longest first, best first among those of one length; only if the explorer learns."""
        seen = [[*ranking.entry(loss, trial), -at] for trial, at, loss in self._state.seen]
        for worse, loss, trial, at in sorted(seen, key=lambda row: (row[3], *row[:3])):
            yield Observation(trial, -at, None if worse else loss)

    def open(self) -> list[int]:
        return [one.trial for one in self._state.members if one.status == TRAINS]
