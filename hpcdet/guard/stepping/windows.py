"""The share of rows that each layer has admitted since an optimizer's last step.

A backward pass gives gradients that are means over all rows of a batch. Divided by the share of
rows that a layer has admitted, they are means over those. Of several passes before one step it
is the mean share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcdet.policy.compiled import Matrix

Vector = Matrix
"""float64[layers]."""
Parts = list[tuple[int, list[float]]]
"""Numbers of shares of a batch, each with a vector."""


@dataclass(eq=False)
class Window:
    """Backward passes since an optimizer's last step.

    Attributes:
        passes: how many; every share of a batch has as many, and those of the first count.
        shares: sum over them of the share of rows that each layer admits, float64[layers].
        local: of passes over rows that only their own rank knows, for each of this rank's shares
            of the batch: its part of that sum. Empty where all ranks know all rows.
        of: in a checkpoint: digest of the names of the parameters that its optimizer steps;
            empty: nobody has stepped, and it is of every optimizer to come.
        bare: ``shares`` after so many passes, where this rank then had no gradient of it any more.
    """

    layers: int
    passes: int = 0
    shares: Vector = field(default_factory=lambda: np.zeros(0))
    local: dict[int, Vector] = field(default_factory=dict)
    of: str = ""
    bare: dict[int, Vector] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not len(self.shares):
            self.shares = np.zeros(self.layers)

    def add(self, share: Vector, *, first: bool) -> None:
        """A pass over rows that all ranks know.

        Args:
            first: it is of the first share of this rank.
        """
        if first:
            self.passes += 1
            self.shares = self.shares + share

    def add_local(self, part: Vector, number: int, *, first: bool) -> None:
        """A pass over rows that this rank alone knows: its part, weighted, of the share.

        Args:
            number: of this rank's share of the batch.
        """
        self.passes += first
        self.local[number] = self.local.get(number, np.zeros(self.layers)) + part

    def copy(self) -> Window:
        """Another one of the same passes."""
        return Window(self.layers, self.passes, self.shares.copy(), dict(self.local))

    def lay_bare(self) -> None:
        """This rank has no gradient of the passes so far."""
        self.bare[self.passes] = self.shares.copy()

    def forget_bare(self, everyone: Sequence[Sequence[int]]) -> None:
        """Leave out passes whose gradients the code has dropped, on all ranks, before a step.

        Args:
            everyone: the keys of ``bare`` of each rank.
        """
        common = set(self.bare).intersection(*everyone)
        if common:
            gone = max(common)
            self.shares = self.shares - self.bare[gone]
            self.passes -= gone
        self.bare = {}

    def parts(self) -> Parts:
        """This rank's ``local`` as ranks can send it."""
        return [(number, part.tolist()) for number, part in sorted(self.local.items())]

    def mean(self, gathered: Sequence[Parts] = ()) -> Vector:
        """The mean share of a pass, float64[layers]; zeros if there was none.

        Args:
            gathered: ``parts`` of all ranks, where there are any; added up in the order of
                shares, so that any number of ranks gives the same.
        """
        total = self.shares
        for _, part in sorted(one for of_rank in gathered for one in of_rank):
            total = total + np.array(part)
        return total / self.passes if self.passes else total

    def encode(self, gathered: Sequence[Parts]) -> dict[str, Any]:
        """Plain data for a checkpoint, equal on all ranks."""
        shares = (self.mean(gathered) * self.passes).tolist()
        return {"of": self.of, "passes": self.passes, "shares": shares}

    @staticmethod
    def decode(layers: int, saved: dict[str, Any]) -> Window:
        """The inverse of ``encode``."""
        shares = np.array(saved["shares"], dtype=np.float64)
        return Window(layers, int(saved["passes"]), shares, of=str(saved["of"]))
