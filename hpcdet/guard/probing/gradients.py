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
from hpcdet.guard.probing.watching import Flags, ForwardPass, Laid, RowLayout
from hpcdet.guard.routing.oracle import take
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused

Norms = list[list[float]]

_NEAR = {torch.float64: 1e-10, torch.float32: 1e-4}
"""How far routed gradients may be off, relative to all of them; 0.1 in 16 bits."""

# -- (c) the loss does not mix rows --------------------------------------------------------


def loss_is_apart(probe: Probe) -> None:
    """Give one source's rows of the output other values: the slopes of other rows must stay.

    Their change is a second derivative of the loss in rows of two sources, taken over a distance.
    Of a loss that the model computes itself the derivative is asked for: steps escape.

    Raises:
        PolicyRefused: slopes change (P13).
    """
    watched, loss = probe.plain(probe.batch)
    if loss.dim():  # (a) and (b) have seen all
        return
    before = _slopes(probe, lambda one, _: one)
    if all(one is None for _, one in before):
        _check_derivatives(probe, loss, _last(probe, watched))
        return
    for code in np.unique(probe.codes):
        flags = probe.codes == code
        if flags.all():
            continue
        after = _slopes(probe, functools.partial(_displaced, flags))
        for (layout, ours), (_, theirs) in zip(before, after, strict=False):
            if ours is not None and theirs is not None and layout.strays(flags, ours, theirs):
                raise _coupled()


def _coupled() -> PolicyRefused:
    return PolicyRefused(
        "P13",
        "the loss of rows of one source depends on rows of another",
        where="train_batch",
        hint="take a loss that is a sum over rows; contrastive losses and batch statistics are not",
    )


def _last(probe: Probe, watched: ForwardPass) -> list[Laid]:
    """The outputs of rows that no other output is computed from."""
    ends = [
        (layout, one)
        for layout, one in watched.outputs(probe.models)
        if layout.flags(probe.codes >= 0, one) is not None
    ]

    def leads(one: torch.Tensor) -> bool:
        others = [other.sum() for _, other in ends if other is not one]
        found = [torch.autograd.grad(o, one, retain_graph=True, allow_unused=True) for o in others]
        return any(gradient is not None for [gradient] in found)

    return [(layout, one) for layout, one in ends if not leads(one)]


def _check_derivatives(probe: Probe, loss: torch.Tensor, laid: list[Laid]) -> None:
    ends = [one for _, one in laid]
    slopes = torch.autograd.grad(loss, ends, create_graph=True, allow_unused=True) if ends else ()
    if all(one is None for one in slopes):
        raise PolicyRefused(
            "P12",
            "the loss depends on no output per row",
            where="train_batch",
            hint="let the model return its outputs",
        )
    for code in np.unique(probe.codes):
        flags = probe.codes == code
        kept = [
            _only(layout, flags, one)
            for (layout, _), one in zip(laid, slopes, strict=True)
            if one is not None and one.requires_grad
        ]
        if not kept:
            return
        weighed = sum(
            (one * torch.linspace(0.5, 1.5, one.numel()).to(one).reshape(one.shape)).sum()
            for one in kept
        )
        seconds = torch.autograd.grad(weighed, ends, retain_graph=True, allow_unused=True)  # type: ignore[arg-type]
        for (layout, _), one in zip(laid, seconds, strict=True):
            if one is not None and layout.strays(flags, one, torch.zeros_like(one)):
                raise _coupled()


Change = Callable[[torch.Tensor, RowLayout], torch.Tensor]
Slopes = list[tuple[RowLayout, torch.Tensor | None]]


def _slopes(probe: Probe, change: Change) -> Slopes:
    """The gradients of the loss in the outputs of rows, which are changed before."""
    leaves: list[torch.Tensor] = []
    layouts: list[RowLayout] = []

    def leaf(one: torch.Tensor) -> torch.Tensor:
        layout = probe.now()
        if not one.requires_grad or layout.flags(probe.codes >= 0, layout.units(one)) is None:
            return one
        leaves.append(change(one.detach(), layout).requires_grad_())
        layouts.append(layout)
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
    if not leaves:
        return []
    found = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
    if any(one is not None for one in found):
        _refuse_more(probe, loss)
    return list(zip(layouts, found, strict=True))


def _refuse_more(probe: Probe, loss: torch.Tensor) -> None:
    """Refuse a loss that reaches parameters past the outputs, which are cut off from them."""
    past = torch.autograd.grad(loss, probe.parameters, allow_unused=True)
    for (name, _, _), one in zip(probe.places, past, strict=True):
        if one is not None and one.any():
            raise PolicyRefused(
                "P13",
                f"a part of the loss that is of no row depends on {name}",
                where="train_batch",
                hint="leave out what is computed over the batch, such as a loss that balances "
                "experts; take weight decay from the optimizer",
            )


def _displaced(flags: Flags, one: torch.Tensor, layout: RowLayout) -> torch.Tensor:
    """An output whose flagged rows are elsewhere, by three times its spread."""
    units = layout.units(one)
    mine = layout.flags(flags, units)
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
    slopes: Slopes = [(probe.layout, torch.ones_like(loss))]
    if loss.dim() == 0:  # what of the loss comes by an output itself, not by a later one's
        ends = [
            one
            for layout, one in watched.outputs(probe.models)
            if layout.flags(probe.codes >= 0, layout.units(one)) is not None
        ]
        slopes = _slopes(probe, lambda one, _: one)
        if all(one is None for _, one in slopes):  # the model computes its loss itself
            last = _last(probe, watched)
            if not last:
                return None
            ends = [one for _, one in last]
            found = torch.autograd.grad(loss, ends, retain_graph=True, allow_unused=True)
            slopes = [(layout, one) for (layout, _), one in zip(last, found, strict=True)]
    known = [
        (end, layout, slope)
        for end, (layout, slope) in zip(ends, slopes, strict=True)
        if slope is not None
    ]
    if not known:
        return None
    total = [torch.zeros_like(one, dtype=torch.float64) for one in probe.parameters]
    for code in np.unique(probe.codes):
        flags = probe.codes == code
        found = torch.autograd.grad(
            [end for end, _, _ in known],
            probe.parameters,
            [_only(layout, flags, slope) for _, layout, slope in known],
            retain_graph=True,
            allow_unused=True,
        )
        for number, (one, (_, _, place)) in enumerate(zip(found, probe.places, strict=True)):
            if one is not None:
                total[number] += probe.weights[code, place] * one.double()
    return total


def _only(layout: RowLayout, flags: Flags, slope: torch.Tensor) -> torch.Tensor:
    """The gradient of an output, of flagged rows only."""
    units = layout.units(slope)
    mine = layout.flags(flags, units)
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
