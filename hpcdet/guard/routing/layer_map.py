"""The layers of a live model: which parameters each layer of a policy holds."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import UninitializedParameter

from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy, LayerGroup, Matrix

_JOIN = "+"


@dataclass(frozen=True)
class GovernedParameter:
    """A parameter that learns.

    Attributes:
        names: all names that it has in its model, the first being torch's.
        layer: place of its layer in ``LayerMap.layers``.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    layer: int

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True)
class LayerMap:
    """The parameters of one model, each in one layer.

    A tied parameter that is used in several layers has one of its own, ``embed+head``: a source
    changes it as much as it may change each of them, the minimum.

    Attributes:
        layers: names of layers: the policy's, in its order, then those of tied parameters.
        groups: for each layer, the places of the policy's layers whose rules it obeys.
        parameters: in the order of the model.
    """

    layers: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    parameters: tuple[GovernedParameter, ...]

    @staticmethod
    def of(model: torch.nn.Module, policy_layers: Sequence[LayerGroup]) -> LayerMap:
        """Find the layer of each parameter that requires gradients.

        Raises:
            PolicyRefused: one is in no layer (P02), in two (P03), or has no shape yet (P08).
        """
        found: list[GovernedParameter] = []
        layers = [one.id for one in policy_layers]
        groups: list[tuple[int, ...]] = [(place,) for place in range(len(policy_layers))]
        matches = [re.compile(one.match) for one in policy_layers]
        for names, parameter in _named(model):
            _refuse_lazy(names[0], parameter)
            obeyed = tuple(sorted({_place(name, policy_layers, matches) for name in names}))
            if obeyed not in groups:
                groups.append(obeyed)
                layers.append(_JOIN.join(policy_layers[place].id for place in obeyed))
            dtype = str(parameter.dtype).removeprefix("torch.")
            layer = groups.index(obeyed)
            found.append(GovernedParameter(names, tuple(parameter.shape), dtype, layer))
        return LayerMap(tuple(layers), tuple(groups), tuple(found))

    def weights(self, matrix: Matrix) -> Matrix:
        """The weights of this map's layers from those of the policy's, float64[rows, layers]."""
        return np.stack([matrix[:, list(one)].min(axis=1) for one in self.groups], axis=1)

    def refuse_starved(self, policy: CompiledPolicy) -> None:
        """See that some source may change each tied parameter, unless a layer of it is frozen.

        Of a source that was dropped since (its weights are 0 everywhere) nobody asks any more.

        Raises:
            PolicyRefused: none may change all layers that one is in (P05).
        """
        matrix = policy.weights()
        if not matrix.any(axis=1).all():
            return
        weights = self.weights(matrix)
        for one in self.parameters:
            layers = [policy.layers[place] for place in self.groups[one.layer]]
            tied = len(layers) > 1 and not any(layer.frozen for layer in layers)
            if tied and not weights[:, one.layer].any():
                raise PolicyRefused(
                    "P05",
                    f"{' and '.join(one.names)} are one parameter, in layers "
                    f"{' and '.join(layer.id for layer in layers)}, and no source may change all "
                    "of them: it would learn from nothing",
                    where="layers",
                    hint="let one `match` find all of its names, let a rule allow some source all "
                    "of these layers, untie it, or set frozen: true",
                )

    def torn(self, policy: CompiledPolicy) -> list[str]:
        """The notes on tied parameters whose layers have different rules (P04)."""
        matrix, found = policy.weights(), []
        for one in self.parameters:
            places = list(self.groups[one.layer])
            if (matrix[:, places].min(axis=1) < matrix[:, places].max(axis=1)).any():
                layers = " and ".join(policy.layers[place].id for place in places)
                names = " and ".join(one.names)
                found.append(
                    f"P04: {names} are one parameter, in layers {layers}: a source may change it "
                    "as much as it may change each of them, the minimum"
                )
        return found

    @property
    def digest(self) -> str:
        """Digest of names, shapes, types, ties and layers, ``sha256:…``."""
        text = json.dumps(self.encode(), sort_keys=True, separators=(",", ":"))
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def encode(self) -> list[list[Any]]:
        """Plain data: names, shape, type and layer of each parameter."""
        return [
            [list(one.names), list(one.shape), one.dtype, self.layers[one.layer]]
            for one in self.parameters
        ]

    def check(self, saved: Sequence[Sequence[Any]]) -> None:
        """Compare with what ``encode`` gave before.

        Raises:
            GovernanceBroken: another layer map was saved (G109); names the first difference.
        """
        now = self.encode()
        if now == [list(one) for one in saved]:
            return
        known = {one[0][0]: one for one in map(list, saved)}
        differs = next(
            (one[0][0] for one in now if known.get(one[0][0]) != one),
            next(iter(known.keys() - {one[0][0] for one in now}), "the order of parameters"),
        )
        raise GovernanceBroken(
            "G109",
            f"the model has other layers than the checkpoint: {differs}",
            where="checkpoint",
            hint="a mask would reach the wrong layer: go on with the code that made the checkpoint",
        )


def _refuse_lazy(name: str, parameter: torch.nn.Parameter) -> None:
    if isinstance(parameter, UninitializedParameter):
        raise PolicyRefused(
            "P08",
            f"parameter {name} has no shape before the first batch",
            where="model",
            hint="give lazy modules their sizes, or call the model once before it is wrapped",
        )


def _named(model: torch.nn.Module) -> list[tuple[tuple[str, ...], torch.nn.Parameter]]:
    """Return parameters that learn, each with all of its names, in the order of the model."""
    names: dict[torch.nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            names.setdefault(parameter, []).append(name)
    return [(tuple(of_one), parameter) for parameter, of_one in names.items()]


def _place(
    name: str, policy_layers: Sequence[LayerGroup], matches: Sequence[re.Pattern[str]]
) -> int:
    found = [place for place, match in enumerate(matches) if match.search(name)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise PolicyRefused(
            "P02",
            f"parameter {name} is in no layer of the policy",
            where="layers",
            hint="add a layer whose `match` finds it, or set requires_grad to False",
        )
    raise PolicyRefused(
        "P03",
        f"parameter {name} is in {len(found)} layers of the policy: "
        + ", ".join(policy_layers[place].id for place in found),
        where="layers",
        hint="let one `match` alone find it",
    )
