"""Digests of tensors that lie in parts: each is that of the whole tensor.

So a state has one digest, however many ranks and whichever strategy hold it. For that every tensor
passes once, in its parts, to one rank that hashes it and forgets it; no rank ever holds more than
one batch of them, and nothing of it is written.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from hpcdet.checkpoint.layout import Layout
from hpcdet.checkpoint.shard import begin_digest
from hpcdet.checkpoint.tree import Leaf, data, rows

_BATCH = 256 << 20
"""Bytes that travel at once, over all ranks; a larger tensor travels alone."""

Swap = Callable[[Sequence[torch.Tensor], Sequence[int]], Sequence[torch.Tensor]]
"""Gives each rank, in their order, a piece of bytes, and returns what all ranks had for this one;
the sizes of that are given."""

Own = Mapping[str, Callable[[], memoryview]]
"""A rank's rows, by the names of their tensors; asked for when their batch is to travel, for what
lies on an accelerator comes to main memory then."""


def alone(pieces: Sequence[torch.Tensor], sizes: Sequence[int]) -> Sequence[torch.Tensor]:
    """The swap of a single rank."""
    return pieces


def in_file(plan: Layout, take: Callable[[int, int], memoryview]) -> Own:
    """This rank's rows in the image of its file."""
    places = {each.leaf.name: each for each in plan.extents if each.leaf.part}
    return {name: partial(take, each.offset, each.end) for name, each in places.items()}


def in_place(plan: Layout, sources: Sequence[Any]) -> Own:
    """This rank's rows from where they lie; the sources are those of the layout's leaves."""
    pairs = zip(plan.extents, sources, strict=True)
    return {each.leaf.name: partial(data, source) for each, source in pairs if each.leaf.part}


class WholesFailed(Exception):
    """This rank has failed, and has swapped with the others to the end all the same.

    Attributes:
        cause: what failed first.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Wholes:
    """The tensors of a state that lie in parts.

    Args:
        leaves: of the state; the same on all ranks but for the rows.
    """

    def __init__(self, leaves: Sequence[Leaf], rank: int, world: int, swap: Swap) -> None:
        self._leaves = sorted((one for one in leaves if one.part), key=lambda one: one.name)
        self._rank = rank
        self._world = world
        self._ranks = range(world)
        self._swap = swap

    @property
    def any(self) -> bool:
        """Whether there are such tensors: if not, nothing is swapped."""
        return bool(self._leaves)

    def digests(self, own: Own) -> dict[str, str]:
        """Those of the tensors that this rank hashes, by name; all ranks call together.

        A rank that fails on the way swaps zeros from then on, and raises at the end: the others
        do not know of it yet, and would wait for it.

        Args:
            own: this rank's rows. Of a rank that has failed they may be missing: what comes of it
                is of no use.

        Raises:
            WholesFailed: this rank has failed; no other waits for it.
            Exception: the swap itself failed, or there is no memory even for zeros. Others may
                still wait in the swap: nothing may be exchanged with them, and only the end of
                this process tells them.
        """
        sizes = [self._row_bytes(leaf) * _shape(leaf)[0] for leaf in self._leaves]
        owners = _owners(sizes, self._world)
        found: dict[str, str] = {}
        failure: Exception | None = None
        for numbers in _batches(sizes):
            try:
                outgoing = self._outgoing(numbers, owners, own)
            except Exception as error:
                failure, own = failure or error, {}
                outgoing = self._outgoing(numbers, owners, own)
            mine = [number for number in numbers if owners[number] == self._rank]
            parts = [[self._size(number, source) for number in mine] for source in self._ranks]
            received = self._swap(outgoing, [sum(each) for each in parts])
            try:
                found |= self._hashed(mine, received, parts)
            except Exception as error:
                failure, own = failure or error, {}
        if failure is not None:
            raise WholesFailed(failure) from failure
        return found

    def _outgoing(
        self, numbers: Sequence[int], owners: Sequence[int], own: Own
    ) -> list[torch.Tensor]:
        """For each rank this rank's rows of those of these tensors that it hashes, as bytes."""
        outgoing = []
        for owner in self._ranks:
            pieces = [self._rows(n, own) for n in numbers if owners[n] == owner]
            outgoing.append(torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.uint8))
        return outgoing

    def _hashed(
        self,
        mine: Sequence[int],
        received: Sequence[torch.Tensor],
        sizes: Sequence[list[int]],
    ) -> dict[str, str]:
        """The digests of these tensors, of which each rank has sent rows of these sizes."""
        split = [torch.split(got, each) for got, each in zip(received, sizes, strict=True) if each]
        found = {}
        for at, number in enumerate(mine):
            leaf = self._leaves[number]
            total = begin_digest(leaf.kind, leaf.dtype, _shape(leaf))
            for parts in split:
                total.update(parts[at].numpy().data)
            found[leaf.name] = str(total.hexdigest())
        return found

    def _rows(self, number: int, own: Own) -> torch.Tensor:
        asked = own.get(self._leaves[number].name)
        found = asked() if asked is not None else None
        if found is None or not found.nbytes:
            return torch.zeros(self._size(number, self._rank), dtype=torch.uint8)
        return torch.frombuffer(found, dtype=torch.uint8)

    def _size(self, number: int, rank: int) -> int:
        """Bytes of a rank's part."""
        leaf = self._leaves[number]
        start, stop = rows(_shape(leaf)[0], rank, self._world)
        return (stop - start) * self._row_bytes(leaf)

    @staticmethod
    def _row_bytes(leaf: Leaf) -> int:
        dtype: torch.dtype = getattr(torch, leaf.dtype)
        return math.prod(_shape(leaf)[1:]) * dtype.itemsize


def _shape(leaf: Leaf) -> tuple[int, ...]:
    assert leaf.part is not None
    return leaf.part.shape


def _owners(sizes: Sequence[int], world: int) -> list[int]:
    """Which rank hashes which tensor: balanced by bytes, the same answer on all ranks."""
    loads = [(0, rank) for rank in range(world)]
    owners = [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        load, rank = heapq.heappop(loads)
        owners[number] = rank
        heapq.heappush(loads, (load + sizes[number], rank))
    return owners


def _batches(sizes: Sequence[int]) -> Iterator[list[int]]:
    batch: list[int] = []
    size = 0
    for number, own in enumerate(sizes):
        if batch and size + own > _BATCH:
            yield batch
            batch, size = [], 0
        batch.append(number)
        size += own
    if batch:
        yield batch
