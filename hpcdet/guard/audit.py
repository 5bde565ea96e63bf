"""Probes of a governed batch while it is trained: verdicts and measurements."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from hpcdet.errors import HpcdetError
from hpcdet.guard.guard import Guard
from hpcdet.guard.probing import row_probes as probes
from hpcdet.guard.probing.gradients import Norms, norms
from hpcdet.guard.probing.probe import Codes, Probe
from hpcdet.guard.probing.watching import eagerly
from hpcdet.guard.routing.oracle import take
from hpcdet.policy.codes import PolicyRefused

ROWS = 4
"""Rows of each kind that are probed."""


@dataclass(frozen=True)
class Findings:
    """Norms of each kind of rows' own gradient in each layer, [kinds, layers].

    Attributes:
        kinds: those that the probed rows are of.
        on: as it is routed: exactly 0 where it is denied.
        off: as it would be without routing.
    """

    kinds: list[str]
    layers: list[str]
    on: Norms
    off: Norms


def audit(guard: Guard, batch: Any, loss: Callable[[Any], torch.Tensor]) -> Findings | None:
    """Probe the rows under way.

    Args:
        loss: forward passes and loss of a batch, one value or one per row; no backward pass.

    Returns:
        What was measured; None where no row is known or counts.

    Raises:
        PolicyRefused, GovernanceBroken: as ``probes.check``; or the loss cannot be probed (P12).
    """
    codes = guard.codes
    if codes is None or not (codes < guard.kinds.absent).any():
        return None
    rows = _few(codes, guard.kinds.absent)
    with _explained(), eagerly(), steady(guard.models.models):
        probe = Probe(
            router=guard.router,
            models=guard.models.models,
            loss=loss,
            batch=_part(batch, rows, len(codes)),
            codes=codes[rows],
            names=guard.kinds.names,
            weights=guard.matrix,
            places=_places(guard),
            around=guard.again,
            lanes=guard.models.lanes,
        )
        for one in _wanted(guard, probe):
            one(probe)
        on, off = norms(probe)
    kinds = [guard.kinds.names[code] for code in np.unique(probe.codes)]
    return Findings(kinds, list(guard.models.layers), on, off)


def joined(everyone: list[dict[str, Any]], batches: int) -> dict[str, Any]:
    """Join the ranks' measurements: of each kind those of the first rank with rows of it."""
    on: dict[str, Any] = {}
    off: dict[str, Any] = {}
    for one in everyone:
        for kind, mine, plain in zip(one["kinds"], one["on"], one["off"], strict=True):
            on.setdefault(kind, mine)
            off.setdefault(kind, plain)
    names = sorted(on)
    return {
        "step": batches,
        "sources": names,
        "layers": everyone[0]["layers"],
        "on": [on[name] for name in names],
        "off": [off[name] for name in names],
    }


def _wanted(guard: Guard, probe: Probe) -> Sequence[Callable[[Probe], None]]:
    """The probes that say something of this trial."""
    if not any(
        "_routed" in one.__dict__ for model in guard.models.models for one in model.modules()
    ):
        return ()  # every source may change every layer, so that nothing can leak
    guard.regrouped = False
    with steady(guard.models.models):
        probe.plain(probe.batch)
    # where code makes other rows of the batch's, modules need not see those of the batch
    return probes.OF_GRADIENTS if guard.regrouped else probes.ALL


def _places(guard: Guard) -> list[tuple[str, torch.nn.Parameter, int]]:
    return [
        (one.name, live[one.name], guard.router.place(layers.layers[one.layer]))
        for model, layers in zip(guard.models.models, guard.models.maps, strict=True)
        for live in [dict(model.named_parameters())]
        for one in layers.parameters
    ]


def _few(codes: Codes, absent: int) -> Codes:
    """Some rows of each kind that counts, in order."""
    found = [np.flatnonzero(codes == code)[:ROWS] for code in np.unique(codes[codes < absent])]
    return np.sort(np.concatenate(found))


def _part(batch: Any, rows: Codes, length: int) -> Any:
    found = take(batch, rows, length)
    pairs = zip(tree_leaves(found), tree_leaves(batch), strict=True)
    if len(rows) < length and all(part is whole for part, whole in pairs):
        raise TypeError(f"a {type(batch).__name__} cannot be divided by rows")
    return found


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Say of the user's errors in a probe what a probe is."""
    try:
        yield
    except HpcdetError:
        raise
    except Exception as error:
        raise PolicyRefused(
            "P12",
            f"a part of the batch cannot be probed: {type(error).__name__}: {error}",
            where="train_batch",
            hint="define losses(batch), which gives one loss per row of any part of a batch",
        ) from error


@contextlib.contextmanager
def steady(models: list[torch.nn.Module]) -> Iterator[None]:
    """Around probes: parameters must stay, and their gradients are as before.

    Raises:
        PolicyRefused: the user's code has changed a parameter (P12).
    """
    named = [pair for model in models for pair in model.named_parameters()]
    versions = [one._version for _, one in named]
    gradients = [
        (one, one.grad, None if one.grad is None else one.grad.clone()) for _, one in named
    ]
    yield
    for one, gradient, value in gradients:
        one.grad = gradient
        if gradient is not None and value is not None:
            gradient.copy_(value)
    for (name, one), version in zip(named, versions, strict=True):
        if one._version != version:
            raise PolicyRefused(
                "P12",
                f"train_batch changes {name} itself, and cannot be tried without a trace",
                where="train_batch",
                hint="define losses(batch), one loss per row: it is asked instead",
            )
