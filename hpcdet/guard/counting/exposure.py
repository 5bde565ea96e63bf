"""How many rows of each kind a trial has been trained on: counted, and counted again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcdet.data.sample_order import CountedOrder
from hpcdet.data.sourced import Codes
from hpcdet.guard.counting.row_kinds import RowKinds
from hpcdet.policy.admission import exposure
from hpcdet.policy.compiled import CompiledPolicy, Matrix

Counts = NDArray[np.int64]
"""Rows of each kind, int64[kinds]."""


class Exposure:
    """Rows that were trained on, by kind; equal on all ranks.

    Attributes:
        rows: by name of kind.
        dropped: rows of sources that the policy drops.
    """

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.dropped = 0

    def add(self, kinds: RowKinds, counts: Counts) -> None:
        """Count the rows of a batch."""
        for name, count in zip(kinds.names, counts[:-1].tolist(), strict=True):
            if count:
                self.rows[name] += count
        self.dropped += int(counts[-1])

    def join(self, other: Exposure) -> None:
        """Count what another one has counted."""
        self.rows.update(other.rows)
        self.dropped += other.dropped

    def without(self, other: Exposure) -> Exposure:
        """Return the counts less those of another one."""
        found = Exposure()
        found.rows.update(self.rows)
        found.rows.subtract(other.rows)
        found.rows += Counter()  # those of 0 go
        found.dropped = self.dropped - other.dropped
        return found

    def matrix(self, policy: CompiledPolicy) -> Matrix:
        """E, float64[sources, layers of the policy] (``policy.admission.exposure``)."""
        return exposure(policy, self.rows)

    def encode(self) -> dict[str, Any]:
        """Plain data."""
        return {"rows": dict(sorted(self.rows.items())), "dropped": self.dropped}

    @staticmethod
    def decode(saved: Mapping[str, Any]) -> Exposure:
        """The inverse of ``encode``."""
        found = Exposure()
        found.rows.update({str(name): int(count) for name, count in saved["rows"].items()})
        found.dropped = int(saved["dropped"])
        return found


def counted(order: CountedOrder, codes: Codes, kinds: RowKinds, begin: int, end: int) -> Exposure:
    """Count the samples of an order again: those behind ``begin`` and not behind ``end``.

    Args:
        codes: the kind of each sample, int64[samples].
        begin, end: samples seen.
    """
    found = Exposure()
    found.add(kinds, _behind(order, codes, kinds, end) - _behind(order, codes, kinds, begin))
    return found


def _behind(order: CountedOrder, codes: Codes, kinds: RowKinds, records: int) -> Counts:
    epochs, more = divmod(records, order.epoch_records)
    size = kinds.absent + 1
    if order.whole:
        total = epochs * np.bincount(codes[order.indices(0)], minlength=size)
    else:
        each = (np.bincount(codes[order.indices(one)], minlength=size) for one in range(epochs))
        total = sum(each, np.zeros(size, np.int64))
    if more:
        total = total + np.bincount(codes[order.indices(epochs)[:more]], minlength=size)
    return total
