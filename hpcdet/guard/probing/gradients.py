"""Gradients: whether the loss mixes rows (c), and whether they are routed right (d, e)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from hpcdet.guard.probing.probe import Probe
from hpcdet.guard.probing.rows import routed_calls
from hpcdet.guard.probing.watching import Flags
from hpcdet.guard.routing.oracle import take
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused

Norms = list[list[float]]

_NEAR = {torch.float64: 1e-10, torch.float32: 1e-4}
"""How far routed gradients may be off, relative to all of them; 0.1 in 16 bits."""

# -- (c) the loss does not mix rows --------------------------------------------------------


def loss_is_apart(probe: Probe) -> None:
    """Give one source's rows of the output other values: the slopes of other rows must stay.

    Their change is a second derivative of the loss in rows of two sources, taken over a distance.

    Raises:
        PolicyRefused: slopes change (P13).
    """
    same, loss = probe.plain(probe.batch)
    ends = same.outputs(probe.models)
    if loss.dim() or not ends:  # of a loss per row, (a) and (b) have seen all
        return
    before = _slopes(probe, lambda one: one)
    for code in np.unique(probe.codes):
        flags = probe.codes == code
        if flags.all():
            continue
        after = _slopes(probe, functools.partial(_displaced, probe, flags))
        for ours, theirs in zip(before, after, strict=False):
            if ours is not None and theirs is not None and probe.strays(flags, ours, theirs):
                raise PolicyRefused(
                    "P13",
                    "the loss of rows of one source depends on rows of another",
                    where="train_batch",
                    hint="take a loss that is a sum over rows; contrastive losses and batch "
                    "statistics are not",
                )


Change = Callable[[torch.Tensor], torch.Tensor]


def _slopes(probe: Probe, change: Change) -> list[torch.Tensor | None]:
    """The gradients of the loss in the outputs of models, which are changed before."""
    leaves: list[torch.Tensor] = []

    def leaf(one: torch.Tensor) -> torch.Tensor:
        if not one.requires_grad:
            return one
        leaves.append(change(one.detach()).requires_grad_())
        return leaves[-1]

    hooks = [
        model.register_forward_hook(lambda _, __, output: tree_map_only(torch.Tensor, leaf, output))
        for model in probe.models
    ]
    try:
        _, loss = probe.plain(probe.batch)
    finally:
        for hook in hooks:
            hook.remove()
    return list(torch.autograd.grad(loss, leaves, allow_unused=True))


def _displaced(probe: Probe, flags: Flags, one: torch.Tensor) -> torch.Tensor:
    """An output whose flagged rows are elsewhere, by three times its spread."""
    units = probe.layout.units(one)
    mine = probe.layout.flags(flags, units)
    if mine is None:
        return one
    steps = torch.linspace(-3, 3, units[0].numel() + 1, device=one.device, dtype=one.dtype)[1:]
    spread = float(units.std()) if units.numel() > 1 else 1.0
    moved = units + steps.reshape(units.shape[1:]) * (spread or 1.0)
    kept = torch.from_numpy(mine).to(one.device).reshape(-1, *[1] * (units.dim() - 1))
    return torch.where(kept, moved, units).reshape(one.shape)


# -- (d), (e) gradients --------------------------------------------------------------------


def denied_stay(probe: Probe) -> None:
    """Train on one source alone: layers that it may not change get exactly nothing.

    Raises:
        GovernanceBroken: one gets something (G123).
    """
    for code in np.unique(probe.codes):
        flags = probe.codes == code
        rows = np.flatnonzero(flags.all(axis=1) if flags.ndim > 1 else flags)
        if len(rows) == 0:
            continue
        found = probe.routed(take(probe.batch, rows, probe.layout.rows), probe.codes[rows])
        for (name, _, place), gradient in zip(probe.places, found, strict=True):
            if probe.weights[code, place] == 0 and gradient is not None and gradient.any():
                raise GovernanceBroken(
                    "G123",
                    f"source {probe.names[code]} changes {name}, in {probe.router.layers[place]}",
                    where="model",
                    hint="a parameter is used outside of its module, or in the loss itself: call "
                    "its module, and take weight decay from the optimizer",
                )


def as_the_oracle(probe: Probe) -> None:
    """Compare routed gradients with those that each source's rows of the output give alone.

    Raises:
        GovernanceBroken: they are others (G123).
    """
    wanted = _by_source(probe)
    if wanted is None:
        return
    got = probe.routed(probe.batch, probe.codes)
    off, whole, worst = 0.0, 0.0, ("", 0.0)
    for (name, one, _), ours, theirs in zip(probe.places, got, wanted, strict=True):
        mine = torch.zeros_like(one) if ours is None else ours
        missed = float((mine.double() - theirs).norm()) ** 2
        off, whole = off + missed, whole + float(theirs.norm()) ** 2
        worst = max(worst, (name, missed), key=lambda pair: pair[1])
    watched, _ = probe.plain(probe.batch)
    near = 0.1 if watched.rounds else _NEAR.get(probe.parameters[0].dtype, 0.1)
    if not off**0.5 <= near * whole**0.5:
        raise GovernanceBroken(
            "G123",
            f"routed gradients are not those of one pass per source, most of all at {worst[0]}",
            where="model",
            hint="a parameter is used outside of its module, or in the loss itself: call its "
            "module, and take weight decay from the optimizer",
        )


def _by_source(probe: Probe) -> list[torch.Tensor] | None:
    """The weighted sum of each source's gradients, float64; None where no output has rows."""
    watched, loss = probe.plain(probe.batch)
    if probe.layout.tokens is not None and not all(
        probe.layout.units(one) is not one for _, one in routed_calls(watched)
    ):
        return None  # a module without tokens takes the least weight of a row's
    ends = [loss]
    slopes: list[torch.Tensor | None] = [torch.ones_like(loss)]
    if loss.dim() == 0:  # what of the loss comes by an output itself, not by a later one's
        ends, slopes = watched.outputs(probe.models), _slopes(probe, lambda one: one)
    known = [(end, slope) for end, slope in zip(ends, slopes, strict=True) if slope is not None]
    if not known:
        return None
    for end, _ in known:
        if probe.layout.flags(probe.codes >= 0, probe.layout.units(end)) is None:
            raise PolicyRefused(
                "P13",
                f"the loss has a part of no row: an output of shape {tuple(end.shape)}",
                where="train_batch",
                hint="leave out what is computed over the batch, such as a loss that balances "
                "experts, or give it per row",
            )
    total = [torch.zeros_like(one, dtype=torch.float64) for one in probe.parameters]
    for code in np.unique(probe.codes):
        flags = probe.codes == code
        found = torch.autograd.grad(
            [end for end, _ in known],
            probe.parameters,
            [_only(probe, flags, slope) for _, slope in known],
            retain_graph=True,
            allow_unused=True,
        )
        for number, (one, (_, _, place)) in enumerate(zip(found, probe.places, strict=True)):
            if one is not None:
                total[number] += probe.weights[code, place] * one.double()
    return total


