"""Lanes: whether anything but rows of their own sources changes with what they have learned."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from hpcdet.data.source_lanes import Lane
from hpcdet.guard.probing.probe import Codes, Gradients, Probe
from hpcdet.guard.probing.watching import Flags, ForwardPass, changed, undisturbed, watching
from hpcdet.guard.routing.oracle import take
from hpcdet.policy.codes import PolicyRefused


@dataclass(frozen=True)
class _Run:
    """One run of the models on the probe's batch."""

    calls: ForwardPass
    loss: torch.Tensor
    buffers: dict[str, torch.Tensor]
    gradients: Gradients


def lanes_reach_no_row(probe: Probe) -> None:
    """Change each lane's parameters: rows of other sources must come out as they did.

    Raises:
        PolicyRefused: they do not (P11).
    """
    for lane, place, users, tried in _lanes(probe):
        before, flags = _run(tried), np.isin(tried.codes, users)
        steady = _same(tried, flags, before, _run(tried))
        with _changed(tried, place):
            after = _run(tried)
        name = _first_difference(tried, flags, before, after, exactly=steady)
        if name is not None:
            raise _reached(lane, f"rows of other sources: {name}")


def lanes_reach_no_trunk(probe: Probe) -> None:
    """Change each lane's parameters, then its rows: others' gradients and buffers must stay.

    Raises:
        PolicyRefused: they do not (P11).
    """
    for lane, place, users, tried in _lanes(probe):
        apart = _apart(tried, users)
        before = _run(tried)
        exactly = _gradients_differ(tried, apart, before, _run(tried), exactly=True) is None
        with _changed(tried, place):
            after = _run(tried)
        name = _gradients_differ(tried, apart, before, after, exactly=exactly)
        name = name or _buffers_differ(before, after)
        if name is not None:
            raise _reached(lane, name)
        other = _replaced(tried, users)
        if other is not None:
            name = _buffers_differ(before, _run(other))
            if name is not None:
                raise _reached(lane, f"{name}, by rows of its sources")


def _reached(lane: str, what: str) -> PolicyRefused:
    return PolicyRefused(
        "P11",
        f"the lane {lane!r} reaches {what}",
        where="model",
        hint="use its modules through pytorch.Lane alone, and nothing that is computed from them "
        "for other rows or outside of the lane",
    )


def _lanes(probe: Probe) -> Iterator[tuple[str, int, Codes, Probe]]:
    """Lanes of the policy that have rows of others beside their own.

    Yields:
        The name and place of a lane, the kinds of rows that may change it, and a probe of both.
    """
    for place in sorted(probe.lanes):
        users = np.flatnonzero(probe.weights[: len(probe.names), place] > 0)
        tried = _mixed(probe, users) if len(users) else None
        if tried is not None:
            yield probe.router.layers[place], place, users, tried


def _mixed(probe: Probe, users: Codes) -> Probe | None:
    """The probe with rows of a lane's sources and of others; None if the data have no others.

    Where the batch has not both, some of its rows count as what they are not.
    """
    others = np.setdiff1d(np.arange(len(probe.names)), users)
    if not len(others) or probe.layout.rows < 2:
        return None
    codes = probe.codes.copy()
    inside = np.isin(codes, users)
    if not inside.any():
        codes[::2] = users[0]
    elif inside.all():
        codes[::2] = others[0]
    return dataclasses.replace(probe, codes=codes)


def _run(probe: Probe) -> _Run:
    with (
        undisturbed(probe.models),
        probe.around(probe.codes),
        probe.router.accounted(),
        watching(probe.models, probe.now) as calls,
    ):
        loss = probe.loss(probe.batch)
        gradients: Gradients = list(
            torch.autograd.grad(loss.sum(), probe.parameters, allow_unused=True)
        )
        return _Run(calls, loss.detach(), _buffers(probe), gradients)


