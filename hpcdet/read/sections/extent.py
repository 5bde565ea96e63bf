"""The extent of a report: how much of a large experiment it shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class ReportExtent:
    """Rows, lines and points that a report has at most; the best stay where it is less than all."""

    rows: int = 2000
    """Rows of a table other than that of the trials."""
    lines: int = 20
    """Trials whose curves are shown."""
    points: int = 300
    """Points of a curve."""
    lanes: int = 200
    """Trials in the timeline."""
    trials: int = 10_000
    """Rows of the table of trials, and so trials of charts that are brushed with it."""

    def smaller(self) -> Iterator[ReportExtent]:
        """Yield this extent, and ever smaller ones."""
        yield self
        for share in (2, 4, 10, 40):
            yield ReportExtent(
                max(50, self.rows // share),
                max(8, self.lines // share),
                max(40, self.points // share),
                max(20, self.lanes // share),
                max(50, self.trials // share),
            )


def cut(rows: Sequence[T], most: int) -> tuple[list[T], int]:
    """Return the first rows, and how many are left out."""
    return list(rows[:most]), max(0, len(rows) - most)
