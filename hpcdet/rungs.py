"""Rungs and brackets of a search, in exact arithmetic.

A *rung* is a length of training at which trials are compared; a *bracket* is a ladder of rungs and
the trials that climb it. Both towers need them: the searcher to decide there, a trial to validate
there. Lengths are whole numbers of the search's own unit; a float is never asked for a logarithm,
since ``log(243) / log(3)`` is less than 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Mode = Literal["aggressive", "standard", "conservative"]


@dataclass(frozen=True)
class Bracket:
    """A ladder of rungs and its trials.

    Attributes:
        rungs: ascending lengths; the last one is the whole training.
        trials: the number of trials that begin.
        concurrent: its share of the trials that are open at once.
    """

    rungs: tuple[int, ...]
    trials: int
    concurrent: int

    def expected(self, divisor: float) -> tuple[int, ...]:
        """Return the trials that end at each rung, if ``1/divisor`` of them go on each time."""
        left, found = self.trials, []
        for _ in self.rungs[:-1]:
            on = max(left // exact(divisor), 1)
            found.append(left - on)
            left = on
        return (*found, left)

    def units(self, divisor: float, begun: int = 0) -> int:
        """Return the total length that these trials train.

        Args:
            begun: length at which all of them begin. A trial that would end at a rung before
                that is compared at the next one, with its first report.
        """
        first = next((rung for rung in self.rungs if rung > begun), begun)
        ends = zip(self.rungs, self.expected(divisor), strict=True)
        return sum((max(rung, first) - begun) * trials for rung, trials in ends)


def exact(divisor: float) -> Fraction:
    """Return the number as it is written: 2.7 is 27/10."""
    return Fraction(str(divisor))


def depth(length: int, divisor: float, most: int) -> int:
    """Return the number of rungs: ``1 + max{k: divisor**k <= length}``, at most ``most``."""
    found, power, eta = 1, exact(divisor), exact(divisor)
    while found < most and power <= length:
        found, power = found + 1, power * eta
    return found


def ladder(top: int, divisor: float, count: int) -> tuple[int, ...]:
    """Return the rungs ``floor(top / divisor**k)``, at least 1, ascending, without duplicates."""
    eta = exact(divisor)
    return tuple(sorted({max(top // eta**k, 1) for k in range(count)}))


def one(top: int, divisor: float, num_rungs: int, max_trials: int, max_concurrent: int) -> Bracket:
    """Return the bracket of ``async_halving``."""
    rungs = ladder(top, divisor, num_rungs)
    enough = max(int(exact(divisor) ** (len(rungs) - 1)), 1)
    return Bracket(rungs, max_trials, min(max_concurrent or enough, max_trials))


def adaptive(
    top: int,
    divisor: float,
    mode: Mode,
    max_rungs: int,
    bracket_rungs: Sequence[int],
    max_trials: int,
    max_concurrent: int,
) -> list[Bracket]:
    """Return the brackets of ``adaptive_asha``, most rungs first, as Determined does.

    A bracket of ``k`` rungs weighs ``divisor**(k-1) / k``. With fewer trials than brackets the
    ones with fewest rungs are left out.
    """
    counts = sorted(bracket_rungs, reverse=True)
    if not counts:
        most = min(max_rungs, depth(top, divisor, max_rungs), depth(max_trials, divisor, max_rungs))
        least = {"aggressive": most, "standard": (most - 1) // 2 + 1, "conservative": 1}[mode]
        counts = list(range(most, least - 1, -1))
    ladders = list(dict.fromkeys(ladder(top, divisor, count) for count in counts))
    eta = exact(divisor)
    weights = [eta ** (len(rungs) - 1) / len(rungs) for rungs in ladders]
    trials = share(max_trials, weights)
    return _brackets(ladders, trials, divisor, max_concurrent)


def hyperband(
    top: int, divisor: float, max_rungs: int, max_trials: int | None, max_concurrent: int
) -> list[Bracket]:
    """Return Hyperband's brackets: an equal budget for each, from most trials and rungs to fewest.

    Args:
        max_trials: spread in the same proportions; None: as many as the method says.
    """
    eta = exact(divisor)
    deepest = depth(top, divisor, max_rungs)
    counts = range(deepest, 0, -1)
    trials = [-int(-deepest * eta ** (count - 1) // count) for count in counts]
    if max_trials is not None:
        trials = share(max_trials, [Fraction(number) for number in trials])
    ladders = [ladder(top, divisor, count) for count in counts]
    return _brackets(ladders, trials, divisor, max_concurrent)


def share(trials: int, weights: Sequence[Fraction]) -> list[int]:
    """Distribute trials over brackets by weight: at least one each, the rest to the first.

    The last brackets are left out as long as there are more brackets than trials for them.
    """
    total = sum(weights)
    parts = [max(int(trials * weight / total), 1) for weight in weights]
    if sum(parts) > trials and len(parts) > 1:
        return share(trials, weights[:-1])
    parts[0] += trials - sum(parts)
    return parts


def spread(max_concurrent: int, divisor: float, trials: Sequence[int]) -> list[int]:
    """Return each bracket's share of the open trials; 0: as many as the smallest bracket has."""
    if max_concurrent == 0:
        return [max(trials[-1], int(exact(divisor)))] * len(trials)
    each, more = divmod(max(max_concurrent, len(trials)), len(trials))
    return [each + (number < more) for number in range(len(trials))]


def _brackets(
    ladders: Sequence[tuple[int, ...]], trials: list[int], divisor: float, max_concurrent: int
) -> list[Bracket]:
    parts = spread(max_concurrent, divisor, trials)
    return [Bracket(*row) for row in zip(ladders, trials, parts, strict=False)]
