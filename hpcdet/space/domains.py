"""Domains of single hyperparameters. A domain turns 128 random bits into a value.

A value computed as a power is rounded to 12 significant digits: the mathematical libraries of
two machines may differ in the last bits, a sample must not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

BITS = 128


class Domain(Protocol):
    """A set of values with a distribution."""

    def draw(self, bits: int) -> Any:
        """Return the value for ``bits``, uniform in [0, 2**128)."""

    def points(self) -> list[Any] | None:
        """Return the values of a grid, first to last; None if their count is not specified."""

    def holds(self, value: Any) -> bool:
        """True if it is one of the values, of a sample or of a grid."""


def uniform(bits: int) -> float:
    """Return a float in [0, 1), of 53 bits."""
    return (bits >> (BITS - 53)) / 2**53


def below(bits: int, n: int) -> int:
    """Return an integer in [0, n)."""
    return (bits * n) >> BITS


def nearest(value: Fraction) -> int:
    """Return the nearest integer; halves are rounded away from zero."""
    sign = -1 if value < 0 else 1
    return sign * math.floor(abs(value) + Fraction(1, 2))


def spread(low: Fraction, high: Fraction, count: int) -> list[Fraction]:
    """Return ``count`` equally spaced numbers, both ends included; the midpoint for one."""
    if count == 1:
        return [(low + high) / 2]
    return [low + (high - low) * i / (count - 1) for i in range(count)]


def same(one: Any, other: Any) -> bool:
    """True if values are equal and of one type: True == 1 == 1.0, but the choices differ."""
    return type(one) is type(other) and bool(one == other)


def between(value: Any, low: float, high: float) -> bool:
    """True for a number within bounds, up to the rounding of powers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    slack = 1e-11 * max(abs(low), abs(high))
    return low - slack <= value <= high + slack


def rounded(value: float) -> float:
    """Round a value to 12 significant digits, which every machine prints alike."""
    return float(f"{value:.12g}")


@dataclass(frozen=True)
class Const:
    """A hyperparameter with one value."""

    val: Any

    def draw(self, bits: int) -> Any:
        return self.val

    def points(self) -> list[Any]:
        return [self.val]

    def holds(self, value: Any) -> bool:
        return same(value, self.val)


@dataclass(frozen=True)
class Int:
    """Integers from ``minval`` to ``maxval``, both included, in steps of ``step``."""

    minval: int
    maxval: int
    step: int | None = None
    count: int | None = None

    @property
    def _size(self) -> int:
        return (self.maxval - self.minval) // (self.step or 1) + 1

    def draw(self, bits: int) -> int:
        return self.minval + (self.step or 1) * below(bits, self._size)

    def points(self) -> list[int] | None:
        count = self.count or (self._size if self.step else None)
        if count is None:
            return None
        places = spread(Fraction(0), Fraction(self._size - 1), min(count, self._size))
        if self.step:
            return [self.minval + self.step * nearest(place) for place in places]
        return [nearest(self.minval + place) for place in places]

    def holds(self, value: Any) -> bool:
        inside = type(value) is int and self.minval <= value <= self.maxval
        return inside and (value - self.minval) % (self.step or 1) == 0


@dataclass(frozen=True)
class Double:
    """Real numbers, ``maxval`` excluded when drawn, included in a grid."""

    minval: float
    maxval: float
    count: int | None = None

    def draw(self, bits: int) -> float:
        value = self.minval + uniform(bits) * (self.maxval - self.minval)
        return min(value, math.nextafter(self.maxval, self.minval))

    def points(self) -> list[float] | None:
        if self.count is None:
            return None
        # float() of an exact fraction is correctly rounded: 0.1 comes back as 0.1
        low, high = Fraction(str(self.minval)), Fraction(str(self.maxval))
        return [float(value) for value in spread(low, high, self.count)]

    def holds(self, value: Any) -> bool:
        return between(value, self.minval, self.maxval)


@dataclass(frozen=True)
class Log:
    """``base`` to the power of a real number between the bounds: these are exponents."""

    minval: float
    maxval: float
    base: float = 10.0
    count: int | None = None

    def draw(self, bits: int) -> float:
        return rounded(self.base ** Double(self.minval, self.maxval).draw(bits))

    def points(self) -> list[float] | None:
        exponents = Double(self.minval, self.maxval, self.count).points()
        return None if exponents is None else [rounded(self.base**x) for x in exponents]

    def holds(self, value: Any) -> bool:
        low, high = sorted((self.base**self.minval, self.base**self.maxval))
        return between(value, low, high)


@dataclass(frozen=True)
class LogUniform:
    """Real numbers between two values, uniform on a log scale."""

    low: float
    high: float
    count: int | None = None

    def _at(self, share: float) -> float:
        value = rounded(self.low * (self.high / self.low) ** share)
        return min(max(value, self.low), self.high)

    def draw(self, bits: int) -> float:
        return self._at(uniform(bits))

    def points(self) -> list[float] | None:
        if self.count is None:
            return None
        return [self._at(float(x)) for x in spread(Fraction(0), Fraction(1), self.count)]

    def holds(self, value: Any) -> bool:
        return between(value, self.low, self.high)


@dataclass(frozen=True)
class LogInt:
    """Integers between two values, both included, uniform on a log scale."""

    low: int
    high: int
    count: int | None = None

    def draw(self, bits: int) -> int:
        value = rounded(self.low * ((self.high + 1) / self.low) ** uniform(bits))
        return min(math.floor(value), self.high)

    def points(self) -> list[int] | None:
        values = LogUniform(self.low, self.high, self.count).points()
        return None if values is None else list(dict.fromkeys(math.floor(x + 0.5) for x in values))

    def holds(self, value: Any) -> bool:
        return type(value) is int and self.low <= value <= self.high


@dataclass(frozen=True)
class Categorical:
    """One of a list of values of any kind. ``ordered``: their order means something."""

    vals: tuple[Any, ...]
    ordered: bool = False

    def draw(self, bits: int) -> Any:
        return self.vals[below(bits, len(self.vals))]

    def points(self) -> list[Any]:
        return list(self.vals)

    def holds(self, value: Any) -> bool:
        return any(same(value, val) for val in self.vals)
