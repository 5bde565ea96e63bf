"""Members of a population: what is known of each, and who of them is good or bad."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from hpcdet.rungs import exact
from hpcdet.search.api import ranking
from hpcdet.search.api.events import State
from hpcdet.search.api.sampling import Observation

Member = dict[str, Any]

TRAINS, WAITS, HELD, DONE, GONE = "trains", "waits", "held", "done", "gone"
"""It has a place; waits for one; waits for all others; has trained in full; has no heir."""
LIVING = (TRAINS, WAITS, HELD)


def member(**known: Any) -> Member:
    """One of whom nothing is known.

    ``trial``: the one that lives, 0 if none; ``at``: the length that it has shown last, in
    ``generation`` intervals; ``score``: what that is worth in a list, empty if it has shown nothing
    itself; ``goal``: the length that it was asked for.
    """
    return {
        "trial": 0,
        "status": WAITS,
        "at": 0,
        "generation": 0,
        "score": [],
        "goal": 0,
        **known,
    }


def living(state: State) -> list[Member]:
    """Members that train, or will."""
    return [one for one in state["members"] if one["status"] in LIVING]


def cut(quantile: float, population: int, ranked: int) -> int:
    """How many are given up, and how many may be copied: never one and the same.

    While only some have shown anything it is their part of the whole population's number: the
    worse one of the first two is not bad on the word of one.
    """
    whole = math.ceil(exact(quantile) * population)
    return min(whole * ranked // population, ranked // 2)


def ranked(state: State, generation: int, order: ranking.Ordering) -> list[ranking.Entry]:
    """Living members that have shown something by themselves lately, best first."""
    least = max(generation - 1, 1)
    return sorted(
        order.entry(one["score"][0], one["trial"])
        for one in living(state)
        if one["trial"] and one["score"] and one["generation"] >= least
    )


class PopulationView:
    """The data that an explorer or a sampler may read."""

    def __init__(self, state: State) -> None:
        self._state = state

    def params(self) -> Mapping[int, Mapping[str, Any]]:
        """Hyperparameters of all trials if the explorer learns, else of the live ones."""
        return {int(trial): params for trial, params in self._state["params"].items()}

    def observations(self, most: int | None = None) -> Iterator[Observation]:
        """Longest first, best first among those of one length; only if the explorer learns."""
        seen = [[*ranking.entry(loss, trial), -at] for trial, at, loss in self._state["seen"]]
        for worse, loss, trial, at in sorted(seen, key=lambda row: (row[3], *row[:3])):
            yield Observation(trial, -at, None if worse else loss)

    def open(self) -> list[int]:
        return [one["trial"] for one in self._state["members"] if one["status"] == TRAINS]