def _only(probe: Probe, flags: Flags, slope: torch.Tensor) -> torch.Tensor:
    """The gradient of an output, of flagged rows only."""
    units = probe.layout.units(slope)
    mine = probe.layout.flags(flags, units)
    if mine is None:
        return slope
    kept = torch.from_numpy(mine).to(slope.device).reshape(-1, *[1] * (units.dim() - 1))
    return torch.where(kept, units, torch.zeros_like(units)).reshape(slope.shape)


def norms(probe: Probe) -> tuple[Norms, Norms]:
    """Norms of each source's own gradient in each layer, routed and not.

    Returns:
        Two lists [sources that the rows are of, layers].
    """
    return _norms(probe), _norms(probe, off=True)


def _norms(probe: Probe, *, off: bool = False) -> Norms:
    found: Norms = []
    before, probe.router.off = probe.router.off, off
    try:
        for code in np.unique(probe.codes):
            rows = np.flatnonzero(probe.codes == code)
            part = take(probe.batch, rows, probe.layout.rows)
            squares = [0.0] * len(probe.router.layers)
            gradients = probe.routed(part, probe.codes[rows])
            for (_, _, place), one in zip(probe.places, gradients, strict=True):
                squares[place] += 0.0 if one is None else float(one.double().norm()) ** 2
            found.append([math.sqrt(one) for one in squares])
    finally:
        probe.router.off = before
    return found
