"""Every point of a grid, first to last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdet.search.api.sampling import View


@dataclass(frozen=True)
class Points:
    """A sampler: trial ``k`` has ``points[k - 1]``."""

    points: Sequence[Mapping[str, Any]]
    name: str = "grid"
    learns: bool = False
    constant: bool = False

    def suggest(self, view: View, number: int) -> dict[str, Any]:
        return dict(self.points[number - 1])
