"""Which rows of a batch may change which layer, while forward and backward passes run."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcdet.data.source_lanes import RowFlags
from hpcdet.guard.routing.row_sources import RowSources
from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import Matrix

_NO_BACKWARD = -1
"""What torch calls the backward pass under way where there is none."""

ROWS_HINT = (
    "keep the batch in the first dimension (positions: torch.arange(T).expand(N, T)), "
    "or name the rows of this part: with context.rows(indices): ..."
)


@dataclass(eq=False)
class RowWeights:
    """How much each row of a batch may change one layer.

    Attributes:
        rows: in the batch.
        kept: int64[k], the rows of weights above 0, in order; None: all of them.
        scale: float64[k], their weights; None: all are 1.
        finer: of each token of each row, where tokens have sources of their own; the weight of
            the row is then the least of its tokens'.
        exact: code has named the rows, each of them: nothing may take it for several.
    """

    rows: int
    kept: torch.Tensor | None
    scale: torch.Tensor | None
    finer: RowWeights | None = None
    exact: bool = False

    @staticmethod
    def of(weights: Matrix, device: torch.device, *, exact: bool = False) -> RowWeights:
        """``weights``: float64[rows] or float64[rows, tokens]."""
        if weights.ndim == 2:
            least = RowWeights.of(weights.min(axis=1), device)
            least.finer = RowWeights.of(weights.reshape(-1), device)
            return least
        there = np.flatnonzero(weights > 0)
        whole = len(there) == len(weights)
        scale = None
        if not (weights[there] == 1).all():
            scale = torch.from_numpy(weights[there]).to(device)
        kept = None if whole else torch.from_numpy(there).to(device)
        return RowWeights(len(weights), kept, scale, exact=exact)

    def of_length(self, length: int, what: str) -> RowWeights:
        """The weights of ``length`` rows, as many consecutive ones for each row of the batch.

        Raises:
            PolicyRefused: ``length`` is no multiple of the batch's rows, or not the number of
                those that code has named (P12).
        """
        if length == self.rows:
            return self
        if self.exact:
            raise unnamed(what, length, self.rows)
        if self.finer is not None and length and length % self.finer.rows == 0:
            return self.finer.of_length(length, what)
        each, more = divmod(length, max(self.rows, 1))
        if more or each == 0:
            raise PolicyRefused(
                "P12",
                f"{what} is given {length} rows, and the batch has {self.rows}",
                where="train_batch",
                hint=ROWS_HINT,
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

    @property
    def denied(self) -> bool:
        """True if no row counts."""
        return self.kept is not None and len(self.kept) == 0

    def select(self, rows: torch.Tensor) -> torch.Tensor:
        """The kept rows of a tensor[rows, …]."""
        return rows if self.kept is None else rows.index_select(0, self.kept)

    def weigh(self, kept: torch.Tensor) -> torch.Tensor:
        """The kept rows of a gradient, tensor[k, …], times their weights."""
        if self.scale is None:
            return kept
        return kept * self.scale.to(kept.dtype).reshape(-1, *[1] * (kept.dim() - 1))


def unnamed(what: str, given: int, named: int) -> PolicyRefused:
    """The refusal of rows that ``context.rows`` has not named."""
    return PolicyRefused(
        "P12",
        f"{what} is given {given} rows, and context.rows names {named}",
        where="context.rows",
        hint="give an entry for each row; where the model itself makes consecutive rows of each, "
        "such as its tokens: context.rows(..., unfolded=True)",
    )


@dataclass(frozen=True)
class Route:
    """The rows and the router that an operator keeps from its forward for its backward pass.

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


@dataclass(frozen=True, eq=False)
class _UnderWay:
    """The rows under way.

    Attributes:
        by_layer: how much each may change each layer; None: nothing learns from them.
        weights: float64[rows, layers] or float64[rows, tokens, layers], the same.
        sources: of the rows; None: nobody knows.
        restored: a second forward pass sees them as the first did.
        exact: as of ``RowWeights``.
    """

    by_layer: Mapping[int, RowWeights] | None
    weights: Matrix
    device: torch.device
    sources: RowSources | None
    restored: bool = False
    exact: bool = False

    @staticmethod
    def of(
        weights: Matrix,
        device: torch.device,
        sources: RowSources | None,
        *,
        restored: bool = False,
        exact: bool = False,
    ) -> _UnderWay:
        found = {
            place: RowWeights.of(weights[..., place], device, exact=exact)
            for place in range(weights.shape[-1])
        }
        return _UnderWay(found, weights, device, sources, restored, exact)

    @property
    def rows(self) -> int:
        if self.by_layer is not None or self.sources is None:
            return len(self.weights)
        return len(self.sources.codes)

    def only(self, flags: RowFlags) -> _UnderWay:
        """The flagged rows alone; one that changes nothing where none is flagged."""
        sources = self.sources and self.sources.only(flags)
        if self.by_layer is None:
            return dataclasses.replace(self, sources=sources)
        chosen = self.weights[flags] if flags.any() else np.zeros_like(self.weights[:1])
        how = {"restored": self.restored, "exact": self.exact}
        return _UnderWay.of(chosen, self.device, sources, **how)


