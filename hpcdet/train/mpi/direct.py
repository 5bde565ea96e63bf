"""Sums that the ranks form themselves, of long tensors: the library only carries bytes.

Each rank sends every other one its share of what has to be summed, sums its own share of all in
order of ranks, and sends the result to all: as many bytes as the best all-reduce moves, in few long
messages. A library carries these without much help; its own non-blocking sums it forms piece
by piece, each only when somebody looks, in memory that is new each time. And numbers of 16 bits,
which MPI cannot add, travel as they are, are added in float32 and rounded once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from hpcdet.train.mpi.memory import HALVES, Reduction, bytes_of, in_host_memory
from hpcdet.train.mpi.progress_thread import Steps

_LEAST = 256 << 10  # bytes of a tensor below which the library's own sum is as quick
_SHARE = 32 << 10  # bytes of a message below which latency counts
_MOST = 64  # ranks above which a library that knows the fabric's tree sends fewer messages
_PIECE = 4 << 20  # bytes that are under way at once, and the memory that this takes
_BLOCK = 1 << 15  # numbers that torch adds with one thread: the others have a model to compute
_TAGS = 32767  # that every MPI has


class Direct:
    """The sums of one group.

    Args:
        comm: a communicator that nobody else sends by.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._rank, self._world = comm.rank, comm.size
        self._begun = 0
        self._spare: list[torch.Tensor] = []

    def takes(self, tensor: torch.Tensor, reduction: Reduction) -> bool:
        """Whether a sum is one for here; all ranks come to the same answer."""
        if reduction.function is None or not in_host_memory(tensor):
            return False
        if tensor.dtype in HALVES:
            return True
        size = tensor.numel() * tensor.element_size()
        return bool(self._world <= _MOST and size >= max(_LEAST, _SHARE * self._world))

    def free(self) -> None:
        """Give the communicator back."""
        self._comm.Free()

    # Both take their tag when they are called, so in the same order on all ranks, and go on when
    # their turn comes, in any order.

    def allreduce(self, buffer: torch.Tensor, reduction: Reduction) -> Steps:
        """In place, on all ranks."""
        return self._allreduce(buffer.view(-1), reduction, self._tag())

    def reduce_scatter(self, whole: torch.Tensor, own: torch.Tensor, reduction: Reduction) -> Steps:
        """The sum of this rank's share of ``whole``, into ``own``."""
        shares = whole.view(self._world, -1)
        return self._reduce_scatter(shares, own.view(-1), reduction, self._tag())

    def _allreduce(self, flat: torch.Tensor, reduction: Reduction, tag: int) -> Steps:
        for piece in torch.split(flat, _PIECE // flat.element_size()):
            shares = torch.tensor_split(piece, self._world)
            own = shares[self._rank]
            with self._room(len(own), flat.dtype) as room:
                yield self._exchange(shares, room, tag)
                self._sum(own, room, reduction)
            yield self._exchange([own] * self._world, shares, tag)

    def _reduce_scatter(
        self, shares: torch.Tensor, own: torch.Tensor, reduction: Reduction, tag: int
    ) -> Steps:
        step = max(1, _PIECE // self._world // own.element_size())
        for start in range(0, len(own), step):
            part = own[start : start + step]
            given = [share[start : start + step] for share in shares]
            with self._room(len(part), own.dtype) as room:
                yield self._exchange(given, room, tag)
                part.copy_(given[self._rank])
                self._sum(part, room, reduction)

    def _tag(self) -> int:
        self._begun += 1
        return self._begun % _TAGS

    def _others(self) -> Iterator[int]:
        """The other ranks, each rank's next one first: not all send to the same one at once."""
        for step in range(1, self._world):
            yield (self._rank + step) % self._world

    def _exchange(self, given: Any, taken: Any, tag: int) -> list[Any]:
        """Begin to send and to receive something for and from each other rank."""
        receives = [
            self._comm.Irecv(bytes_of(taken[other]), source=other, tag=tag)
            for other in self._others()
            if len(taken[other])
        ]
        sends = [
            self._comm.Isend(bytes_of(given[other]), dest=other, tag=tag)
            for other in self._others()
            if len(given[other])
        ]
        return receives + sends

    def _sum(self, own: torch.Tensor, came: list[torch.Tensor], reduction: Reduction) -> None:
        """In order of ranks, into ``own``."""
        for start in range(0, len(own), _BLOCK):
            block = slice(start, start + _BLOCK)
            rows = [own if r == self._rank else came[r] for r in range(self._world)]
            self._sum_block(own[block], [row[block] for row in rows], reduction)

    def _sum_block(self, own: torch.Tensor, rows: list[torch.Tensor], reduction: Reduction) -> None:
        function = reduction.function
        assert function is not None
        half = own.dtype in HALVES
        total = rows[0].float() if half else rows[0]
        for rank, row in enumerate(rows[1:], 1):
            into = own if rank == self._rank and not half else total
            total = function(total, row, out=into)
        reduction.after(total)
        if half:
            own.copy_(total)

    @contextlib.contextmanager
    def _room(self, size: int, kind: torch.dtype) -> Iterator[list[torch.Tensor]]:
        """Memory for what comes from each other rank, used again: new memory is slow at first."""
        length = size * kind.itemsize
        needed = -(-length // 64) * 64
        held = self._spare.pop() if self._spare else torch.empty(0, dtype=torch.uint8)
        if held.numel() < needed * self._world:
            held = torch.empty(needed * self._world, dtype=torch.uint8)
        rows = [held[needed * r : needed * r + length].view(kind) for r in range(self._world)]
        yield rows
        self._spare.append(held)
