"""Tensors that are sharded over the ranks (DTensor), made ready for a checkpoint.

Each rank saves the rows it has.
"""

from __future__ import annotations

import copy
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hpcdet.checkpoint.state.tree import Sharded, StateError, rows
from hpcdet.checkpoint.write.save import Exchange


def spread(state: Any, rank: int, world: int, exchange: Exchange, ready: Callable[[], None]) -> Any:
    """A copy of the tree in which every DTensor is a ``Sharded``, or plain if it is replicated.

    All ranks call together. What else is in the tree is not copied.

    Args:
        ready: called on all ranks if there are such tensors: they will swap parts of them.

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
                hint="build the same model, sharded in the same way, on all ranks",
            )
        first = everyone[0][1]  # rank 0 has rows of everything, and so knows what is tied to what
        sharded = {
            number: Sharded(
                found[number].to_local().detach(),
                tuple(found[number].shape),
                rows(found[number].shape[0], rank, world)[0],
            )
            for number in set(first)
        }
        ready()
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