class Router:
    """The rows under way, for the routed modules of all models of a trial.

    Attributes:
        layers: names of the layers of all models; a routed module knows the place of its own.
        passing: a backward pass that is accounted for is under way.
        off: route nothing: each row changes every layer, to measure what routing withholds.
        plainly: modules run as if they were not routed.
    """

    def __init__(self) -> None:
        self.layers: list[str] = []
        self.passing = False
        self.off = False
        self.plainly = False
        self._now: _UnderWay | None = None

    def __deepcopy__(self, memo: Any) -> Router:
        """A copy of a model is routed by the same router."""
        return self

    def place(self, layer: str) -> int:
        """The place of a layer by its name."""
        if layer not in self.layers:
            self.layers.append(layer)
        return self.layers.index(layer)

    @contextlib.contextmanager
    def rows(
        self,
        weights: Matrix,
        device: torch.device,
        sources: RowSources | None = None,
        *,
        exact: bool = False,
    ) -> Iterator[None]:
        """Around the passes of some rows.

        Args:
            weights: float64[rows, layers] in the order of ``layers``, or
                float64[rows, tokens, layers].
            sources: of the rows, which switch lanes on; None: lanes are off.
            exact: no module may take a row for several consecutive ones.
        """
        if self.off:
            weights = np.ones_like(weights)
        with self._as(_UnderWay.of(weights, device, sources, exact=exact)):
            yield

    def evaluated(self, sources: RowSources | None) -> contextlib.AbstractContextManager[None]:
        """Context of passes that train nothing; ``sources`` None: those of the rows are unknown."""
        nothing = np.zeros((0, 0))
        return self._as(_UnderWay(None, nothing, torch.device("cpu"), sources))

    @contextlib.contextmanager
    def _as(self, now: _UnderWay | None) -> Iterator[None]:
        before, self._now = self._now, now
        try:
            yield
        finally:
            self._now = before

    def of(self, layer: int) -> RowWeights | None:
        """The rows under way as a layer takes them; None if there are none."""
        if self._now is None or self._now.by_layer is None:
            return None
        return self._now.by_layer[layer]

    # -- lanes (hpcdet.data.source_lanes) ----------------------------------------------------

    def rows_of(self, sources: frozenset[str], length: int) -> RowFlags | None:
        """Flags of those of ``length`` rows that are of these sources alone; None if unknown.

        Raises:
            PolicyRefused: ``length`` is no multiple of the rows under way (P12).
        """
        if self._now is None or self._now.sources is None:
            return None
        found = self._now.sources.of_lane(sources)
        if self._now.exact and length != len(found):
            raise unnamed("a lane", length, len(found))
        each, more = divmod(length, max(len(found), 1))
        if more or (each == 0 and len(found)):
            raise PolicyRefused(
                "P12",
                f"a lane is given {length} rows, and the batch has {len(found)}",
                where="train_batch",
                hint=ROWS_HINT,
            )
        return np.repeat(found, each)

    def only(self, flags: RowFlags) -> contextlib.AbstractContextManager[None]:
        """Around passes over flagged rows alone, whose number is a multiple of those under way."""
        now = self._now
        if now is None:
            return contextlib.nullcontext()
        each = len(flags) // max(now.rows, 1)
        return self._as(now.only(flags[:: max(each, 1)]))

    def fit(self, layer: int, x: torch.Tensor, tail: int, what: str) -> tuple[torch.Tensor, Route]:
        """The input of an operator, and the route of its layer for the rows of that.

        Args:
            x: its last ``tail`` dimensions are of one row, such as its features.

        Returns:
            ``x``, or with tokens in its first dimension where they have sources of their own.

        Raises:
            PolicyRefused: the rows are not the batch's, or nobody knows whose they are (P12).
        """
        if x.dim() <= tail:
            raise PolicyRefused(
                "P12", f"{what} is given no rows", where="train_batch", hint=ROWS_HINT
            )
        rows = self.of(layer)
        if rows is None:
            return x, Route(self, None)
        self._check_recomputation(what)
        finer = rows.finer
        if finer is not None and x.dim() > tail + 1 and _shape(x) == (rows.rows, finer.rows):
            return x.flatten(0, 1), Route(self, finer)
        return x, Route(self, rows.of_length(len(x), what))

    def _check_recomputation(self, what: str) -> None:
        """Refuse a forward pass within a backward pass, unless it sees the rows it saw first."""
        restored = self._now is not None and self._now.restored
        if torch._C._current_graph_task_id() != _NO_BACKWARD and not restored:
            raise PolicyRefused(
                "P12",
                f"{what} is computed again in a backward pass, under rows that may be others",
                where="train_batch",
                hint="recompute by optimizations.activation_checkpointing",
            )

    def recomputing(self) -> Callable[[], contextlib.AbstractContextManager[None]]:
        """Take the rows under way along: a context in which a forward pass sees them again."""
        now, plainly = self._now, self.plainly
        seen = now and dataclasses.replace(now, restored=True)

        @contextlib.contextmanager
        def again() -> Iterator[None]:
            before, self.plainly = self.plainly, plainly
            try:
                with self._as(seen):
                    yield
            finally:
                self.plainly = before

        return again

    @contextlib.contextmanager
    def unrouted(self) -> Iterator[None]:
        """Around forward passes without parameters to learn: modules are as they were."""
        before, self.plainly = self.plainly, True
        try:
            yield
        finally:
            self.plainly = before

    @contextlib.contextmanager
    def accounted(self) -> Iterator[None]:
        """Around a backward pass that is accounted for."""
        before, self.passing = self.passing, True
        try:
            yield
        finally:
            self.passing = before


def _shape(x: torch.Tensor) -> tuple[int, int]:
    """Rows and tokens of a tensor[rows, tokens of each, …]."""
    return len(x), len(x) * x.shape[1]
