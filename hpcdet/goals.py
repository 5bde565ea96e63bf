"""Goals of a search: objectives, and constraints that trials must meet.

Pure functions, used by the search and by the views of its results. A metric that is missing, no
number or not finite is worse than any number: it reaches no objective, and no constraint is
known to be met.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpcdet.errors import ConfigError

RESERVED = "gov."
"""What metrics begin with that the governance of a policy measures, and nothing else reports."""
EVER = sys.maxsize
"""A length behind every warm-up."""
Mode = Literal["soft", "hard", "stop"]
MOST = 1e300
"""Bound of an excess: numbers that are added up and kept as JSON stay finite."""


def finite(value: Any) -> float | None:
    """Return a metric as a number; None if it is missing, no number or not finite."""
    if type(value) is float:
        return value if math.isfinite(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def refuse_reserved(metrics: Mapping[str, Any]) -> None:
    """Refuse metrics of users' code that would pass for what governance measures.

    Raises:
        ConfigError: one is named so, whether there is a policy or not.
    """
    for name in metrics:
        if str(name).startswith(RESERVED):
            raise ConfigError(
                f"metrics named {RESERVED}* are measured by governance, and no code may report one",
                where=f"metric {name}",
                hint=f"give it another name, as own_{str(name)[len(RESERVED) :]}",
            )


def loss(metrics: Mapping[str, Any], metric: str, smaller_is_better: bool) -> float | None:
    """Return a metric, negated if needed so that smaller is better; None as of ``finite``."""
    number = finite(metrics.get(metric))
    return number if number is None or smaller_is_better else -number


@dataclass(frozen=True)
class Objective:
    """A metric that a search makes small or large."""

    metric: str
    smaller_is_better: bool = True

    def loss(self, metrics: Mapping[str, Any]) -> float | None:
        return loss(metrics, self.metric, self.smaller_is_better)


@dataclass(frozen=True)
class Constraint:
    """Bounds of a metric.

    Attributes:
        tolerance: an excess over a bound up to this counts as met, and it is the unit of larger
            excesses; if it is 0 the unit is the bound's magnitude, or 1.
        warmup: shorter lengths, in the search's unit, are not judged.
        mode: what a trial that breaks it comes to: ``soft``: it ranks behind those that do not;
            ``hard``: it ends; ``stop``: the experiment pauses, too, for its user to look at it.
    """

    metric: str
    lower: float | None = None
    upper: float | None = None
    tolerance: float = 0.0
    warmup: int = 0
    mode: Mode = "soft"

    def excess(self, metrics: Mapping[str, Any]) -> float | None:
        """Return by how many units it is broken, 0 or less if it is met; None as of ``finite``."""
        value = finite(metrics.get(self.metric))
        if value is None:
            return None
        over = [] if self.upper is None else [(value - self.upper, self.upper)]
        over += [] if self.lower is None else [(self.lower - value, self.lower)]
        most = max((by - self.tolerance) / self._unit(bound) for by, bound in over)
        return min(max(most, -MOST), MOST)

    def told(self, metrics: Mapping[str, Any]) -> str:
        """The constraint beside the value of a report, for people."""
        number = finite(metrics.get(self.metric))
        said = str(metrics.get(self.metric)) if number is None else f"{number:g}"
        return f"constraint {self}: {self.metric} is {said}"

    def _unit(self, bound: float) -> float:
        return self.tolerance or abs(bound) or 1.0

    def __str__(self) -> str:
        low = f"{self.lower:g} <= " if self.lower is not None else ""
        high = f" <= {self.upper:g}" if self.upper is not None else ""
        return f"{low}{self.metric}{high}"


@dataclass(frozen=True)
class GoalStanding:
    """The value of one report by the goals.

    Attributes:
        losses: of each objective, smaller is better; None if any of them is no finite number.
        excess: of each constraint; 0 if it is not judged yet, None if unknown.
    """

    losses: tuple[float, ...] | None
    excess: tuple[float | None, ...] = ()

    @functools.cached_property
    def violation(self) -> float | None:
        """Sum of the excesses over the bounds, 0 if all constraints are met; None if unknown."""
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
        """True if there is one objective and no constraint."""
        return len(self.objectives) == 1 and not self.constraints

    @property
    def several(self) -> bool:
        """True if there is more than one objective, so that trials have no total order."""
        return len(self.objectives) > 1

    @property
    def acts(self) -> bool:
        """True if breaking a constraint may end a trial, or pause the experiment."""
        return any(one.mode != "soft" for one in self.constraints)

    def standing(self, metrics: Mapping[str, Any], length: int) -> GoalStanding:
        """Return the value of a report. ``length``: of the training, in the search's unit."""
        losses = [one.loss(metrics) for one in self.objectives]
        known = [one for one in losses if one is not None]
        excess = [0.0 if length < c.warmup else c.excess(metrics) for c in self.constraints]
        return GoalStanding(tuple(known) if len(known) == len(losses) else None, tuple(excess))

    def lacking(self, metrics: Mapping[str, Any], length: int) -> list[str]:
        """Return the metrics that a report lacks."""
        found = [one.metric for one in self.objectives if one.metric not in metrics]
        if self.constraints:
            due = [one.metric for one in self.constraints if length >= one.warmup]
            found += [name for name in due if name not in metrics]
        return list(dict.fromkeys(found)) if found else found

    def broken(self, metrics: Mapping[str, Any], length: int, mode: Mode) -> Constraint | None:
        """The first constraint of a mode that a report breaks; None if there is none.

        A metric that is NaN or infinite breaks it, one that is not there does not.
        """
        for one in self.constraints:
            if one.mode == mode and length >= one.warmup and one.metric in metrics:
                excess = one.excess(metrics)
                if excess is None or excess > 0:
                    return one
        return None


def goals(
    objectives: Sequence[Mapping[str, Any]], constraints: Sequence[Mapping[str, Any]]
) -> Goals:
    """Return the goals of plain data, as in the resolved config."""
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
        plain.get("mode") or "soft",
    )
