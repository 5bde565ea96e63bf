"""Which rows of a batch may change which layer, while forward and backward passes run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import Matrix


@dataclass(eq=False)
class RowWeights:
    """How much each row of a batch may change one layer.

    Attributes:
        rows: in the batch.
        kept: int64[k], the rows of weights above 0, in order; None: all of them.
        scale: float32[k], their weights; None: all are 1.
    """

    rows: int
    kept: torch.Tensor | None
    scale: torch.Tensor | None

    @staticmethod
    def of(weights: Matrix, device: torch.device) -> RowWeights:
        """``weights``: float64[rows]."""
        there = np.flatnonzero(weights > 0)
        whole = len(there) == len(weights)
        scale = None
        if not (weights[there] == 1).all():
            scale = torch.from_numpy(weights[there]).to(device)
        kept = None if whole else torch.from_numpy(there).to(device)
        return RowWeights(len(weights), kept, scale)

    def of_length(self, length: int, what: str) -> RowWeights:
        """The weights of ``length`` rows, as many consecutive ones for each row of the batch.

        Raises:
            PolicyRefused: ``length`` is no multiple of the batch's rows (P12).
        """
        if length == self.rows:
            return self
        each, more = divmod(length, max(self.rows, 1))
        if more or each == 0:
            raise PolicyRefused(
                "P12",
                f"{what} is given {length} rows, and the batch has {self.rows}",
                where="train_batch",
                hint="keep the batch in the first dimension, or name the rows of this part: "
                "with context.rows(indices): ...",
            )
        kept = scale = None
        if self.kept is not None:
            inside = torch.arange(each, device=self.kept.device)
            kept = (self.kept[:, None] * each + inside).reshape(-1)
        if self.scale is not None:
            scale = self.scale.repeat_interleave(each)
        return RowWeights(length, kept, scale)

    @property
    def plain(self) -> bool:
        """True if all rows count fully."""
        return self.kept is None and self.scale is None

    def select(self, rows: torch.Tensor) -> torch.Tensor:
        """The kept rows of a tensor[rows, …]."""
        return rows if self.kept is None else rows.index_select(0, self.kept)

    def weigh(self, kept: torch.Tensor) -> torch.Tensor:
        """The kept rows of a gradient, tensor[k, …], times their weights."""
        if self.scale is None:
            return kept
        return kept * self.scale.to(kept.dtype).reshape(-1, *[1] * (kept.dim() - 1))


@dataclass(frozen=True)
class Route:
    """What an operator takes along from its forward pass to its backward pass.

    Attributes:
        rows: as its layer takes them; None: the batch was not known.
    """

    router: Router
    rows: RowWeights | None

    def check(self, what: str) -> RowWeights:
        """The rows, once a backward pass has come to the operator.

        Raises:
            PolicyRefused: the batch was not known (P12), or nothing accounts for this backward
                pass (P15).
        """
        if not self.router.passing:
            raise PolicyRefused(
                "P15",
                f"the gradient of {what} is not computed by context.backward",
                where="train_batch",
                hint="call context.backward(loss), not loss.backward()",
            )
        if self.rows is None:
            raise PolicyRefused(
                "P12",
                f"{what} was called outside of a batch whose sources are known",
                where="train_batch",
                hint="call the model inside train_batch, or inside `with context.rows(...)`",
            )
        return self.rows


class Router:
    """The rows under way, for the routed modules of all models of a trial.

    Attributes:
        layers: names of the layers of all models; a routed module knows the place of its own.
        passing: a backward pass that is accounted for is under way.
        off: route nothing: each row changes every layer, to measure what routing withholds.
    """

    def __init__(self) -> None:
        self.layers: list[str] = []
        self.passing = False
        self.off = False
        self._rows: Mapping[int, RowWeights] | None = None

    def __deepcopy__(self, memo: Any) -> Router:
        """A copy of a model is routed by the same router."""
        return self

    def place(self, layer: str) -> int:
        """The place of a layer by its name."""
        if layer not in self.layers:
            self.layers.append(layer)
        return self.layers.index(layer)

    @contextlib.contextmanager
    def rows(self, weights: Matrix, device: torch.device) -> Iterator[None]:
        """Around the passes of some rows.

        Args:
            weights: float64[rows, layers], in the order of ``layers``.
        """
        if self.off:
            weights = np.ones_like(weights)
        columns = range(weights.shape[1])
        with self._as({place: RowWeights.of(weights[:, place], device) for place in columns}):
            yield

    @contextlib.contextmanager
    def _as(self, rows: Mapping[int, RowWeights] | None) -> Iterator[None]:
        before, self._rows = self._rows, rows
        try:
            yield
        finally:
            self._rows = before

    def of(self, layer: int) -> RowWeights | None:
        """The rows under way as a layer takes them; None if there are none."""
        return None if self._rows is None else self._rows[layer]

    def route(self, layer: int, length: int, what: str) -> Route:
        """The route of a layer for an operator on ``length`` rows.

        Raises:
            PolicyRefused: they are not the batch's (P12).
        """
        rows = self.of(layer)
        return Route(self, None if rows is None else rows.of_length(length, what))

    def recomputing(self) -> Callable[[], contextlib.AbstractContextManager[None]]:
        """Take the rows under way along: a context in which a forward pass sees them again."""
        rows = self._rows
        return lambda: self._as(rows)

    @contextlib.contextmanager
    def accounted(self) -> Iterator[None]:
        """Around a backward pass that is accounted for."""
        before, self.passing = self.passing, True
        try:
            yield
        finally:
            self.passing = before
