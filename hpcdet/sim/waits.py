"""Random times in seconds: of jobs in the queue, of files until they are visible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from numpy.random import Generator

from hpcdet.units import seconds


@dataclass(frozen=True)
class QueueWait:
    """A distribution of times.

    Attributes:
        kind: ``fixed`` (always ``typical_s``), ``exp`` (exponential with that mean), ``lognormal``
            (with that median) or ``list`` (one of ``values_s``, each as likely as the others).
        typical_s: the value, mean or median in seconds.
        sigma: standard deviation of the logarithm, of ``lognormal``.
        values_s: times that were seen, of ``list``.
    """

    kind: Literal["fixed", "exp", "lognormal", "list"] = "fixed"
    typical_s: float = 0.0
    sigma: float = 1.0
    values_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        times = (self.typical_s, self.sigma, *self.values_s)
        if not all(0 <= value < math.inf for value in times):
            raise ValueError("times are not negative and not infinite")
        if self.kind == "list" and not self.values_s:
            raise ValueError("a list of times has at least one")

    @property
    def never(self) -> bool:
        """True if every wait is 0 s."""
        return self.typical_s == 0 and not any(self.values_s)

    def draw(self, rng: Generator) -> float:
        """Draw one time in seconds."""
        match self.kind:
            case "exp":
                return float(rng.exponential(self.typical_s))
            case "lognormal":
                return self.typical_s * math.exp(self.sigma * float(rng.standard_normal()))
            case "list":
                return self.values_s[int(rng.integers(len(self.values_s)))]
        return self.typical_s

    @staticmethod
    def parse(text: str) -> QueueWait:
        """The distribution written as ``90``, ``10m``, ``exp:10m`` or ``lognormal:10m:1.5``.

        Raises:
            ValueError: it is written in no such way.
        """
        kind, *parts = text.split(":")
        if kind == "exp" and len(parts) == 1:
            return QueueWait("exp", duration(parts[0]))
        if kind == "lognormal" and len(parts) in (1, 2):
            return QueueWait("lognormal", duration(parts[0]), float(parts[1]) if parts[1:] else 1.0)
        if kind in ("exp", "lognormal"):
            raise ValueError(f"{text!r}: write {kind}:10m" + ":1.5" * (kind == "lognormal"))
        return QueueWait(typical_s=duration(text))

    @staticmethod
    def seen(values_s: Sequence[float]) -> QueueWait:
        """Return a distribution of observed waits, each as likely as the others."""
        return QueueWait("list", values_s=tuple(values_s))


AT_ONCE = QueueWait()


def duration(text: str) -> float:
    """The time in ``90``, ``1.5``, ``10m`` or ``1-00:00:00``, in seconds.

    Raises:
        ValueError: it is none of these, or negative.
    """
    try:
        value = float(text)
    except ValueError:
        return float(seconds(text))
    if not 0 <= value < math.inf:
        raise ValueError(f"{text!r} is no time")
    return value
