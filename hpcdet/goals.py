"""What a search is after: objectives, and constraints that trials have to keep.

Pure, and read by those who search as by those who look at what was found. A metric that is
missing, no number or not finite is worse than any number: no objective is reached with it, no
constraint is known to be kept.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EVER = sys.maxsize
"""A length behind every warm-up."""
MOST = 1e300
"""Bound of an excess: numbers that are added up and kept as JSON stay finite."""


def finite(value: Any) -> float | None:
    """A metric as a number; None if it is missing, no number or not finite."""
    if type(value) is float:
        return value if math.isfinite(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def loss(metrics: Mapping[str, Any], metric: str, smaller_is_better: bool) -> float | None:
    """A metric with its sign, so that smaller is better; None as of ``finite``."""
    number = finite(metrics.get(metric))
    return number if number is None or smaller_is_better else -number


@dataclass(frozen=True)
class Objective:
    metric: str
    smaller_is_better: bool = True

    def loss(self, metrics: Mapping[str, Any]) -> float | None:
        return loss(metrics, self.metric, self.smaller_is_better)


@dataclass(frozen=True)
class Constraint:
    """Bounds of a metric.

    Attributes:
        tolerance: beyond a bound by no more than this still counts as kept, and it is the unit of
            what goes further; where it is 0 the unit is the bound's magnitude, or 1.
        warmup: shorter lengths, in the search's unit, are not judged.
        hard: a trial that breaks it ends; else it only ranks behind those that do not.
    """

    metric: str
    lower: float | None = None
    upper: float | None = None
    tolerance: float = 0.0
    warmup: int = 0
    hard: bool = False

    def excess(self, metrics: Mapping[str, Any]) -> float | None:
        """By how many units it is broken, 0 or less if it is kept; None as of ``finite``."""
        value = finite(metrics.get(self.metric))
        if value is None:
            return None
        over = [] if self.upper is None else [(value - self.upper, self.upper)]
        over += [] if self.lower is None else [(self.lower - value, self.lower)]
        most = max((by - self.tolerance) / self._unit(bound) for by, bound in over)
        return min(max(most, -MOST), MOST)

    def _unit(self, bound: float) -> float:
        return self.tolerance or abs(bound) or 1.0

    def __str__(self) -> str:
        low = f"{self.lower:g} <= " if self.lower is not None else ""
        high = f" <= {self.upper:g}" if self.upper is not None else ""
        return f"{low}{self.metric}{high}"


@dataclass(frozen=True)
class GoalStanding:
    """What one report is worth.

    Attributes:
        losses: of each objective, smaller is better; None if any of them is no finite number.
        excess: of each constraint; 0 where it is not judged yet, None if nobody knows.
    """

    losses: tuple[float, ...] | None
    excess: tuple[float | None, ...] = ()

    @functools.cached_property
    def violation(self) -> float | None:
        """Sum of what goes beyond the bounds, 0 if all is kept; None if nobody knows."""
        total = 0.0
        for one in self.excess:
            if one is None:
                return None
            total += max(one, 0.0)
        return total

    @property
    def feasible(self) -> bool:
        return self.violation == 0


@dataclass(frozen=True)
class Goals:
    """Objectives, at least one, and constraints."""

    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...] = ()

    @property
    def plain(self) -> bool:
        """One objective and nothing besides."""
        return len(self.objectives) == 1 and not self.constraints

    @property
    def several(self) -> bool:
        """Whether there is more than one objective, so that trials have no order of their own."""
        return len(self.objectives) > 1

    @property
    def hard(self) -> bool:
        """Whether breaking a constraint may end a trial."""
        return any(one.hard for one in self.constraints)

    def standing(self, metrics: Mapping[str, Any], length: int) -> GoalStanding:
        """What a report is worth. ``length``: of the training, in the search's unit."""
        losses = [one.loss(metrics) for one in self.objectives]
        known = [one for one in losses if one is not None]
        excess = [0.0 if length < c.warmup else c.excess(metrics) for c in self.constraints]
        return GoalStanding(tuple(known) if len(known) == len(losses) else None, tuple(excess))

    def lacking(self, metrics: Mapping[str, Any], length: int) -> list[str]:
        """The metrics that a report should have and has not."""
        found = [one.metric for one in self.objectives if one.metric not in metrics]
        if self.constraints:
            due = [one.metric for one in self.constraints if length >= one.warmup]
            found += [name for name in due if name not in metrics]
        return list(dict.fromkeys(found)) if found else found

    def broken(self, metrics: Mapping[str, Any], length: int) -> str:
        """Which hard constraint a report breaks, and by what; "" if none.

        A metric that is NaN or infinite breaks it, one that is not there does not.
        """
        for one in self.constraints:
            if one.hard and length >= one.warmup and one.metric in metrics:
                excess = one.excess(metrics)
                if excess is None or excess > 0:
                    return f"constraint {one}: {one.metric} is {metrics[one.metric]:g}"
        return ""


def goals(
    objectives: Sequence[Mapping[str, Any]], constraints: Sequence[Mapping[str, Any]]
) -> Goals:
    """From plain data, as the resolved config has it."""
    return Goals(
        tuple(Objective(one["metric"], one.get("smaller_is_better", True)) for one in objectives),
        tuple(map(_constraint, constraints)),
    )


def _constraint(plain: Mapping[str, Any]) -> Constraint:
    warmup = plain.get("warmup")
    return Constraint(
        plain["metric"],
        plain.get("lower"),
        plain.get("upper"),
        plain.get("tolerance") or 0.0,
        next(iter(warmup.values())) if warmup else 0,
        plain.get("mode") == "hard",
    )
