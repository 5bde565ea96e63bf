"""The oracle of routed gradients: one backward pass per source, on its rows alone.

Slow, and exact for any model whose rows do not mix. Probes and tests compare with it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils._pytree import tree_map

from hpcdet.guard.routing.layer_map import LayerMap
from hpcdet.policy.admission import admitted_share
from hpcdet.policy.compiled import Matrix

Codes = NDArray[np.int64]
Gradients = dict[str, torch.Tensor | None]


def take(batch: Any, rows: NDArray[np.int64], length: int) -> Any:
    """Rows of a batch of ``length`` rows: of each array, and list, that has one entry per row."""
    return tree_map(
        lambda one: _take(one, rows, length),
        batch,
        is_leaf=lambda one: _names_rows(one, length),
    )


def _names_rows(one: Any, length: int) -> bool:
    """True for a list of names or numbers, one per row."""
    if not isinstance(one, list) or len(one) != length:
        return False
    return all(isinstance(item, str | int | float) for item in one)


def _take(one: Any, rows: NDArray[np.int64], length: int) -> Any:
    if isinstance(one, torch.Tensor):
        fits = one.dim() > 0 and len(one) == length
        return one[torch.from_numpy(rows).to(one.device)] if fits else one
    if isinstance(one, np.ndarray):
        return one[rows] if one.ndim and len(one) == length else one
    if isinstance(one, Mapping):  # of a class that torch does not know, such as a tokenizer's
        parts = copy.copy(one)
        for key in one:
            parts[key] = take(one[key], rows, length)  # type: ignore[index]
        return parts
    return [one[row] for row in rows] if isinstance(one, list) else one


def per_source(
    model: nn.Module, losses: Callable[[Any], torch.Tensor], batch: Any, codes: Codes
) -> dict[int, Gradients]:
    """The gradients of the summed losses of each source in a batch, from its rows alone.

    Args:
        losses: the loss of each row of a batch, [rows]; the model must not be routed meanwhile.
        codes: int64[rows], the sources of the batch's rows.
    """
    named = {name: one for name, one in model.named_parameters() if one.requires_grad}
    found: dict[int, Gradients] = {}
    for code in np.unique(codes):
        part = take(batch, np.flatnonzero(codes == code), len(codes))
        each = torch.autograd.grad(losses(part).sum(), list(named.values()), allow_unused=True)
        found[int(code)] = dict(zip(named, each, strict=True))
    return found


def combined(
    found: Mapping[int, Gradients],
    codes: Codes,
    weights: Matrix,
    layers: LayerMap,
    normalize: Literal["global", "per_layer"] = "global",
) -> Gradients:
    """The gradients of a step, from those of each source.

    With n_s rows of source s among N, and M its weight in layer l, ``global`` is
    sum_s M[s, l] g[s, l] / N, and ``per_layer`` divides by D_l = sum_s n_s M[s, l] instead: the
    mean over what the layer admits, and None where that is nothing.

    Args:
        found: what ``per_source`` gave.
        weights: float64[S, layers of the map].
    """
    counts = np.bincount(codes, minlength=len(weights))
    share = admitted_share(counts, weights)
    result: Gradients = {}
    for one in layers.parameters:
        terms = [
            gradient * weights[code, one.layer]
            for code, of_source in found.items()
            if (gradient := of_source[one.name]) is not None
        ]
        units = len(codes) * (share[one.layer] if normalize == "per_layer" else 1.0)
        result[one.name] = sum(terms[1:], terms[0]) / units if terms and units else None
    return result