def _buffers(probe: Probe) -> dict[str, torch.Tensor]:
    """Buffers outside of lanes, as they are now."""
    inside = {
        id(one)
        for model in probe.models
        for lane in model.modules()
        if isinstance(lane, Lane)
        for one in lane.buffers()
    }
    return {
        name: one.detach().clone()
        for model in probe.models
        for name, one in model.named_buffers()
        if id(one) not in inside
    }


@contextlib.contextmanager
def _changed(probe: Probe, place: int) -> Iterator[None]:
    """Around passes with other parameters in a lane."""
    mine = [one for _, one, at in probe.places if at == place]
    before = [one.detach().clone() for one in mine]
    try:
        for one in mine:
            spread = torch.linspace(-1, 1, max(one.numel(), 2), device=one.device)[: one.numel()]
            one.data.mul_(-1.5).add_(spread.reshape(one.shape).to(one.dtype))
        yield
    finally:
        for one, value in zip(mine, before, strict=True):
            one.data.copy_(value)


def _apart(probe: Probe, users: Codes) -> list[int]:
    """Parameters that none of these kinds of rows may change."""
    return [
        number
        for number, (_, _, place) in enumerate(probe.places)
        if not (probe.weights[users, place] > 0).any()
    ]


def _replaced(probe: Probe, users: Codes) -> Probe | None:
    """The probe with other values in rows of a lane's sources."""
    if probe.layout.tokens is not None:
        return None
    mine = np.isin(probe.codes, users)
    order = np.arange(len(probe.codes))
    order[mine] = np.resize(np.flatnonzero(~mine), int(mine.sum()))
    return dataclasses.replace(probe, batch=take(probe.batch, order, probe.layout.rows))


# -- differences ---------------------------------------------------------------------------


def _first_difference(
    probe: Probe, flags: Flags, before: _Run, after: _Run, *, exactly: bool
) -> str | None:
    """A module whose output differs in rows that are not flagged, or the loss; None: none does."""
    for key, call in before.calls.calls.items():
        if not any(call.module is model for model in probe.models) or key not in after.calls.calls:
            continue
        for ours, theirs in zip(call.gave, after.calls.calls[key].gave, strict=False):
            if _strays(probe, flags, ours, theirs, exactly=exactly):
                return f"the output of {call.name}"
    if before.loss.dim() and _strays(probe, flags, before.loss, after.loss, exactly=exactly):
        return "their losses"
    return None


def _same(probe: Probe, flags: Flags, before: _Run, after: _Run) -> bool:
    """True if nothing differs between two runs of the same: some kernels round as they please."""
    return _first_difference(probe, flags, before, after, exactly=True) is None


def _strays(
    probe: Probe, flags: Flags, before: torch.Tensor, after: torch.Tensor, *, exactly: bool
) -> bool:
    before, after = probe.layout.units(before), probe.layout.units(after)
    mine = probe.layout.flags(flags, before)
    if mine is None:
        return False
    if before.shape != after.shape:
        return True
    return bool((_differs(before, after, exactly=exactly) & ~mine).any())


def _differs(before: torch.Tensor, after: torch.Tensor, *, exactly: bool) -> Flags:
    if not exactly:
        return changed(before, after)
    same = (before == after) | (before.isnan() & after.isnan())
    found: Flags = (~same).reshape(len(before), -1).any(1).cpu().numpy()
    return found


def _gradients_differ(
    probe: Probe, apart: list[int], before: _Run, after: _Run, *, exactly: bool
) -> str | None:
    for number in apart:
        ours, theirs = before.gradients[number], after.gradients[number]
        if (ours is None) != (theirs is None):
            return f"the gradient of {probe.places[number][0]}"
        if ours is None or theirs is None:
            continue
        if _differs(ours.reshape(1, -1), theirs.reshape(1, -1), exactly=exactly).any():
            return f"the gradient of {probe.places[number][0]}"
    return None


def _buffers_differ(before: _Run, after: _Run) -> str | None:
    for name, value in before.buffers.items():
        if not torch.equal(value, after.buffers[name]):
            return f"the buffer {name}"
    return None
