"""What fresh processes say about two methods, where a process differs from its equal.

Where its memory lies makes a process faster or slower than another one that does the same, for as
long as it lives: by 3 % and more. Measuring it longer says nothing about that. So each method's
processes are started anew for each of several groups, and a group counts as one measurement.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEAST = 4
"""Groups without which nothing can be said."""
_DRAWS = 2000


@dataclass(frozen=True)
class Ratio:
    """How long one method takes, of another; ``low`` and ``high`` are 95 % bounds."""

    value: float
    low: float
    high: float

    def against(self, goal: float) -> str:
        """Whether it is at most ``goal``: "met", "missed" or "not decided"."""
        return self._said(goal, "met", "missed")

    def rank(self) -> str:
        """Whether it takes less: "ahead", "behind" or "not decided"."""
        return self._said(1.0, "ahead", "behind")

    def _said(self, limit: float, below: str, above: str) -> str:
        return below if self.high < limit else above if self.low > limit else "not decided"


def ratio(groups: Sequence[float]) -> Ratio:
    """From one ratio of each group: their geometric mean, and what it may be with other processes.

    The bounds are a bootstrap over groups, widened as Student's distribution is wider than the
    normal one: what few groups show of their differences is too little.

    Raises:
        ValueError: too few groups.
    """
    if len(groups) < LEAST:
        raise ValueError(f"{len(groups)} groups say nothing; {LEAST} are the least")
    logs = [math.log(one) for one in groups]
    mean = statistics.fmean(logs)
    chance = random.Random(7)
    drawn = sorted(statistics.fmean(chance.choices(logs, k=len(logs))) for _ in range(_DRAWS))
    wider = _wider(len(logs))
    bounds = (mean + wider * (drawn[int(at * _DRAWS)] - mean) for at in (0.025, 0.975))
    return Ratio(math.exp(mean), *map(math.exp, bounds))


def _wider(size: int) -> float:
    """By how much 95 % of the means of ``size`` values reach farther than those of drawn ones."""
    normal, free = statistics.NormalDist().inv_cdf(0.975), size - 1
    # Cornish and Fisher's expansion of Student's quantile
    student = normal + (normal**3 + normal) / (4 * free)
    student += (5 * normal**5 + 16 * normal**3 + 3 * normal) / (96 * free**2)
    return student / normal * math.sqrt(size / free)


def within(ours: Sequence[float], peer: Sequence[float]) -> float:
    """One group's ratio of two methods that took turns: without the tenth at each end."""
    logs = sorted(math.log(mine / other) for mine, other in zip(ours, peer, strict=True))
    cut = len(logs) // 10
    return math.exp(statistics.fmean(logs[cut : len(logs) - cut]))
