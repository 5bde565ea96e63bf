"""The importance of a search's hyperparameters, and the ranges of their best values.

Trials are compared at one length of training: at the longest rung that enough of them have
reached, without rungs by the best value of each that has ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hpcdet.read.comparison.facts import flat
from hpcdet.read.experiment import series
from hpcdet.read.experiment.gather import Gathered, gather
from hpcdet.read.sections import importance
from hpcdet.read.views.trials import trials
from hpcdet.space.domains import Const
from hpcdet.space.errors import SpaceError, dotted
from hpcdet.space.space import Space
from hpcdet.store.folder.layout import ExperimentPaths

_BEST, _FEWEST = 0.1, 5
"""The part of the trials that are the best ones, and how many these are at least."""


@dataclass(frozen=True)
class HyperparameterView:
    """The importance of a hyperparameter, and the range of its best values."""

    name: str
    """Its name; names of nested ones have dots."""
    importance: float | None
    """Its share of the importance of all, from 0 to 1; null below 20 trials, and for one that
    not all trials have."""
    n: int
    """Number of trials compared that have it."""
    method: str
    """How the importance was computed, and at which length; "" if it was not."""
    reliable: bool
    """True with at least 50 trials."""
    best: Any
    """Its value in the best trial; null if that one does not have it."""
    low: float | None
    """Its least value in the best tenth of the trials, at least 5; null if it is not a number."""
    high: float | None
    """Its greatest value in these."""


def hyperparameters(
    source: ExperimentPaths | Gathered,
) -> tuple[list[HyperparameterView], list[str]]:
    """Return the hyperparameters that were searched, the most important one first, and warnings."""
    gathered = gather(source)
    rows = trials(gathered)
    values, _ = importance.compared(gathered, rows)
    found = importance.for_search(gathered, rows)
    shares = {row.name: row.importance for row in found.rows}
    sign = 1 if gathered.config.searcher.smaller_is_better else -1
    order = sorted(values, key=lambda number: sign * values[number])
    params = {row.trial: row.hyperparameters for row in rows}
    ranked = [flat(params[number]) for number in order]
    top = ranked[: max(_FEWEST, math.ceil(_BEST * len(ranked)))]
    views = [
        HyperparameterView(
            name=name,
            importance=shares.get(name),
            n=sum(name in one for one in ranked),
            method=found.method if name in shares else "",
            reliable=name in shares and found.reliable,
            best=ranked[0].get(name),
            low=min(numbers, default=None),
            high=max(numbers, default=None),
        )
        for name in _searched(gathered)
        if any(name in one for one in ranked)
        for numbers in [_numbers(top, name)]
    ]
    views.sort(key=lambda one: -1.0 if one.importance is None else -one.importance)
    return views, [found.why_not] if found.why_not and views else []


def _searched(gathered: Gathered) -> list[str]:
    """Return the names of the hyperparameters that the search varies."""
    try:
        axes = Space(gathered.config.hyperparameters).axes
    except SpaceError:  # of another version
        return []
    return list(dict.fromkeys(dotted(axis.at) for axis, of in axes if not isinstance(of, Const)))


def _numbers(top: list[dict[str, Any]], name: str) -> list[float]:
    """Return a hyperparameter's values in some trials; none if one of them is no number."""
    values = [one[name] for one in top if name in one]
    found = [one for one in map(series.number, values) if one is not None]
    return found if len(found) == len(values) else []
