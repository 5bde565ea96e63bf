"""Rows of a model: whether they mix (a), and whether modules see those of the batch (b)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_map

from hpcdet.data.source_lanes import Lane
from hpcdet.guard.probing.probe import Codes, Probe
from hpcdet.guard.probing.watching import Call, Flags, ForwardPass, RowLayout, changed
from hpcdet.guard.routing.oracle import take
from hpcdet.guard.routing.router import ROWS_HINT
from hpcdet.policy.codes import PolicyRefused

# -- (a) rows do not mix -------------------------------------------------------------------


def rows_are_apart(probe: Probe) -> None:
    """Replace each source's rows by others: nothing else may change.

    Raises:
        PolicyRefused: another row does (P07), or a module has rows in another order (P12).
    """
    before, loss = probe.plain(probe.batch)
    for flags, batch in _replaced(probe):
        after, other = probe.plain(batch)
        of_model = [
            layout.strays(flags, *pair) for layout, *pair in _pairs(before, after, probe.models)
        ]
        if loss.dim():
            of_model.append(probe.layout.strays(flags, loss, other))
        if any(of_model):
            _blame(flags, before, after)


def _replaced(probe: Probe) -> Iterator[tuple[Flags, Any]]:
    """Batches in which one source's rows are those of others: all the same one, and many."""
    count = probe.codes.size
    flat = probe.codes.reshape(-1)
    for code in np.unique(flat):
        inside, outside = np.flatnonzero(flat == code), np.flatnonzero(flat != code)
        if len(outside) == 0:
            continue
        for by in (outside[:1], outside):
            order = np.arange(count)
            order[inside] = np.resize(by, len(inside))
            yield probe.codes == code, _reordered(probe, order)


def _reordered(probe: Probe, order: Codes) -> Any:
    layout = probe.layout
    if layout.tokens is None:
        return take(probe.batch, order, layout.rows)

    def moved(one: Any) -> Any:
        if not isinstance(one, torch.Tensor) or one.shape[:2] != probe.codes.shape:
            return one
        return one.flatten(0, 1)[torch.from_numpy(order).to(one.device)].reshape(one.shape)

    return tree_map(moved, probe.batch)


def _pairs(
    before: ForwardPass, after: ForwardPass, models: Sequence[nn.Module]
) -> Iterator[tuple[RowLayout, torch.Tensor, torch.Tensor]]:
    """The outputs of models in two runs, with their rows."""
    for key, call in before.calls.items():
        if key in after.calls and any(call.module is model for model in models):
            for ours, theirs in zip(call.gave, after.calls[key].gave, strict=False):
                yield call.layout, ours, theirs


def _blame(flags: Flags, before: ForwardPass, after: ForwardPass) -> None:
    """Name the innermost module whose rows were apart in its input and are not in its output.

    Raises:
        PolicyRefused: always.
    """
    for key, call in before.calls.items():
        other = after.calls.get(key)
        if other is None or not _mixes(flags, call, other):
            continue
        what = type(call.module).__name__
        raise PolicyRefused(
            "P07",
            f"{call.name} ({what}) gives a row of one source by rows of another",
            where="model",
            hint="use GroupNorm or LayerNorm for BatchNorm, a mask for packed documents, no "
            "statistics over the batch and no other order of its rows; or let every source "
            "change the layers before it",
        )
    raise PolicyRefused(
        "P07",
        "a row of one source changes with rows of another, outside of any module",
        where="train_batch",
        hint="leave out what mixes rows before the model, such as mixup and another order, or name "
        "the rows that each is made from: with context.rows(indices): ...",
    )


def _mixes(flags: Flags, call: Call, other: Call) -> bool:
    def strays(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
        return any(call.layout.strays(flags, *pair) for pair in zip(ours, theirs, strict=False))

    return strays(call.gave, other.gave) and not strays(call.given, other.given)


# -- (b) rows of modules are rows of the batch ---------------------------------------------


def rows_are_the_batch(probe: Probe) -> None:
    """Follow gradients from one source's rows of the output back to each routed module.

    Raises:
        PolicyRefused: they come to rows of a module that belong to others, or there is no output
            per row to begin with (P12).
    """
    watched, loss = probe.plain(probe.batch)
    ends = [(probe.layout, loss)] if loss.dim() else watched.outputs(probe.models)
    ends = [(layout, layout.units(one)) for layout, one in ends]
    ends = [
        (layout, one) for layout, one in ends if layout.flags(probe.codes >= 0, one) is not None
    ]
    if not ends:
        raise PolicyRefused(
            "P12",
            "the model gives no value per row, and the loss is one value",
            where="train_batch",
            hint="let the model return its outputs",
        )
    learning = routed_calls(watched)
    for code in np.unique(probe.codes):
        flags = probe.codes == code
        total = sum(_weighed(layout, flags, one) for layout, one in ends)
        found = torch.autograd.grad(
            total,  # type: ignore[arg-type]
            [one for _, one in learning],
            retain_graph=True,
            allow_unused=True,
        )
        for (call, _), gradient in zip(learning, found, strict=True):
            _check_rows(flags, call, gradient)


def routed_calls(watched: ForwardPass) -> list[tuple[Call, torch.Tensor]]:
    """The calls of routed modules and of lanes, with the first output of each.

    Modules inside of lanes see some rows of the batch only: the lane gives all of them.
    """
    called = list(watched.calls.values())
    lanes = [call.module for call in called if isinstance(call.module, Lane)]
    inside = {part for lane in lanes for part in lane.modules()}.difference(lanes)
    return [
        (call, one)
        for call in called
        if isinstance(call.module, Lane)
        or ("_routed" in call.module.__dict__ and call.module not in inside)
        for one in call.gave[:1]
        if one.requires_grad
    ]


def _weighed(layout: RowLayout, flags: Flags, end: torch.Tensor) -> torch.Tensor:
    """The flagged rows of an output, added up with different weights."""
    mine = layout.flags(flags, end)
    assert mine is not None
    rows = end[torch.from_numpy(np.flatnonzero(mine)).to(end.device)]
    weights = torch.linspace(0.5, 1.5, rows.numel(), device=rows.device, dtype=rows.dtype)
    return (rows.reshape(-1) * weights).sum()


def _check_rows(flags: Flags, call: Call, gradient: torch.Tensor | None) -> None:
    if gradient is None:
        return
    if not getattr(call.module, "batch_first", True):
        gradient = gradient.transpose(0, 1)
    gradient = call.layout.units(gradient)
    mine = call.layout.flags(flags, gradient)
    if mine is not None and not (changed(gradient, torch.zeros_like(gradient)) & ~mine).any():
        return
    raise PolicyRefused(
        "P12",
        f"the rows of {call.name} ({type(call.module).__name__}) are not those of the batch",
        where="train_batch",
        hint=ROWS_HINT,
    )
