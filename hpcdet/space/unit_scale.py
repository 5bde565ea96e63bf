"""Conversion of values to places in [0, 1], on the scale of drawing, and back."""

from __future__ import annotations

import math
from typing import Any

from hpcdet.space.domains import (
    Categorical,
    Domain,
    Double,
    Int,
    Log,
    LogInt,
    LogUniform,
    rounded,
    same,
)


def place_of(domain: Domain, value: Any) -> float:
    """Return the place of a number between its bounds, or of an ordered choice among all."""
    low, high, number = _scaled(domain, value)
    return min(max((number - low) / (high - low), 0.0), 1.0)


def at(domain: Domain, place: float) -> Any:
    """Return the number at a place; integers are rounded to their steps."""
    match domain:
        case Double(low, high):
            return min(low + place * (high - low), math.nextafter(high, low))
        case Log(low, high, base):
            return rounded(base ** min(low + place * (high - low), math.nextafter(high, low)))
        case LogUniform(low, high):
            return min(max(rounded(low * (high / low) ** place), low), high)
        case LogInt(low, high):
            return min(max(round(rounded(low * (high / low) ** place)), low), high)
        case Int(low, high, step):
            return low + (step or 1) * round(place * ((high - low) // (step or 1)))
    raise TypeError(f"{domain!r} has no places")


def _scaled(domain: Domain, value: Any) -> tuple[float, float, float]:
    match domain:
        case Double(low, high) | Int(low, high):
            return low, high, value
        case Log(low, high, base):
            return low, high, math.log(value) / math.log(base)
        case LogUniform(low, high) | LogInt(low, high):
            return math.log(low), math.log(high), math.log(value)
        case Categorical(vals, ordered=True):
            return 0, max(len(vals) - 1, 1), index_of(domain, value)
    raise TypeError(f"{domain!r} has no places")


def index_of(domain: Categorical, value: Any) -> int:
    """Return the index of a value among the choices. True == 1 == 1.0, but the choices differ."""
    return next(n for n, other in enumerate(domain.vals) if same(other, value))
