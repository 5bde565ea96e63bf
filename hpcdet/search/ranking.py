"""Ranks at a rung: sorted lists of plain data, so that a state is JSON at all times.

An entry is ``[worse, loss, trial]``: ``worse`` is 1 for what is no finite number, which comes
after everything that is one; ties go to the trial that was made first.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

Entry = list[Any]
Ranking = list[Entry]


def entry(loss: float | None, trial: int) -> Entry:
    """``loss`` is None for what is worst."""
    return [1, 0.0, trial] if loss is None else [0, loss, trial]


def loss_of(found: Entry) -> float | None:
    """What an entry was made of."""
    return None if found[0] else found[1]


def loss(metrics: Mapping[str, Any], metric: str, smaller_is_better: bool) -> float | None:
    """The metric with its sign; None if it is missing, no number or not finite."""
    value = metrics.get(metric)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not math.isfinite(number):
        return None
    return number if smaller_is_better else -number


def insert(ranking: Ranking, new: Entry) -> int:
    """Add an entry; returns its rank, 0 for the best."""
    place = bisect_left(ranking, new)
    ranking.insert(place, new)
    return place


def rank(ranking: Ranking, found: Entry) -> int:
    """How many are better."""
    return bisect_left(ranking, found)


def remove(ranking: Ranking, trial: int) -> bool:
    """Take a trial out; rare, and as long as the ranking. Whether it was there."""
    for place, found in enumerate(ranking):
        if found[2] == trial:
            del ranking[place]
            return True
    return False
