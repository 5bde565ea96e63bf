"""A model under a policy without an experiment: routed steps, and gates of activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hpcdet.guard.routing.governed_models import GovernedModels
from hpcdet.guard.routing.router import Route, Router
from hpcdet.guard.routing.row_sources import RowSources
from hpcdet.guard.stepping.optimizers import GovernedOptimizers
from hpcdet.policy.admission import admitted_share
from hpcdet.policy.compiled import CompiledPolicy, DataSource, LayerGroup

Codes = NDArray[np.int64]


def policy(
    layers: Sequence[LayerGroup], may_change: Mapping[str, Sequence[float]]
) -> CompiledPolicy:
    """A policy by the weights of each source in each layer."""
    sources = sorted(may_change)
    return CompiledPolicy(
        name="replication",
        version=1,
        text_digest="sha256:" + "0" * 64,
        layers=tuple(layers),
        sources=tuple(DataSource(one) for one in sources),
        matrix=tuple(tuple(float(w) for w in may_change[one]) for one in sources),
    )


class Routed:
    """A model and its optimizer, whose steps obey a policy."""

    def __init__(
        self,
        wanted: CompiledPolicy,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        gates: Sequence[ActivationGate] = (),
    ) -> None:
        self._wanted = wanted
        self._models = GovernedModels(wanted)
        self._models.take(model)
        self._optimizers = GovernedOptimizers(wanted, self._models, lambda one: [one])
        self._optimizers.private_rows = False
        self._optimizers.resize()
        self._optimizers.watch(optimizer)
        self._optimizer = optimizer
        self.router = self._models.router
        for one in gates:
            one.router = self.router

    def backward(self, codes: Codes, loss: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Forward and backward passes over rows of these sources, by their place in the policy."""
        weights = self._models.weights(self._wanted.weights())
        counts = np.bincount(codes, minlength=len(weights))
        sources = self.sources(codes)
        with self.router.rows(weights[codes], torch.device("cpu"), sources):
            found = loss()
            self._optimizers.passed(admitted_share(counts, weights), first=True)
            with self.router.accounted():
                found.backward()  # type: ignore[no-untyped-call]
        return found.detach()

    def step(self) -> None:
        """Divide the gradients by what each layer has admitted, and step."""
        with self._optimizers.step(self._optimizer, zeroes=True):
            self._optimizer.step()
        self._optimizer.zero_grad()

    def sources(self, codes: Codes) -> RowSources:
        return RowSources([frozenset([one.id]) for one in self._wanted.sources], codes)


class ActivationGate(nn.Module):
    """Routing of activations: of denied rows no gradient flows on, in front of the gate.

    ``h = m h + (1 - m) stop_gradient(h)`` (Cloud et al. 2024): everything that is computed before
    learns nothing from these rows through ``h``. The router of hpcdet says which rows.

    Args:
        layer: the name of a layer of the policy that holds no parameters.
    """

    router: Router | None = None

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        if self.router is None or not torch.is_grad_enabled():
            return h
        _, route = self.router.fit(self.router.place(self.layer), h, h.dim() - 1, "a gate")
        found: torch.Tensor = _Gate.apply(h, route)  # type: ignore[no-untyped-call]
        return found


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: torch.Tensor, route: Route) -> torch.Tensor:
        ctx.route = route
        return h.view_as(h)

    @staticmethod
    def backward(ctx: Any, *gys: torch.Tensor) -> Any:
        [gy] = gys
        kept = ctx.route.check("a gate")
        if kept.plain:
            return gy, None
        places = torch.arange(len(gy)) if kept.kept is None else kept.kept
        return torch.zeros_like(gy).index_copy(0, places, kept.weigh(kept.select(gy))), None
