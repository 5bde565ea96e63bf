"""Buffers of models by name: as they were, put back, and as rank 0 has them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from hpcdet.core.training import Peers

Models = Sequence[torch.nn.Module]


def named(models: Models) -> dict[str, torch.Tensor]:
    """All buffers by name, the model's number in front."""
    return {
        f"{number}.{name}": one
        for number, model in enumerate(models)
        for name, one in model.named_buffers()
    }


def copies(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copy each buffer's present value."""
    return {name: one.detach().clone() for name, one in model.named_buffers()}


def put_back(model: torch.nn.Module, saved: Mapping[str, torch.Tensor]) -> None:
    """Let buffers hold what they held.

    One that has another shape by now, or is gone, is a cache: the model makes it anew when it
    needs it.
    """
    buffers = dict(model.named_buffers())
    with torch.no_grad():
        for name, value in saved.items():
            if name in buffers and buffers[name].shape == value.shape:
                buffers[name].copy_(value)


@dataclass(frozen=True)
class BufferKind:
    """The properties of a buffer that two ranks must share to send it to each other."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str

    def encode(self) -> list[Any]:
        """In words that ranks can compare."""
        return [self.shape, str(self.dtype), self.device]


def alike(models: Models, peers: Peers) -> dict[str, BufferKind]:
    """The buffers that all ranks have of one kind, in the same order on all; they call together.

    Caches may depend on the batches that a rank has seen: they are nobody else's.
    """
    own = {name: _kind(one) for name, one in named(models).items()}
    first, *others = peers.allgather({name: one.encode() for name, one in own.items()})
    return {
        name: own[name]
        for name, kind in first.items()
        if all(one.get(name) == kind for one in others)
    }


def from_first(models: Models, kinds: Mapping[str, BufferKind], *, first: bool) -> None:
    """Rank 0's buffers of these kinds become everybody's; all ranks call together.

    A rank that has made one anew since, of another kind, gives and takes nothing of it: what is
    sent has its place all the same, so that nobody has to ask.

    Args:
        first: this is rank 0.
    """
    now = named(models)
    groups: dict[tuple[torch.dtype, str], list[tuple[BufferKind, torch.Tensor | None]]]
    groups = defaultdict(list)
    for name, kind in kinds.items():
        one = now.get(name)
        here = one.detach() if one is not None and _kind(one) == kind else None
        groups[kind.dtype, kind.device].append((kind, here))
    for (dtype, home), group in groups.items():
        pieces = [
            torch.zeros(kind.shape, dtype=dtype, device=home) if one is None else one.to(home)
            for kind, one in group
        ]
        has = torch.tensor([one is not None for _, one in group], dtype=torch.uint8, device=home)
        message = torch.cat([torch.cat([one.reshape(-1) for one in pieces]).view(torch.uint8), has])
        dist.broadcast(message, src=0)
        if first:
            continue
        size = len(message) - len(group)
        sent = torch.split(message[:size].view(dtype), [math.prod(kind.shape) for kind, _ in group])
        for (_, one), values, given in zip(group, sent, message[size:].tolist(), strict=True):
            if one is not None and given:
                one.copy_(values.view(one.shape))


def _kind(buffer: torch.Tensor) -> BufferKind:
    return BufferKind(tuple(buffer.shape), buffer.dtype, buffer.device.type)
