"""The routed models of a trial, and the layers of all of them together."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch

from hpcdet.guard.routing import lane_rules, modules
from hpcdet.guard.routing.layer_map import LayerMap
from hpcdet.guard.routing.router import Router
from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy, Matrix


class GovernedModels:
    """The models whose gradients a policy routes.

    Attributes:
        router: of the rows under way, for all models.
        models: as they were taken.
        maps: the layers of each, in the order in which they were taken.
        twice: names of modules that run twice, since they have no routed operator.
        closed: places of layers that not every source may change fully.
    """

    def __init__(self, policy: CompiledPolicy) -> None:
        self.router = Router()
        self.models: list[torch.nn.Module] = []
        self.maps: list[LayerMap] = []
        self.twice: list[str] = []
        self.closed: set[int] = set()
        self._policy = policy
        self._groups: list[tuple[int, ...]] = []
        self._layer_of: dict[int, int] = {}

    def __len__(self) -> int:
        """The number of layers."""
        return len(self._groups)

    def take(self, model: torch.nn.Module) -> None:
        """Route a model that learns, before anything wraps it.

        Raises:
            PolicyRefused: its parameters are not each in one layer, a tied one learns from nothing
                (P05), it cannot be routed, or rows use a lane that is not theirs.
        """
        found = LayerMap.of(model, self._policy.layers)
        found.refuse_starved(self._policy)
        for name, groups in zip(found.layers, found.groups, strict=True):
            if self.router.place(name) == len(self._groups):
                self._groups.append(groups)
        weights = found.weights(self._policy.weights())
        drops = self._policy.unknown_source == "drop"
        closed = [
            name
            for place, name in enumerate(found.layers)
            if drops or (weights[:, place] < 1).any()
        ]
        lane_rules.join(model, found, self._policy, self.router)
        self.twice += modules.attach(model, found, self.router, closed)
        self.closed.update(map(self.router.place, closed))
        self.maps.append(found)
        self.models.append(model)

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

    def weights(self, weights: Matrix) -> Matrix:
        """Weights by layers of the models from those by layers of the policy."""
        columns = [weights[:, list(one)].min(axis=1) for one in self._groups]
        return np.stack(columns, axis=1) if columns else np.zeros((len(weights), 0))

    @property
    def lanes(self) -> frozenset[int]:
        """The places of layers that are lanes of the policy."""
        of_policy = [one.lane for one in self._policy.layers]
        return frozenset(
            place for place, groups in enumerate(self._groups) if any(of_policy[n] for n in groups)
        )

    def digest(self, optimizer: torch.optim.Optimizer) -> str:
        """The digest of the names of the parameters that an optimizer steps."""
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        names = [
            f"{number}.{name}"
            for number, model in enumerate(self.models)
            for name, one in model.named_parameters()
            if id(one) in own
        ]
        return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()

    def layer(self, parameter: torch.Tensor) -> int:
        """The place of a parameter's layer, also where sharding has replaced the parameter since.

        Raises:
            PolicyRefused: it is in no governed model (P02).
        """
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
