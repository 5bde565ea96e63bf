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
_DRAWS = 4000


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

    The bounds are a bootstrap over groups, of the mean in units of its own standard error
    ("bootstrap-t"): with ten groups, drawing means alone gives bounds that are too narrow.

    Raises:
        ValueError: too few groups.
    """
    if len(groups) < LEAST:
        raise ValueError(f"{len(groups)} groups say nothing; {LEAST} are the least")
    logs = [math.log(one) for one in groups]
    mean, error = _mean(logs)
    chance = random.Random(7)
    drawn = [_mean(chance.choices(logs, k=len(logs))) for _ in range(_DRAWS)]
    # draws of one group alone have no error, and say nothing
    off = sorted((other - mean) / its for other, its in drawn if its > 1e-6 * error)
    if not off:  # all groups are alike
        return Ratio(math.exp(mean), math.exp(mean), math.exp(mean))
    low, high = off[int(0.025 * len(off))], off[int(0.975 * len(off))]
    return Ratio(math.exp(mean), math.exp(mean - high * error), math.exp(mean - low * error))


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and its standard error."""
    size = len(values)
    mean = sum(values) / size
    spread = sum((one - mean) ** 2 for one in values) / (size - 1)
    return mean, math.sqrt(spread / size)


def within(ours: Sequence[float], peer: Sequence[float]) -> float:
    """One group's ratio of two methods that took turns: without the tenth at each end."""
    logs = sorted(math.log(mine / other) for mine, other in zip(ours, peer, strict=True))
    cut = len(logs) // 10
    return math.exp(statistics.fmean(logs[cut : len(logs) - cut]))
