"""The subject of probes: a live model, its loss, and a small batch of several sources."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hpcdet.guard.probing.watching import (
    Flags,
    ForwardPass,
    RowLayout,
    undisturbed,
    watching,
)
from hpcdet.guard.routing.router import Router
from hpcdet.policy.compiled import Matrix

Codes = NDArray[np.int64]
Gradients = list[torch.Tensor | None]


@dataclass(frozen=True)
class Probe:
    """A model and what its training makes of a batch.

    Attributes:
        models: routed, neither compiled as a whole nor sharded.
        loss: forward passes and loss of a batch: one value, or one per row, [rows]. It calls no
            ``backward``.
        batch: a small one, of several sources.
        codes: the source of each row, int64[rows], or of each token, int64[rows, tokens].
        names: of the sources.
        weights: float64[sources, layers], in the order of the router's layers.
        places: of each parameter that learns: its name, itself, the place of its layer.
        around: put around passes over rows of these codes.
        lanes: places of layers that only the sources that may change them use.
        made_from: the rows of the batch that each row under way is made from, where code has named
            others, bool[rows, rows of the batch]; None: they are the batch's.
    """

    router: Router
    models: Sequence[nn.Module]
    loss: Callable[[Any], torch.Tensor]
    batch: Any
    codes: Codes
    names: Sequence[str]
    weights: Matrix
    places: Sequence[tuple[str, nn.Parameter, int]]
    around: Callable[[Codes], contextlib.AbstractContextManager[None]]
    lanes: frozenset[int] = frozenset()
    made_from: Callable[[], Flags | None] = lambda: None

    @property
    def layout(self) -> RowLayout:
        return RowLayout(*self.codes.shape)

    def now(self) -> RowLayout:
        """The rows of the pass under way."""
        made = self.made_from()
        return self.layout if made is None else RowLayout(len(made), made_from=made)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [one for _, one, _ in self.places]

    def plain(self, batch: Any) -> tuple[ForwardPass, torch.Tensor]:
        """Run models without routing; return the modules' calls, and the loss."""
        with (
            undisturbed(self.models),
            self.around(self.codes),
            self.router.unrouted(),
            watching(self.models, self.now) as watched,
        ):
            return watched, self.loss(batch)

    def routed(self, batch: Any, codes: Codes) -> Gradients:
        """The gradients of all parameters, as they are routed."""
        with undisturbed(self.models), self.around(codes), self.router.accounted():
            loss = self.loss(batch).sum()
            return list(torch.autograd.grad(loss, self.parameters, allow_unused=True))
