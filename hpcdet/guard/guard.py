"""The guard of a trial: it routes each batch's gradients by the policy, and accounts for them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hpcdet.data.sample_order import CountedOrder, Slice
from hpcdet.data.source_lanes import RowFlags
from hpcdet.data.sourced import Codes, Mixture, SourceTable
from hpcdet.errors import UsageError
from hpcdet.guard.counting.exposure import Counts, Exposure, counted
from hpcdet.guard.counting.row_kinds import RowKinds
from hpcdet.guard.routing import given_rows, lane_rules
from hpcdet.guard.routing.governed_models import GovernedModels
from hpcdet.guard.routing.row_sources import RowSources
from hpcdet.guard.stepping.optimizers import Gather, GovernedOptimizers
from hpcdet.guard.stepping.windows import Vector
from hpcdet.policy.admission import admitted_share
from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy, Matrix


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows under way.

    Attributes:
        weights: float64[rows, layers]; None: the code has not named them yet.
        codes: kinds of the rows of this share, int64[rows].
        sources: of the rows, for lanes; None: the code has not named them yet.
        share: weight of the mean over the share in the batch's gradient; all shares' are 1.
        number: of the share in the batch; ``first``: it is the first of this rank.
        local: no other rank knows these rows.
        places: of rows that code has named by them: int64[rows] or int64[rows, k], the rows of the
            batch that each is made from; None: it has not.
        named: by code, so that the batch's rows are others.
        exact: each is one row for every module.
    """

    weights: Matrix | None
    codes: Codes
    sources: RowSources | None
    share: float
    number: int
    first: bool
    local: bool
    places: Counts | None = None
    named: bool = False
    exact: bool = False


