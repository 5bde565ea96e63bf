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

from hpcdet.checkpoint.format.hdf5_layout import Layout
from hpcdet.checkpoint.format.shard import begin_digest
from hpcdet.checkpoint.state.tree import Leaf, data, rows

_BATCH = 256 << 20
"""Bytes that travel at once, over all ranks; a larger tensor travels alone."""

Swap = Callable[[Sequence[torch.Tensor] | None, Sequence[int]], Sequence[torch.Tensor]]
"""Gives each rank, in their order, a piece of bytes, and returns what all ranks had for this one;
the sizes of that are given. Where one gives None, or finds that it cannot take part, it raises
``WholesFailed`` on all ranks. What else it raises says that the ranks have lost each other."""

Own = Mapping[str, Callable[[], memoryview]]
"""A rank's rows, by the names of their tensors; asked for when their batch is to travel, for what
lies on an accelerator comes to main memory then."""


class WholesFailed(Exception):
    """There are no digests, and no rank waits for another.

    Attributes:
        cause: what failed on this rank; None if another one has failed.
    """

    def __init__(self, cause: Exception | None) -> None:
        super().__init__("another rank has failed" if cause is None else str(cause))
        self.cause = cause


def alone(pieces: Sequence[torch.Tensor] | None, sizes: Sequence[int]) -> Sequence[torch.Tensor]:  # noqa: ARG001 - the signature of a swap
    """The swap of a single rank."""
    if pieces is None:
        raise WholesFailed(None)
    return pieces


def in_file(plan: Layout, take: Callable[[int, int], memoryview]) -> Own:
    """This rank's rows in the image of its file."""
    places = {each.leaf.name: each for each in plan.extents if each.leaf.part}
    return {name: partial(take, each.offset, each.end) for name, each in places.items()}


def in_place(plan: Layout, sources: Sequence[Any]) -> Own:
    """This rank's rows from where they lie; the sources are those of the layout's leaves."""
    pairs = zip(plan.extents, sources, strict=True)
    return {each.leaf.name: partial(data, source) for each, source in pairs if each.leaf.part}


class Wholes:
    """The tensors of a state that lie in parts.

    Args:
        leaves: of the state; the same on all ranks but for the rows.

    Attributes:
        lost: what was raised where the ranks lost each other. Others may still wait for this
            one: only the end of this process tells them.
    """

    def __init__(self, leaves: Sequence[Leaf], rank: int, world: int, swap: Swap) -> None:
        self._leaves = sorted((one for one in leaves if one.part), key=lambda one: one.name)
        self._rank = rank
        self._world = world
        self._ranks = range(world)
        self._swap = swap
        self.lost: Exception | None = None

    @property
    def any(self) -> bool:
        """Whether there are such tensors: if not, nothing is swapped."""
        return bool(self._leaves)

    def digests(self, own: Own) -> dict[str, str]:
        """Those of the tensors that this rank hashes, by name; all ranks call this, or ``refuse``.

        Args:
            own: this rank's rows.

        Raises:
            WholesFailed: this rank or another has failed.
            Exception: see ``lost``; nothing may be exchanged with the others any more.
        """
        try:
            return self._digests(own)
        except WholesFailed:
            raise
        except Exception as error:
            self.lost = error
            raise

    def refuse(self) -> None:
        """This rank has failed before it could call ``digests``: the others are not to wait."""
        if not self.any:
            return
        try:
            self._swap(None, [0] * self._world)
        except WholesFailed:
            return
        except Exception as error:
            self.lost = error

    def _digests(self, own: Own) -> dict[str, str]:
        sizes = [self._row_bytes(leaf) * _shape(leaf)[0] for leaf in self._leaves]
        owners = _owners(sizes, self._world)
        found: dict[str, str] = {}
        failure: Exception | None = None
        for numbers in _batches(sizes):
            outgoing = None
            if failure is None:
                try:
                    outgoing = self._outgoing(numbers, owners, own)
                except Exception as error:  # the others wait for it all the same
                    failure = error
            mine = [number for number in numbers if owners[number] == self._rank]
            parts = [[self._size(number, source) for number in mine] for source in self._ranks]
            try:
                received = self._swap(outgoing, [sum(each) for each in parts])
            except WholesFailed as error:
                cause = failure or error.cause
                raise WholesFailed(cause) from cause
            try:
                found |= self._hashed(mine, received, parts)
            except Exception as error:
                failure = error
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
