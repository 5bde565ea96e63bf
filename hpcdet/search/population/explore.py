"""Hyperparameters near others: what a model goes on with that was copied from a better one.

Each value is drawn anew with some probability, else it moves to a neighbour: numbers by one of a
few factors, ordered categories by one place. What must not change while a model trains
(``mutable: false``) and constants stay. A choice that others depend on stays unless it is drawn
anew; what then exists for the first time is drawn, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hpcdet.search.api.sampling import View
from hpcdet.space.domains import (
    Categorical,
    Const,
    Domain,
    Double,
    Int,
    Log,
    LogInt,
    LogUniform,
    below,
    rounded,
    uniform,
)
from hpcdet.space.errors import Path
from hpcdet.space.space import MAX_REDRAWS, Space, bits
from hpcdet.space.space_tree import Axis


class Explorer(Protocol):
    """Where a population's new hyperparameters come from: a pure function, as samplers are."""

    @property
    def learns(self) -> bool:
        """True if it learns from the reports of trials."""

    def explore(
        self, view: View, donor: int, params: Mapping[str, Any], number: int
    ) -> dict[str, Any]:
        """Those for trial ``number``, which goes on from ``donor``, whose are ``params``."""


@dataclass(frozen=True)
class Perturb:
    """Random moves (Jaderberg et al., Population Based Training of Neural Networks, 2017).

    Attributes:
        resample: probability with which a value is drawn anew.
        factors: by which numbers are multiplied; each as likely as the next.
    """

    space: Space
    seed: int
    resample: float = 0.25
    factors: Sequence[float] = (0.8, 1.2)
    learns: bool = False

    def explore(
        self, view: View, donor: int, params: Mapping[str, Any], number: int
    ) -> dict[str, Any]:
        """Those of the donor, where the config allows nothing that is near them."""
        # by where they stand in the space: two options may have equal names for different things
        before = {axis.at: value for axis, _, value in self.space.drawn(params)}
        for redraw in range(MAX_REDRAWS):
            found = self.space.build(_Move(self, before, number, redraw))
            if found is not None:
                return found
        return dict(params)


class _Move:
    """One try at a whole sample."""

    def __init__(
        self, method: Perturb, before: Mapping[Path, Any], number: int, redraw: int
    ) -> None:
        self._method, self._before = method, before
        self._number, self._redraw = number, redraw
        self._selectors = method.space.selectors

    def __call__(self, axis: Axis, domain: Domain) -> Any:
        if axis.at not in self._before:
            return domain.draw(self._bits(axis.path))
        before = self._before[axis.at]
        if not axis.mutable or isinstance(domain, Const):
            return before
        if uniform(self._bits((*axis.path, "", "resample"))) < self._method.resample:
            return domain.draw(self._bits(axis.path))
        if isinstance(domain, Categorical) and not domain.ordered:
            if axis.path in self._selectors:
                return before
            return domain.draw(self._bits(axis.path))
        toss = self._bits((*axis.path, "", "perturb"))
        return perturbed(domain, before, toss, self._method.factors)

    def _bits(self, path: Path) -> int:
        return bits(self._method.seed, self._number, path, self._redraw)


def perturbed(domain: Domain, value: Any, toss: int, factors: Sequence[float]) -> Any:
    """Return a neighbour of a value; ``toss``, uniform in [0, 2**128), selects it.

    A number at a bound that would leave it stays there. A whole number changes by one step at
    least, else it never would where it is small.
    """
    factor = factors[below(toss, len(factors))]
    match domain:
        case Double(low, high):
            return min(max(rounded(value * factor), low), math.nextafter(high, low))
        case Log(low, high, base):
            least, most = sorted((rounded(base**low), rounded(base**high)))
            return min(max(rounded(value * factor), least), most)
        case LogUniform(low, high):
            return min(max(rounded(value * factor), low), high)
        case Int(low, high, step):
            return _whole(value, factor, low, high, step or 1)
        case LogInt(low, high):
            return _whole(value, factor, low, high, 1)
        case Categorical(vals, ordered=True):
            place = _place(vals, value) + (1 if below(toss, 2) else -1)
            return vals[min(max(place, 0), len(vals) - 1)]
    return value


def _whole(value: int, factor: float, low: int, high: int, step: int) -> int:
    """On the grid of the steps: the first point at or beyond ``value * factor``, but another."""
    aim = value * factor
    up = aim > value or (aim == value and factor > 1)
    away = max(math.ceil(abs(aim - value) / step - 1e-9), 1)
    last = low + (high - low) // step * step
    return min(max(value + (away if up else -away) * step, low), last)


def _place(vals: Sequence[Any], value: Any) -> int:
    """``True`` and ``1`` are equal, and two values."""
    same = (n for n, each in enumerate(vals) if each == value and type(each) is type(value))
    return next(same, 0)