class Guard:
    """Governs the training of one trial on one rank.

    Attributes:
        policy: the policy in effect.
        models: that are routed, with their layers.
        router: of the rows under way, for all models.
        optimizers: of the models, with their windows of accumulation.
        exposure: what each layer was permitted to learn from, so far.
        kinds: of the rows of the data.
        matrix: weights of kinds by layers of the models, float64[kinds, layers].
        regrouped: code has named rows since this was set to False.
    """

    def __init__(self, policy: CompiledPolicy, device: torch.device, gather: Gather) -> None:
        self.policy = policy
        self.models = GovernedModels(policy)
        self.router = self.models.router
        self.optimizers = GovernedOptimizers(policy, self.models, gather)
        self.exposure = Exposure()
        self._device, self._gather = device, gather
        self.kinds = RowKinds.of((), policy)
        self._codes: Codes | None = None
        self.matrix: Matrix = np.zeros((1, 0))
        self._share: Vector = np.zeros(0)
        self._uncounted: Counts | None = None
        self._met: tuple[Mixture, ...] | None = None
        self._rows: _Rows | None = None
        self._named, self.regrouped = Exposure(), False

    def take(self, model: torch.nn.Module) -> None:
        """Route a model that learns, before anything wraps it.

        Raises:
            PolicyRefused: its parameters are not each in one layer, or it cannot be routed.
        """
        self.models.take(model)
        self.optimizers.resize()
        self._spread()

    def _spread(self) -> None:
        """Bring the weights of kinds of rows to the layers of the models."""
        self.matrix = self.models.weights(self.kinds.weights)

    # -- data --------------------------------------------------------------------------------

    def use(self, sources: SourceTable | None, *, counted: bool) -> None:
        """Take in the sources of the training data; None: the code names its rows.

        Args:
            sources: by index, or by place in the order of streams.
            counted: the data have an order, so that all ranks know the rows of all.

        Raises:
            PolicyRefused: the policy does not know one of them, nothing says them (G113), or
                isolation is wanted of rows that the code names (P11).
        """
        if sources is None and counted:
            raise PolicyRefused(
                "G113",
                "the data do not say which source each sample is from",
                where="build_training_data_loader",
                hint='give the loader pytorch.Sourced({"name": dataset, ...}), or '
                "DataLoader(..., sources=[a name for each index])",
            )
        if not counted:
            why = "the code names its rows, so that they cannot be counted again"
            hint = "use data that say their sources: pytorch.Sourced"
            lane_rules.refuse_unproven(self.policy, why, "build_training_data_loader", hint)
        if sources is not None:
            self.kinds = RowKinds.of(sources.mixtures, self.policy)
            self._codes = self.kinds.codes[sources.codes]
            self.optimizers.private_rows = False
            self._spread()

    def meet(self, mixtures: Sequence[Mixture]) -> None:
        """Take in kinds of rows that the code names on all ranks, by what sources they are of.

        Raises:
            PolicyRefused: the policy does not know one of them (G113), or no mixtures (P01).
        """
        if self._met != (*mixtures,):
            self.kinds = RowKinds.of(mixtures, self.policy)
            self._codes, self._met = self.kinds.codes, (*mixtures,)
            self.optimizers.private_rows = False
            self._spread()

    def refuse_unprobed(self, why: str) -> None:
        """Refuse to isolate where nothing can be probed.

        Raises:
            PolicyRefused: isolation is wanted (P11).
        """
        hint = "train with ddp, on devices with more memory, or under assurance state_clean"
        lane_rules.refuse_unproven(self.policy, why, "distributed.strategy", hint)

    def refuse_scaler(self) -> None:
        """Refuse a scaler of gradients where isolation is wanted.

        Raises:
            PolicyRefused: it is (P11).
        """
        lane_rules.refuse_scaler(self.policy)

    def recount(self, order: CountedOrder, begin: int, end: int) -> Exposure | None:
        """The exposure by the order of the data alone; None where the code names the rows."""
        if self._codes is None:
            return None
        return counted(order, self._codes, self.kinds, begin, end)

    def begin(self, whole: Counts) -> None:
        """Begin a batch.

        Args:
            whole: of all its samples what ``use`` had their sources by; empty without sources.
        """
        self.optimizers.untouched.begin()
        if self._codes is not None:
            counts = np.bincount(self._codes[whole], minlength=self.kinds.absent + 1)
            self.exposure.add(self.kinds, counts)
            self._share = admitted_share(counts, self.matrix)

    def end(self) -> None:
        """End a batch; all ranks call together where each knows its own rows only."""
        if self.optimizers.private_rows:
            for one in self._gather(self._named.encode()):
                self.exposure.join(Exposure.decode(one))
            self._named = Exposure()

    @contextlib.contextmanager
    def share(self, part: Slice, weight: float, number: int, *, first: bool) -> Iterator[None]:
        """Around the training of one share of a batch.

        Args:
            weight: of the mean over the share in the batch's gradient.
            number: of the share; ``first``: it is the first of this rank.
        """
        if self._codes is None:
            unnamed = _Rows(None, part.indices, None, weight, number, first, local=True)
            with self._under_way(unnamed):
                yield
            return
        codes = self._codes[part.indices]
        if part.weight == 0:
            codes = np.full_like(codes, self.kinds.absent)
        sources = self.kinds.sources(codes)
        rows = _Rows(self.matrix[codes], codes, sources, weight, number, first, local=False)
        with self._under_way(rows):
            yield

    @contextlib.contextmanager
    def batch(self, own: Counts, counts: Counts) -> Iterator[None]:
        """Around the passes of a batch whose rows all ranks have counted.

        It counts in the exposure with its first backward pass.

        Args:
            own: int64[rows], this rank's rows by their places in what ``meet`` was given.
            counts: int64[mixtures], the rows of all ranks together.
        """
        assert self._codes is not None
        self.optimizers.untouched.begin()
        whole = np.zeros(self.kinds.absent + 1, np.int64)
        np.add.at(whole, self._codes, counts)
        self._share = admitted_share(whole, self.matrix)
        self._uncounted = whole
        codes = self._codes[own]
        sources = self.kinds.sources(codes)
        rows = _Rows(self.matrix[codes], codes, sources, 1.0, 0, first=True, local=False)
        with self._under_way(rows):
            yield
        self._uncounted = None

    @property
    def under_way(self) -> int | None:
        """Rows of this rank's part of the batch; None outside of one."""
        return None if self._rows is None else len(self._rows.codes)

    @contextlib.contextmanager
    def rows(
        self,
        indices: Sequence[int] | Sequence[Sequence[int]] | None = None,
        sources: Sequence[str | Sequence[str]] | None = None,
        *,
        unfolded: bool = False,
    ) -> Iterator[None]:
        """Around forward and backward passes over other rows than those of the batch.

        Args:
            indices: for each row its place in the batch as ``train_batch`` was given it, or the
                places of all rows that it was made from.
            sources: for each row the name of its source, or several: of data without indices, and
                at validation.
            unfolded: the model makes consecutive rows of each, such as its tokens; else modules
                are given as many as are named.

        Raises:
            UsageError: no batch is being trained, a row is not in it, or indices are no places.
            PolicyRefused: the policy does not know a source, several optimizers step (P12), or
                isolation is wanted (P11).
        """
        now = self._rows
        if now is None and sources is not None and not torch.is_grad_enabled():
            with self.evaluated(SourceTable.of(sources, "context.rows")):
                yield
            return
        if now is None:
            raise UsageError("no batch is being trained", where="context.rows")
        if (indices is None) == (sources is None):
            raise UsageError("give one of indices and sources", where="context.rows")
        if len(self.optimizers.watched) > 1:
            raise PolicyRefused(
                "P12",
                "rows are named, and several optimizers step: which passes were each one's is "
                "unknown",
                where="context.rows",
                hint="use one optimizer, with a group of parameters for each",
            )
        why, hint = "the code names rows", "give the model the batch itself, row by row"
        lane_rules.refuse_unproven(self.policy, why, "context.rows", hint)
        places = None if sources is not None else given_rows.row_places(indices)
        if sources is not None:
            weights, known = self._of_sources(SourceTable.of(sources, "context.rows"))
        elif places is not None:
            weights, known = self._of_places(places, now)
        self.regrouped = True
        rows = dataclasses.replace(now, weights=weights, sources=known, local=True)
        with self._under_way(
            dataclasses.replace(rows, places=places, named=True, exact=not unfolded)
        ):
            yield

    @property
    def made_from(self) -> RowFlags | None:
        """Which rows of the batch each row under way is made from, bool[rows, rows of the batch].

        Of rows that are named by sources: which it may be made from. None: they are the batch's.
        """
        now = self._rows
        if now is None or not now.named or now.sources is None:
            return None
        count = len(now.codes)
        if now.places is not None:
            made: RowFlags = np.zeros((len(now.places), count), dtype=bool)
            np.put_along_axis(made, np.atleast_2d(now.places.T).T, True, axis=1)
            return made
        of_batch = self.kinds.sources(now.codes.reshape(count, -1))
        there = [
            frozenset[str]().union(*(of_batch.members[c] for c in row)) for row in of_batch.codes
        ]
        said = [now.sources.members[code] for code in now.sources.codes]
        return np.array([[bool(one) and one <= row for one in there] for row in said], dtype=bool)

    def evaluated(self, sources: SourceTable | None) -> contextlib.AbstractContextManager[None]:
        """Around an evaluation of rows of these sources, through whose lanes they go.

        Args:
            sources: of each row; None: nobody knows them, and every lane is off.
        """
        return self.router.evaluated(None if sources is None else RowSources.of(sources))

    @property
    def codes(self) -> Codes | None:
        """The kinds of the rows under way; None where the code names them."""
        return None if self._rows is None or self._codes is None else self._rows.codes

    def kinds_of(self, places: Counts) -> Codes | None:
        """The kinds of samples by index; None where the code names rows."""
        return None if self._codes is None else self._codes[places]

    def again(self, codes: Codes) -> contextlib.AbstractContextManager[None]:
        """Around passes of a probe over some rows of these kinds, for which nothing accounts."""
        assert self._rows is not None
        weights, sources = self.matrix[codes], self.kinds.sources(codes)
        again = dataclasses.replace(self._rows, weights=weights, codes=codes, sources=sources)
        return self._under_way(again)

    def _of_sources(self, table: SourceTable) -> tuple[Matrix, RowSources]:
        kinds = RowKinds.of(table.mixtures, self.policy)
        codes = kinds.codes[table.codes]
        if self._codes is None:
            self._named.add(kinds, np.bincount(codes, minlength=kinds.absent + 1))
        return self.models.weights(kinds.weights)[codes], kinds.sources(codes)

    def _of_places(self, places: Counts, now: _Rows) -> tuple[Matrix, RowSources]:
        if self._codes is None:
            raise UsageError(
                "the data have no sources by index",
                where="context.rows",
                hint="name them: context.rows(sources=[...])",
            )
        if places.size and not (places.min() >= 0 and places.max() < len(now.codes)):
            raise UsageError(
                f"row {int(places.max())} is not in the batch, which has {len(now.codes)}",
                where="context.rows",
                hint="give places in the batch as train_batch was given it, from 0",
            )
        codes = now.codes[places]
        weights = self.matrix[codes]
        least: Matrix = weights.min(axis=1) if weights.ndim == 3 else weights
        return least, self.kinds.sources(codes)

    @contextlib.contextmanager
    def _under_way(self, rows: _Rows) -> Iterator[None]:
        before, self._rows = self._rows, rows
        try:
            if rows.weights is None:
                yield
            else:
                how = (rows.weights, self._device, rows.sources)
                with self.router.rows(*how, exact=rows.exact):
                    yield
        finally:
            self._rows = before

    # -- gradients ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """Around a backward pass: account for it.

        Raises:
            PolicyRefused: gradients of before the last step are still there, or code has changed
                gradients or weights (P15), or modules (P08).
        """
        rows = self._rows
        self.optimizers.before_pass()
        if self._uncounted is not None:
            self.exposure.add(self.kinds, self._uncounted)
            self._uncounted = None
        if rows is not None and not rows.local:
            self.optimizers.passed(self._share, first=rows.first)
        elif rows is not None and rows.weights is not None and len(rows.weights):
            part = rows.share * rows.weights.mean(axis=0)
            self.optimizers.passed_local(part, rows.number, first=rows.first)
        with self.router.accounted():
            yield
        self.optimizers.untouched.seal()
