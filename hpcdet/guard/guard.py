"""The guard of a trial: it routes each batch's gradients by the policy, and accounts for them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcdet.data.batch_order import BatchOrder
from hpcdet.data.sample_order import Order, Slice
from hpcdet.data.sourced import Codes, SourceTable
from hpcdet.errors import UsageError
from hpcdet.guard.exposure import Counts, Exposure, counted
from hpcdet.guard.routing import modules
from hpcdet.guard.routing.layer_map import LayerMap
from hpcdet.guard.routing.router import Router
from hpcdet.guard.row_kinds import RowKinds
from hpcdet.guard.windows import Vector, Window
from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy, Matrix, admitted_share

Gather = Callable[[Any], Sequence[Any]]
"""Every rank's value, on every rank."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows under way.

    Attributes:
        weights: float64[rows, layers]; None: the code has not named them yet.
        codes: kinds of the rows of this share, int64[rows].
        share: weight of the mean over the share in the batch's gradient; all shares' are 1.
        number: of the share in the batch; ``first``: it is the first of this rank.
        local: no other rank knows these rows.
    """

    weights: Matrix | None
    codes: Codes
    share: float
    number: int
    first: bool
    local: bool


class Guard:
    """Governs the training of one trial on one rank.

    Attributes:
        policy: the policy in effect.
        router: of the rows under way, for all models.
        exposure: what each layer was permitted to learn from, so far.
        maps: the layers of each model, in the order in which they were taken.
        twice: names of modules that run twice, since they have no routed operator.
        models: as they were taken.
        kinds: of the rows of the data.
        matrix: weights of kinds by layers of the models, float64[kinds, layers].
        regrouped: code has named rows since this was set to False.
    """

    def __init__(self, policy: CompiledPolicy, device: torch.device, gather: Gather) -> None:
        self.policy = policy
        self.router = Router()
        self.maps: list[LayerMap] = []
        self.twice: list[str] = []
        self.exposure = Exposure()
        self._device, self._gather = device, gather
        self.models: list[torch.nn.Module] = []
        self._groups: list[tuple[int, ...]] = []
        self._layer_of: dict[int, int] = {}
        self._optimizers: list[torch.optim.Optimizer] = []
        self._windows: list[Window] = []
        self._kept: set[int] = set()
        self.kinds = RowKinds.of((), policy)
        self._codes: Codes | None = None
        self.matrix: Matrix = np.zeros((1, 0))
        self._share: Vector = np.zeros(0)
        self._rows: _Rows | None = None
        self._named, self.regrouped = Exposure(), False

    # -- models and optimizers ---------------------------------------------------------------

    def take(self, model: torch.nn.Module) -> None:
        """Route a model that learns, before anything wraps it.

        Raises:
            PolicyRefused: its parameters are not each in one layer, or it cannot be routed.
        """
        found = LayerMap.of(model, self.policy.layers)
        for name, groups in zip(found.layers, found.groups, strict=True):
            if self.router.place(name) == len(self._groups):
                self._groups.append(groups)
        weights = found.weights(self.policy.weights())
        drops = self.policy.unknown_source == "drop"
        closed = [
            name
            for place, name in enumerate(found.layers)
            if drops or (weights[:, place] < 1).any()
        ]
        self.twice += modules.attach(model, found, self.router, closed)
        self.maps.append(found)
        self.models.append(model)
        self._windows = [Window(len(self._groups)) for _ in self._windows]
        self._spread()

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Account for the steps of an optimizer."""
        self._optimizers.append(optimizer)
        self._windows.append(Window(len(self._groups)))

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers of all models, those of tied parameters last."""
        return tuple(self.router.layers)

    def sizes(self) -> dict[str, int]:
        """How many numbers the parameters of each layer are, over all models."""
        found = dict.fromkeys(self.layers, 0)
        for layers in self.maps:
            for one in layers.parameters:
                found[layers.layers[one.layer]] += math.prod(one.shape)
        return found

    def _spread(self) -> None:
        """Bring the weights of kinds of rows to the layers of the models."""
        self.matrix = self._of_layers(self.kinds.weights)

    def _of_layers(self, weights: Matrix) -> Matrix:
        """Weights by layers of the models from those by layers of the policy."""
        columns = [weights[:, list(one)].min(axis=1) for one in self._groups]
        return np.stack(columns, axis=1) if columns else np.zeros((len(weights), 0))

    def _layer(self, parameter: torch.Tensor) -> int:
        """The layer of a parameter, which sharding may have replaced since."""
        if id(parameter) not in self._layer_of:
            self._layer_of = {
                id(live): self.router.place(found.layers[known[name]])
                for model, found in zip(self.models, self.maps, strict=True)
                for known in [{n: one.layer for one in found.parameters for n in one.names}]
                for name, live in model.named_parameters()
                if name in known
            }
        if id(parameter) not in self._layer_of:
            raise PolicyRefused(
                "P02",
                f"an optimizer has a parameter of shape {tuple(parameter.shape)} that is in no "
                "governed model",
                where="wrap_optimizer",
                hint="make optimizers from the parameters of wrapped models that require gradients "
                "when they are wrapped",
            )
        return self._layer_of[id(parameter)]

    # -- data --------------------------------------------------------------------------------

    def use(self, sources: SourceTable | None, *, indexed: bool) -> None:
        """Take in the sources of the training data by index; None: the code names its rows.

        Args:
            indexed: the data have indices, so that their sources can be known by them.

        Raises:
            PolicyRefused: the policy does not know one of them, or nothing says them (G113).
        """
        if sources is None and indexed:
            raise PolicyRefused(
                "G113",
                "the data do not say which source each sample is from",
                where="build_training_data_loader",
                hint='give the loader pytorch.Sourced({"name": dataset, ...}), or '
                "DataLoader(..., sources=[a name for each index])",
            )
        if sources is not None:
            self.kinds = RowKinds.of(sources.mixtures, self.policy)
            self._codes = self.kinds.codes[sources.codes]
            self._spread()

    def recount(self, order: Order | BatchOrder, begin: int, end: int) -> Exposure | None:
        """The exposure by the order of the data alone; None of data whose code names its rows."""
        if self._codes is None:
            return None
        return counted(order, self._codes, self.kinds, begin, end)

    def begin(self, whole: Counts) -> None:
        """Begin a batch.

        Args:
            whole: the indices of all its samples; empty where they have none.
        """
        if self._codes is not None:
            counts = np.bincount(self._codes[whole], minlength=self.kinds.absent + 1)
            self.exposure.add(self.kinds, counts)
            self._share = admitted_share(counts, self.matrix)

    def end(self) -> None:
        """End a batch; all ranks call together where the code names its rows."""
        if self._codes is None:
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
            with self._under_way(_Rows(None, part.indices, weight, number, first, local=True)):
                yield
            return
        codes = self._codes[part.indices]
        if part.weight == 0:
            codes = np.full_like(codes, self.kinds.absent)
        rows = _Rows(self.matrix[codes], codes, weight, number, first, local=False)
        with self._under_way(rows):
            yield

    @contextlib.contextmanager
    def rows(
        self,
        indices: Sequence[int] | Sequence[Sequence[int]] | None = None,
        sources: Sequence[str | Sequence[str]] | None = None,
    ) -> Iterator[None]:
        """Around forward and backward passes over other rows than those of the batch.

        Args:
            indices: for each row its place in the batch as ``train_batch`` was given it, or the
                places of all rows that it was made from.
            sources: for each row the name of its source, or several: of data without indices.

        Raises:
            UsageError: no batch is being trained, or a row is not in it.
            PolicyRefused: the policy does not know a source, or several optimizers step.
        """
        now = self._rows
        if now is None:
            raise UsageError("no batch is being trained", where="context.rows")
        if (indices is None) == (sources is None):
            raise UsageError("give one of indices and sources", where="context.rows")
        if len(self._optimizers) > 1:
            raise PolicyRefused(
                "P12",
                "rows are named, and several optimizers step: which passes were each one's is "
                "unknown",
                where="context.rows",
                hint="use one optimizer, with a group of parameters for each",
            )
        if sources is not None:
            weights = self._of_sources(SourceTable.of(sources, "context.rows"))
        else:
            weights = self._of_places(np.asarray(indices, dtype=np.int64), now)
        self.regrouped = True
        with self._under_way(dataclasses.replace(now, weights=weights, local=True)):
            yield

    @property
    def codes(self) -> Codes | None:
        """The kinds of the rows under way; None where the code names them."""
        return None if self._rows is None or self._codes is None else self._rows.codes

    def again(self, codes: Codes) -> contextlib.AbstractContextManager[None]:
        """Around passes of a probe over some rows of these kinds, for which nothing accounts."""
        assert self._rows is not None
        weights = self.matrix[codes]
        return self._under_way(dataclasses.replace(self._rows, weights=weights, codes=codes))

    def _of_sources(self, table: SourceTable) -> Matrix:
        kinds = RowKinds.of(table.mixtures, self.policy)
        codes = kinds.codes[table.codes]
        if self._codes is None:
            self._named.add(kinds, np.bincount(codes, minlength=kinds.absent + 1))
        return self._of_layers(kinds.weights)[codes]

    def _of_places(self, places: Counts, now: _Rows) -> Matrix:
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
        weights = self.matrix[now.codes[places]]
        found: Matrix = weights.min(axis=1) if weights.ndim == 3 else weights
        return found

    @contextlib.contextmanager
    def _under_way(self, rows: _Rows) -> Iterator[None]:
        before, self._rows = self._rows, rows
        try:
            if rows.weights is None:
                yield
            else:
                with self.router.rows(rows.weights, self._device):
                    yield
        finally:
            self._rows = before

    def windows(self) -> list[dict[str, Any]]:
        """Open windows of all optimizers as plain data; all ranks call together."""
        gathered = self._gather([one.parts() for one in self._windows])
        return [
            window.encode([of_rank[place] for of_rank in gathered])
            for place, window in enumerate(self._windows)
        ]

    def load_windows(self, saved: Sequence[dict[str, Any]]) -> None:
        """The inverse of ``windows``."""
        self._windows = [Window.decode(len(self._groups), one) for one in saved]

    # -- gradients ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """Around a backward pass: account for it.

        Raises:
            PolicyRefused: gradients of before the last step are still there (P15).
        """
        rows = self._rows
        self._refuse_kept()
        for window in self._windows if rows is not None else ():
            assert rows is not None
            if rows.local:
                if rows.weights is not None and len(rows.weights):
                    part = rows.share * rows.weights.mean(axis=0)
                    window.add_local(part, rows.number, first=rows.first)
            else:
                window.add(self._share, first=rows.first)
        with self.router.accounted():
            yield

    def _refuse_kept(self) -> None:
        for place in sorted(self._kept):
            for group in self._optimizers[place].param_groups:
                if any(one.grad is not None for one in group["params"]):
                    raise PolicyRefused(
                        "P15",
                        "gradients are kept over a step of their optimizer, and would be divided "
                        "twice",
                        where="step_optimizer(auto_zero_grads=False)",
                        hint="call optimizer.zero_grad() before the next context.backward",
                    )
        self._kept = set()

    def normalize(self, optimizer: torch.optim.Optimizer, *, zeroes: bool) -> None:
        """Make an optimizer's gradients means over what each layer has admitted, before its step.

        A layer that has admitted nothing has no gradient, on all ranks, so that its parameters and
        their state stay as they are. All ranks call together.

        Args:
            zeroes: the gradients are forgotten after the step.
        """
        place = next(n for n, one in enumerate(self._optimizers) if one is optimizer)
        window, self._windows[place] = self._windows[place], Window(len(self._groups))
        if not zeroes:
            self._kept.add(place)
        everyone = self._gather(window.parts()) if self._names_rows(window) else ()
        share = window.mean(everyone)
        for layer, parameters in enumerate(self.by_layer(optimizer)):
            there = [one for one in parameters if one.grad is not None]
            if share[layer] == 0:
                for one in there:
                    one.grad = None
            elif self.policy.normalize == "per_layer" and share[layer] != 1:
                for gradient in (one.grad for one in there if one.grad is not None):
                    gradient.div_(float(share[layer]))

    def _names_rows(self, window: Window) -> bool:
        """True if code names rows in this window; it does so on all ranks or on none."""
        return self._codes is None or bool(window.local)

    def by_layer(self, optimizer: torch.optim.Optimizer) -> list[list[torch.Tensor]]:
        """The parameters of an optimizer by layer, in the order of ``layers``."""
        found: list[list[torch.Tensor]] = [[] for _ in self._groups]
        for group in optimizer.param_groups:
            for one in group["params"]:
                found[self._layer(one)].append(one)
        return found

    def clip(self, optimizer: torch.optim.Optimizer, clip_grads: Callable[[Any], Any]) -> None:
        """Clip an optimizer's gradients: together those of layers that the same sources may change.

        The norm over others would let a source change the step of a layer that it may not change,
        which assurance ``direct`` permits.
        """
        by_sources: dict[tuple[bool, ...], list[torch.Tensor]] = {}
        weights = self._of_layers(self.policy.weights()) > 0
        for layer, parameters in enumerate(self.by_layer(optimizer)):
            clean = self.policy.assurance != "direct"
            sources = tuple(weights[:, layer].tolist()) if clean else ()
            by_sources.setdefault(sources, []).extend(parameters)
        for together in by_sources.values():
            if any(one.grad is not None for one in together):
                clip_grads(together)
