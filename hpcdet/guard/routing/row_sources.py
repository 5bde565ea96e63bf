"""The sources of the rows under way, as lanes ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcdet.data.source_lanes import RowFlags
from hpcdet.data.sourced import Codes, SourceTable


@dataclass(frozen=True, eq=False)
class RowSources:
    """The sources of some rows.

    Attributes:
        members: of each kind of rows its sources; empty: the rows count as nobody's.
        codes: int64[rows], the kind of each row; int64[rows, k], of all that it was made from.
    """

    members: Sequence[frozenset[str]]
    codes: Codes

    @staticmethod
    def of(table: SourceTable) -> RowSources:
        """The sources of the rows of a table."""
        return RowSources([frozenset(one) for one in table.mixtures], table.codes)

    def of_lane(self, sources: frozenset[str]) -> RowFlags:
        """Which rows are of these sources alone, bool[rows]."""
        inside = np.array([bool(one) and one <= sources for one in self.members], dtype=bool)
        found: RowFlags = np.atleast_1d(inside[self.codes])
        return found if found.ndim == 1 else np.atleast_1d(found.all(axis=1))

    def only(self, flags: RowFlags) -> RowSources:
        """The flagged rows alone; where none is flagged, one row without sources."""
        if flags.any():
            return RowSources(self.members, self.codes[flags])
        return RowSources([frozenset()], np.zeros(1, dtype=np.int64))
