"""Scales of charts, and formatting of numbers, times and sizes for the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200)
_DAY = 86400


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic scale from values ``low…high`` to places ``start…end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(value)
        share = (at - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self) -> list[float]:
        """Return round values in the range, about five of them."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            step = max(1, (last - first) // 5)
            decades = [10.0**power for power in range(first, last + 1, step)]
            return [value for value in decades if self.low <= value <= self.high]
        return even(self.low, self.high)


def scale(
    values: Sequence[float], start: float, end: float, *, log: bool = False, air: float = 0.0
) -> Scale:
    """Return the scale of these values; a single value lies in the middle.

    Args:
        air: room beyond the least and the greatest value, as a share of the range; not for ``log``.
    """
    low, high = min(values), max(values)
    if not log:
        margin = (high - low) * air if high > low else abs(low) * 0.1 or 1.0
        low, high = low - margin, high + margin
    return Scale(low, high, start, end, log)


@dataclass(frozen=True)
class Axes:
    """The frame of a chart, from ``left``, ``top`` to ``right``, ``bottom``, and its ticks.

    Attributes:
        x_ticks, y_ticks: pairs of a place and what is said there.
    """

    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    left: int
    top: int
    right: int
    bottom: int


def even(low: float, high: float, count: int = 5) -> list[float]:
    """Return the multiples of 1, 2 or 5 times a power of ten in a range."""
    rough = (high - low) / count
    if rough <= 0 or not math.isfinite(rough):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step)
    return [round(n * step, 12) for n in range(first, math.floor(high / step) + 1)]


def times(length_s: float) -> list[float]:
    """Return round times from 0 to a length, at most seven, in seconds."""
    for step in _STEPS_S:
        if length_s / step <= 6:
            return [n * float(step) for n in range(int(length_s / step) + 1)]
    step = _DAY * math.ceil(length_s / _DAY / 6)
    return [n * float(step) for n in range(int(length_s / step) + 1)]


def slot_time(slot_s: float) -> str:
    """Format slot-seconds as ``1.25 slot-h``, small ones in slot-minutes or slot-seconds."""
    for name, size in (("h", 3600), ("min", 60)):
        if slot_s >= size:
            many = slot_s >= 1000 * size
            return f"{slot_s / size:{',.0f' if many else '.3g'}} slot-{name}"
    return f"{slot_s:.3g} slot-s"


def number(value: float | str | None) -> str:
    """Format a number with four significant digits, or its whole part; other values as they are."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e9 else f"{value:.4g}"
