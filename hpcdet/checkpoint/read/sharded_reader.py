"""Tensors that lie in parts, each rank's rows in its own file: put together again, or hashed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from blake3 import blake3

from hpcdet.checkpoint.format.shard import HINT, begin_digest
from hpcdet.checkpoint.format.table import item_size
from hpcdet.checkpoint.read.reader import Entry
from hpcdet.checkpoint.state.tree import Leaf, Sharded, data, rows
from hpcdet.errors import IntegrityError


class Parts:
    """Collects of every tensor the rows that are wanted, and keeps no others.

    Args:
        whose: the rank and the number of ranks whose rows they are; None: all rows.
        room: bytes of all files, in which all whole tensors together must lie.
    """

    def __init__(self, whose: tuple[int, int] | None, room: int) -> None:
        self._whose = whose
        self._room = room
        self._found: dict[str, Sharded] = {}
        self._filled: dict[str, list[tuple[int, int]]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def digests(self) -> dict[str, str]:
        """Those of the tensors, which are whole, by name."""
        return {name: self._digest(name) for name in self._found}

    def _digest(self, name: str) -> str:
        whole = self.value(name)
        head = begin_digest("tensor", str(whole.dtype).removeprefix("torch."), whole.shape)
        return str(head.update(data(whole)).hexdigest())

    def wants(self, leaf: Leaf) -> bool:
        """Whether there are such rows in a part."""
        first, last = self._rows(leaf)
        return first < last

    def _rows(self, leaf: Leaf) -> tuple[int, int]:
        assert leaf.part is not None
        if leaf.name not in self._found:
            self._room -= math.prod(leaf.part.shape) * item_size(leaf.kind, leaf.dtype)
            if self._room < 0:
                raise _refused(f"rows of {leaf.name} are missing")
            self._found[leaf.name] = self._empty(leaf.part.shape, leaf.dtype)
            self._filled[leaf.name] = []
        target = self._found[leaf.name]
        if target.shape != leaf.part.shape or str(target.local.dtype) != f"torch.{leaf.dtype}":
            raise _refused(f"parts of {leaf.name} are of different tensors")
        first = max(target.start, leaf.part.start)
        return first, min(target.start + len(target.local), leaf.part.start + leaf.shape[0])

    def add(self, entry: Entry) -> None:
        """Take what is wanted of a part that was read."""
        leaf = entry.leaf
        assert leaf.part is not None
        first, last = self._rows(leaf)
        target = self._found[leaf.name]
        if first < last:
            own = entry.value()[first - leaf.part.start : last - leaf.part.start]
            target.local[first - target.start : last - target.start] = own
            self._filled[leaf.name].append((first, last))

    def value(self, name: str) -> Any:
        """The tensor, or that rank's rows of it.

        Raises:
            IntegrityError: rows are missing.
        """
        found = self._found[name]
        reached = found.start
        for first, last in sorted(self._filled[name]):
            if first != reached:
                raise _refused(f"rows of {name} are missing or come twice")
            reached = last
        if reached != found.start + len(found.local):
            raise _refused(f"rows of {name} are missing")
        return found.local if self._whose is None else found

    def _empty(self, shape: tuple[int, ...], dtype: str) -> Sharded:
        start, stop = rows(shape[0], *(self._whose or (0, 1)))
        local = torch.empty((stop - start, *shape[1:]), dtype=getattr(torch, dtype))
        return Sharded(local, shape, start)


def _refused(what: str) -> IntegrityError:
    return IntegrityError(what, where="checkpoint", hint=HINT)


class PartDigests:
    """Digests of whole tensors, from their parts.

    They come in the order of ranks, but for rows that stayed the same on some ranks only: those
    are in files that are read last, and what follows them is held in memory till then.
    """

    def __init__(self) -> None:
        self._hashers: dict[str, blake3] = {}
        self._next: dict[str, int] = {}
        self._of: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._early: dict[str, dict[int, tuple[int, torch.Tensor]]] = {}

    def add(self, entry: Entry) -> None:
        """Hash a part, and those that have waited for it; or keep it.

        Raises:
            IntegrityError: it begins before the one before it ends.
        """
        leaf, name = entry.leaf, entry.leaf.name
        assert leaf.part is not None and entry.data is not None
        if name not in self._hashers:
            self._hashers[name] = begin_digest(leaf.kind, leaf.dtype, leaf.part.shape)
            self._next[name] = 0
            self._of[name] = (leaf.dtype, leaf.part.shape)
            self._early[name] = {}
        if self._of[name] != (leaf.dtype, leaf.part.shape):
            raise _refused(f"parts of {name} are of different tensors")
        early = self._early[name]
        if leaf.part.start < self._next[name] or leaf.part.start in early:
            raise _refused(f"rows of {name} come twice")
        early[leaf.part.start] = leaf.shape[0], entry.data
        while (found := early.pop(self._next[name], None)) is not None:
            self._hashers[name].update(found[1].numpy().data)
            self._next[name] += found[0]

    def whole(self) -> dict[str, str]:
        """The digest of each tensor by name.

        Raises:
            IntegrityError: rows of one are missing.
        """
        for name, (_, shape) in self._of.items():
            if self._next[name] != shape[0] or self._early[name]:
                raise _refused(f"rows of {name} are missing")
        return {name: str(each.hexdigest()) for name, each in self._hashers.items()}
