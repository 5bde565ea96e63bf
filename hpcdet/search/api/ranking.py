"""Ranks at a rung: sorted lists of plain data, so that a state is JSON at all times.

An entry is ``[worse, loss, trial]``: ``worse`` is 1 for what is no finite number, which comes
after everything that is one; ties go to the trial that was made first. ``ByLoss`` ranks so.

With constraints or several objectives an entry is ``[worse, key, trial, losses, excess]``, and
``ByGoals`` ranks: feasible trials before infeasible ones, these by the sum of what they violate
(Deb, "An efficient constraint handling method for genetic algorithms", 2000), and last those of
which something is no finite number. The key of a feasible trial is its loss, or with several
objectives the number of its front, in which the order is that of ``pareto.spread``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hpcdet import pareto
from hpcdet.goals import Goals, Objective, loss

__all__ = ["ByGoals", "ByLoss", "Entry", "Ordering", "Ranking", "by", "loss"]

Entry = list[Any]
Ranking = list[Entry]
Worth = Any
"""What a report is worth to an order, as JSON."""


def entry(loss: float | None, trial: int) -> Entry:
    """``loss`` is None for what is worst."""
    return [1, 0.0, trial] if loss is None else [0, loss, trial]


def loss_of(found: Entry) -> float | None:
    """Return the loss of an entry; None also for an infeasible one."""
    return None if found[0] else found[1]


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


class Ordering(Protocol):
    """How trials rank. ``waiting`` are those of ``scores`` that may be promoted, both sorted."""

    def worth(self, metrics: Mapping[str, Any], length: int) -> Worth:
        """Return the worth of a report; ``length`` is in the search's unit."""

    def entry(self, worth: Worth, trial: int) -> Entry:
        """The entry of a trial whose report is worth so much; of None for what is worst."""

    def insert(self, scores: Ranking, waiting: Ranking, new: Entry) -> int:
        """Add an entry to the scores; returns its rank, 0 for the best."""

    def remove(self, scores: Ranking, waiting: Ranking, trial: int) -> None:
        """Take a trial out of the scores as if it had never been there."""

    def first(self, scores: Ranking, waiting: Ranking, cut: int) -> tuple[int, int] | None:
        """Which of those that wait is best, and its rank; None if that is not below ``cut``."""


def by(goals: Goals) -> Ordering:
    """The order that goals ask for."""
    return ByLoss(goals.objectives[0]) if goals.plain else ByGoals(goals)


@dataclass(frozen=True)
class ByLoss:
    """One objective, and nothing besides."""

    objective: Objective

    def worth(self, metrics: Mapping[str, Any], length: int) -> Worth:
        return self.objective.loss(metrics)

    def entry(self, worth: Worth, trial: int) -> Entry:
        return entry(worth, trial)

    def insert(self, scores: Ranking, waiting: Ranking, new: Entry) -> int:
        return insert(scores, new)

    def remove(self, scores: Ranking, waiting: Ranking, trial: int) -> None:
        remove(scores, trial)

    def first(self, scores: Ranking, waiting: Ranking, cut: int) -> tuple[int, int] | None:
        if not cut or waiting[0] > scores[cut - 1]:
            return None
        return 0, bisect_left(scores, waiting[0])


@dataclass(frozen=True)
class ByGoals:
    """Constraints, several objectives, or both."""

    goals: Goals

    def worth(self, metrics: Mapping[str, Any], length: int) -> Worth:
        """``[losses or None, excess of each constraint]``."""
        found = self.goals.standing(metrics, length)
        return [list(found.losses) if found.losses is not None else None, list(found.excess)]

    def entry(self, worth: Worth, trial: int) -> Entry:
        losses, excess = worth or (None, [])
        if losses is None or None in excess:
            return [2, 0.0, trial, losses, excess]
        violation = sum(one for one in excess if one > 0)
        if violation:
            return [1, violation, trial, losses, excess]
        return [0, 0 if self.goals.several else losses[0], trial, losses, excess]

    def insert(self, scores: Ranking, waiting: Ranking, new: Entry) -> int:
        if new[0] or not self.goals.several:
            return insert(scores, new)
        moved = _settle(scores, new)
        for found in waiting:
            if found[2] in moved:
                found[1] = moved[found[2]]
        waiting.sort()
        return _place(scores, new)

    def remove(self, scores: Ranking, waiting: Ranking, trial: int) -> None:
        """Rare, and as long as sorting all of them."""
        if not remove(scores, trial) or not self.goals.several:
            return
        feasible = [found for found in scores if not found[0]]
        fronts = pareto.layers([found[3] for found in feasible])
        keys = {found[2]: front for found, front in zip(feasible, fronts, strict=True)}
        for ranking in (scores, waiting):
            for found in ranking:
                found[1] = keys.get(found[2], found[1])
            ranking.sort()

    def first(self, scores: Ranking, waiting: Ranking, cut: int) -> tuple[int, int] | None:
        head = waiting[0]
        best = bisect_left(scores, head[:2])
        if best >= cut:
            return None
        if head[0] or not self.goals.several:
            best = bisect_left(scores, head)
            return (0, best) if best < cut else None
        same = {found[2]: index for index, found in enumerate(waiting[: _end(waiting, head)])}
        for place, trial in enumerate(_ordered(scores, head), best):
            if place >= cut:
                return None
            if trial in same:
                return same[trial], place
        return None


def _end(ranking: Ranking, found: Entry) -> int:
    """Behind the last of those with the class and key of an entry."""
    return bisect_right(ranking, (found[0], found[1]), key=lambda one: (one[0], one[1]))


def _ordered(scores: Ranking, found: Entry) -> list[int]:
    """The trials of the front of an entry, best first."""
    front = scores[bisect_left(scores, found[:2]) : _end(scores, found)]
    return [front[i][2] for i in pareto.spread([one[3] for one in front])]


def _place(scores: Ranking, found: Entry) -> int:
    return bisect_left(scores, found[:2]) + _ordered(scores, found).index(found[2])


def _settle(scores: Ranking, new: Entry) -> dict[int, int]:
    """Add a feasible entry to its front; the new fronts of those that it moves, and they move.

    Those of a front that newcomers dominate go on to the next one, and so on (Li et al.,
    "Efficient Non-domination Level Update", IEEE Transactions on Cybernetics 2017).
    """
    feasible = bisect_left(scores, [1])
    low, high = 0, scores[feasible - 1][1] + 1 if feasible else 0
    while low < high:
        middle = (low + high) // 2
        begin, end = bisect_left(scores, [0, middle]), bisect_left(scores, [0, middle + 1])
        if any(pareto.dominates(one[3], new[3]) for one in scores[begin:end]):
            low = middle + 1
        else:
            high = middle
    moved: dict[int, int] = {}
    front, coming = low, [new]
    while coming:
        begin, end = bisect_left(scores, [0, front]), bisect_left(scores, [0, front + 1])
        stay: Ranking = []
        beaten: Ranking = []
        for one in scores[begin:end]:
            out = any(pareto.dominates(other[3], one[3]) for other in coming)
            (beaten if out else stay).append(one)
        for one in coming:
            one[1] = moved[one[2]] = front
        scores[begin:end] = sorted(stay + coming)
        front, coming = front + 1, beaten
    return moved
