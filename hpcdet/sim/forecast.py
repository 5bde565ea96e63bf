"""Summary of many simulated courses of one search, with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdet.sim.outcome import Course


@dataclass(frozen=True)
class Spread:
    """Median, and the bounds that leave out the lowest and the highest twentieth."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Iterable[float]) -> Spread | None:
        """Return the spread of the values; None without any."""
        ordered = sorted(values)
        if not ordered:
            return None
        last = len(ordered) - 1
        return Spread(
            statistics.median(ordered), ordered[round(0.05 * last)], ordered[round(0.95 * last)]
        )


@dataclass(frozen=True)
class Forecast:
    """Summary of several courses of one search. Each ``Spread`` is over the courses.

    Attributes:
        rungs: per length, how many trials reported there.
    """

    courses: Sequence[Course]

    def of(self, figure: Callable[[Course], float | None]) -> Spread | None:
        """The spread of a figure, over the courses that have it."""
        figures = map(figure, self.courses)
        return Spread.of(value for value in figures if value is not None)

    @property
    def rungs(self) -> dict[int, Spread]:
        lengths = sorted(set().union(*(course.at for course in self.courses)))
        found = {length: self._at(length) for length in lengths}
        return {length: spread for length, spread in found.items() if spread is not None}

    def _at(self, length: int) -> Spread | None:
        return self.of(lambda course: course.at[length])

    def figures(self, slots: int) -> dict[str, Any]:
        """Spreads by name, as plain data. ``slots`` are those of one trial; times in seconds."""
        spreads = {
            "end_s": self.of(lambda course: course.end_s),
            "slot_hours": self.of(lambda course: course.allocated_s * slots / 3600),
            "utilisation": self.of(lambda course: course.utilisation),
            "trials": self.of(lambda course: course.created),
            "trained_in_full": self.of(lambda course: len(course.finished)),
            "first_in_full_s": self.of(
                lambda course: course.finished[0][0] if course.finished else None
            ),
            "jobs": self.of(lambda course: len(course.waits_s)),
            "queue_wait_s": self.of(
                lambda course: statistics.fmean(course.waits_s) if course.waits_s else None
            ),
            "preempted": self.of(lambda course: course.preempted),
            "failures": self.of(lambda course: course.failures),
            "trained_again": self.of(
                lambda course: course.redone_s / course.trained_s if course.trained_s else None
            ),
        }
        return {name: spread and vars(spread) for name, spread in spreads.items()}
