"""Tensors that are sharded over the ranks (DTensor), made ready for a checkpoint.

Each rank saves the rows it has. Their digest is nevertheless that of the whole tensor, so that a
state has one digest, however many ranks and whichever strategy hold it. For that every tensor
passes once, in its parts, to one rank that hashes it and forgets it; no rank ever holds more than
one batch of them, and nothing of it is written.
"""

from __future__ import annotations

import copy
import heapq
import math
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from hpcdet.checkpoint.saving import Exchange
from hpcdet.checkpoint.shard import begin_digest
from hpcdet.checkpoint.tree import Sharded, StateError, rows

_BATCH = 256 << 20
"""Bytes that travel at once, over all ranks; a larger tensor travels alone."""


def spread(state: Any, rank: int, world: int, exchange: Exchange) -> Any:
    """A copy of the tree in which every DTensor is a ``Sharded``, or plain if it is replicated.

    All ranks call together. What else is in the tree is not copied.

    Raises:
        StateError: a tensor is sharded in another way than FSDP2 does, or the ranks' trees differ.
    """
    if "torch.distributed.tensor" not in sys.modules:
        return state
    found: list[Any] = []
    places: list[str] = []
    for path, tensor in _dtensors(state, "shared"):
        if _is_sharded(tensor, path, rank, world):
            found.append(tensor)
            places.append(path)
    made: dict[int, Any] = {}
    if found:
        described = [
            [path, str(one.dtype), list(one.shape)] for path, one in zip(places, found, strict=True)
        ]
        everyone = exchange([described, _first_of_each(found)])
        if any(one[0] != described for one in everyone):
            raise StateError(
                "the ranks have sharded tensors of different names, types or shapes",
                where="shared state",
            )
        first = everyone[0][1]  # rank 0 has rows of everything, and so knows what is tied to what
        unique = sorted(set(first))
        found_out = _digests([found[number] for number in unique], rank, world, exchange)
        sharded = {
            number: Sharded(
                found[number].to_local().detach(),
                tuple(found[number].shape),
                rows(found[number].shape[0], rank, world)[0],
                digest,
            )
            for number, digest in zip(unique, found_out, strict=True)
        }
        made = {id(one): sharded[at] for one, at in zip(found, first, strict=True)}
    return _replace(state, made)


def _kind() -> Any:
    return sys.modules["torch.distributed.tensor"].DTensor


def _dtensors(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _dtensors(item, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _dtensors(item, f"{path}/#{number}")
    elif isinstance(value, _kind()):
        yield path, value


def _is_sharded(tensor: Any, path: str, rank: int, world: int) -> bool:
    """Whether each rank has some of a tensor (False: all have all of it).

    Raises:
        StateError: it is cut in a way that cannot be saved.
    """
    mesh, placement = tensor.device_mesh, tensor.placements[0]
    if all(one.is_replicate() for one in tensor.placements):
        return False
    plain = mesh.ndim == 1 and mesh.size() == world and placement.is_shard(0)
    start, stop = rows(tensor.shape[0], rank, world) if tensor.ndim else (0, 0)
    if not plain or tensor.to_local().shape[0] != stop - start:
        raise StateError(
            f"a tensor with the placements {tensor.placements} on {mesh} cannot be saved",
            where=path,
            hint="tensors may be sharded along their first axis over all ranks, as FSDP2 does",
        )
    return world > 1 and math.prod(tensor.shape) > 0


def _first_of_each(tensors: Sequence[Any]) -> list[int]:
    """For each tensor the number of the first one that shares its memory; tied weights do."""
    seen: dict[Any, int] = {}
    first = []
    for number, tensor in enumerate(tensors):
        local = tensor.to_local()
        same = (local.data_ptr(), local.shape, local.dtype) if local.numel() else (number,)
        first.append(seen.setdefault(same, number))
    return first


def _replace(value: Any, made: dict[int, Any]) -> Any:
    if isinstance(value, dict):
        changed = copy.copy(value) if isinstance(value, OrderedDict) else dict(value)
        for key, item in value.items():
            changed[key] = _replace(item, made)
        return changed
    if isinstance(value, list | tuple):
        items = [_replace(item, made) for item in value]
        return tuple(items) if type(value) is tuple else items if type(value) is list else value
    if isinstance(value, _kind()):
        return made[id(value)] if id(value) in made else value.to_local().detach()
    return value


def _digests(tensors: Sequence[Any], rank: int, world: int, exchange: Exchange) -> list[str]:
    """The digest of each whole tensor, on all ranks."""
    owners = _owners([one.numel() * one.element_size() for one in tensors], world)
    mine: dict[str, str] = {}
    for numbers in _batches(tensors):
        for number, parts in _deliver(tensors, numbers, owners, rank, world):
            tensor = tensors[number]
            dtype = str(tensor.dtype).removeprefix("torch.")
            total = begin_digest("tensor", dtype, tuple(tensor.shape))
            for part in parts:
                total.update(part.numpy().data)
            mine[str(number)] = str(total.hexdigest())
    known: dict[str, str] = {}
    for each in exchange(mine):
        known |= each
    return [known[str(number)] for number in range(len(tensors))]


def _owners(sizes: Sequence[int], world: int) -> list[int]:
    """Which rank hashes which tensor: balanced by bytes, the same answer on all ranks."""
    loads = [(0, rank) for rank in range(world)]
    owners = [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        load, rank = heapq.heappop(loads)
        owners[number] = rank
        heapq.heappush(loads, (load + sizes[number], rank))
    return owners


def _batches(tensors: Sequence[Any]) -> Iterator[list[int]]:
    batch: list[int] = []
    size = 0
    for number, tensor in enumerate(tensors):
        own = tensor.numel() * tensor.element_size()
        device = tensor.device
        if batch and (size + own > _BATCH or device != tensors[batch[0]].device):
            yield batch
            batch, size = [], 0
        batch.append(number)
        size += own
    if batch:
        yield batch


def _deliver(
    tensors: Sequence[Any], numbers: Sequence[int], owners: Sequence[int], rank: int, world: int
) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """Each of these tensors that this rank hashes, as all ranks' parts of it, as bytes."""
    device = tensors[numbers[0]].to_local().device
    outgoing = [
        _bytes(tensors[number].to_local())
        for owner in range(world)
        for number in numbers
        if owners[number] == owner
    ]
    own = [number for number in numbers if owners[number] == rank]
    sends = [
        sum(_size(tensors[number], rank, world) for number in numbers if owners[number] == owner)
        for owner in range(world)
    ]
    receives = [sum(_size(tensors[n], source, world) for n in own) for source in range(world)]
    received = torch.empty(sum(receives), dtype=torch.uint8, device=device)
    group = tensors[numbers[0]].device_mesh.get_group()
    dist.all_to_all_single(received, torch.cat(outgoing), receives, sends, group=group)
    sizes = [_size(tensors[n], source, world) for source in range(world) for n in own]
    pieces = iter(torch.split(received.cpu(), sizes))
    by_source = [[next(pieces) for _ in own] for _ in range(world)]
    for at, number in enumerate(own):
        yield number, [by_source[source][at] for source in range(world)]


def _size(tensor: Any, rank: int, world: int) -> int:
    """Bytes of a rank's part."""
    start, stop = rows(tensor.shape[0], rank, world)
    return int((stop - start) * math.prod(tensor.shape[1:]) * tensor.element_size())


def _bytes(local: torch.Tensor) -> torch.Tensor:
    return local.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
