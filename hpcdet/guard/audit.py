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
from hpcdet.guard.probing.collated import Collated, rows_are_samples
from hpcdet.guard.probing.gradients import Norms, norms
from hpcdet.guard.probing.probe import Codes, Probe
from hpcdet.guard.probing.watching import eagerly
from hpcdet.guard.routing.oracle import take
from hpcdet.policy.codes import PolicyRefused

ROWS = 4
"""Rows of each kind that are probed."""

Loss = Callable[[Any], torch.Tensor]

_PARTS = (
    "let it train any part of a batch: take the number of rows from the tensors that it is given"
)
_HERE = "let the data set and collate_fn work in the training process, too, on any of its samples"


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


def audit(guard: Guard, batch: Any, *losses: Loss) -> Findings | None:
    """Probe the rows under way.

    Args:
        losses: what trains, then what is asked beside it: forward passes and loss of a batch, one
            value or one per row; no backward pass.

    Returns:
        What was measured of what trains; None where no row is known or counts.

    Raises:
        PolicyRefused, GovernanceBroken: as ``probes.check``; or a loss cannot be probed (P12), or
            code has changed gradients or weights before (P15).
    """
    codes = guard.codes
    if codes is None or not (codes < guard.kinds.absent).any():
        return None
    rows = _few(codes, guard.kinds.absent)
    guard.optimizers.untouched.check()
    with _explained("train_batch", _PARTS), eagerly(), steady(guard.models.models):
        part = _part(batch, rows, len(codes))
        tried = [_probe(guard, loss, part, codes[rows]) for loss in losses]
        for probe in tried:
            for one in _wanted(guard, probe):
                one(probe)
        on, off = norms(tried[0])
    guard.optimizers.untouched.seal()
    kinds = [guard.kinds.names[code] for code in np.unique(codes[rows])]
    return Findings(kinds, list(guard.models.layers), on, off)


def _probe(guard: Guard, loss: Loss, batch: Any, codes: Codes) -> Probe:
    return Probe(
        router=guard.router,
        models=guard.models.models,
        loss=loss,
        batch=batch,
        codes=codes,
        names=guard.kinds.names,
        weights=guard.matrix,
        places=_places(guard),
        around=guard.again,
        lanes=guard.models.lanes,
        made_from=lambda: guard.made_from,
    )


def audit_collated(guard: Guard, indices: Codes, collated: Collated) -> None:
    """Probe what makes batches of samples, on some samples of a batch.

    Args:
        indices: of the batch's samples.

    Raises:
        PolicyRefused: rows are not the samples in their places, or it cannot be tried (P12).
    """
    codes = guard.kinds_of(indices)
    if codes is None or not _routes(guard):
        return
    with _explained("build_training_data_loader", _HERE):
        rows_are_samples(indices, codes, guard.kinds.names, collated)


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
    if not _routes(guard):
        return ()
    guard.regrouped = False
    probe.plain(probe.batch)
    return probes.OF_NAMED_ROWS if guard.regrouped else probes.ALL


def _routes(guard: Guard) -> bool:
    """False where every source may change every layer, so that nothing can leak."""
    return any("_routed" in one.__dict__ for m in guard.models.models for one in m.modules())


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
def _explained(where: str, hint: str) -> Iterator[None]:
    """Say of the user's errors in a probe what a probe is."""
    try:
        yield
    except HpcdetError:
        raise
    except Exception as error:
        raise PolicyRefused(
            "P12",
            f"a part of the batch cannot be probed: {type(error).__name__}: {error}",
            where=where,
            hint=hint,
        ) from error


@contextlib.contextmanager
def steady(models: list[torch.nn.Module]) -> Iterator[None]:
    """Around probes: parameters must stay; they and their gradients are afterwards as before.

    Raises:
        PolicyRefused: the user's code has changed a parameter (P12).
    """
    named = [pair for model in models for pair in model.named_parameters()]
    before = [(one._version, one.detach().clone()) for _, one in named]
    gradients = [
        (one, one.grad, None if one.grad is None else one.grad.clone()) for _, one in named
    ]
    try:
        yield
    finally:
        for one, gradient, value in gradients:
            one.grad = gradient
            if gradient is not None and value is not None:
                gradient.copy_(value)
        changed = [
            name
            for (name, one), (version, value) in zip(named, before, strict=True)
            if one._version != version or not torch.equal(_bytes(one), _bytes(value))
        ]
        for (_, one), (_, value) in zip(named, before, strict=True):
            if changed:
                one.data.copy_(value)
        if changed:  # whatever else a probe has found comes of it
            raise PolicyRefused(
                "P12",
                f"train_batch changes {changed[0]} itself, and not by a step of an optimizer",
                where="train_batch",
                hint="leave weights to wrapped optimizers, and average or clamp those of a copy",
            )


def _bytes(one: torch.Tensor) -> torch.Tensor:
    return one.detach().reshape(-1).view(torch.uint8)
