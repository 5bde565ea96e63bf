"""A rank's file in memory, as it will lie on disk: copied into at once, written from in peace.

Only the copy holds training up; what it changes afterwards does not reach the file. The memory
is taken once and used again by every save: taking a gigabyte from the kernel costs more than
copying it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from hpcdet.checkpoint.format.hdf5_layout import Layout, gaps
from hpcdet.checkpoint.io import memory_limit
from hpcdet.checkpoint.io.read_buffers import POPULATE_WRITE
from hpcdet.checkpoint.io.task import BackgroundTask
from hpcdet.checkpoint.state import tree
from hpcdet.checkpoint.state.tree import Leaf

PAGE = 4096
_CHUNK = 32 << 20
_LARGE = 1 << 20
"""Bytes: tensors from this size on are moved by themselves, smaller ones all at once."""
_MOVE = 4 << 20
"""Bytes that one thread moves at once."""
_MOST_MOVING = 4
"""Threads that move, if training has as many: few have all that the memory can give."""
_SPARE = 256 << 20
_HUGE = 2 << 20


class NoRoom(Exception):
    """There is not enough memory for an image."""


class Filled:
    """How far an image has been filled. Who writes it may follow behind."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._upto = 0
        self._failed = False

    def advance(self, offset: int) -> None:
        """Everything below this offset is there."""
        with self._changed:
            self._upto = offset
            self._changed.notify_all()

    def fail(self) -> None:
        """The rest will never be there."""
        with self._changed:
            self._failed = True
            self._changed.notify_all()

    def wait(self, offset: int) -> int:
        """Return once everything below this offset is there: up to where it is.

        Raises:
            RuntimeError: it never will be.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failed or self._upto >= offset)
            if self._upto < offset:
                raise RuntimeError("the state could not be copied")
            return self._upto


class Image:
    """Memory for the file of one rank, for one save at a time.

    Args:
        room: bytes of memory that may be taken, asked when more is needed.
    """

    def __init__(self, room: Callable[[], int] = memory_limit.available) -> None:
        self._room = room
        self._memory: mmap.mmap | None = None
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._pinned = 0  # its address, if CUDA knows it
        self._plan: Layout | None = None
        self._chunks: tuple[_Chunk, ...] = ()
        self._second: Image | None = None

    @property
    def second(self) -> Image:
        """Memory for a second file of the rank."""
        if self._second is None:
            self._second = Image(self._room)
        return self._second

    def release_second(self) -> None:
        """There is no second file (any more): give its memory back."""
        if self._second is not None:
            self._second.release()

    def arrange(self, plan: Layout) -> None:
        """Make ready for a file of this layout; its frame is there then.

        Raises:
            NoRoom: there is not enough memory.
        """
        if plan is self._plan:
            return
        self._plan, self._chunks = None, ()
        fresh = not plan.size <= len(self._bytes) <= 2 * plan.size + _SPARE
        if fresh:
            self._take(plan.size)
        held = self._bytes.numpy().data
        extents = [(each.offset, each.end) for each in plan.extents]
        if not fresh:
            for start, end in gaps(extents, len(self._bytes)):
                held[start:end] = bytes(end - start)
        for offset, piece in plan.pieces:
            held[offset : offset + len(piece)] = piece
        views = [
            self._view(each.leaf, *extent)
            for each, extent in zip(plan.extents, extents, strict=True)
        ]
        self._chunks = tuple(_chunks(plan, views))
        self._plan = plan

    def _view(self, leaf: Leaf, start: int, end: int) -> torch.Tensor:
        own = self._bytes[start:end]
        if leaf.kind != "tensor" or not leaf.nbytes:
            return own
        return own.view(getattr(torch, leaf.dtype)).view(leaf.shape)

    def _take(self, size: int) -> None:
        """Replace the memory by so much, in memory already: the first copy is as fast as all."""
        needed = -(-size // PAGE) * PAGE
        self.release()
        if self._room() < needed + min(needed, _SPARE):
            raise NoRoom(f"{needed >> 20} MiB of memory for copies of the state")
        try:
            taken = mmap.mmap(-1, needed, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise NoRoom(str(error)) from error
        with contextlib.suppress(OSError):  # a kernel without huge pages
            if needed >= _HUGE:
                taken.madvise(mmap.MADV_HUGEPAGE)
        # workers of loaders are forked at any time; they would share the pages, copied on write
        taken.madvise(mmap.MADV_DONTFORK)
        self._memory = taken
        self._bytes = torch.frombuffer(taken, dtype=torch.uint8)
        try:
            taken.madvise(POPULATE_WRITE)
        except OSError:
            self._bytes[::PAGE] = 0

    def release(self) -> None:
        """Give the memory back."""
        if self._pinned:
            _cuda().cudaHostUnregister(self._pinned)
        self._pinned, self._plan, self._chunks = 0, None, ()
        self._bytes, self._memory = torch.empty(0, dtype=torch.uint8), None

    def fill(self, sources: Sequence[Any], filled: Filled) -> None:
        """Copy the data of the layout's leaves to their places.

        What the caller does to them afterwards no longer matters. ``filled`` is told how far it
        is, and that it failed if it does.
        """
        assert self._plan is not None
        try:
            self._fill(sources, self._plan, filled)
        except BaseException:
            filled.fail()
            raise

    def _fill(self, sources: Sequence[Any], plan: Layout, filled: Filled) -> None:
        devices = {one.device for one in sources if isinstance(one, torch.Tensor)}
        devices.discard(torch.device("cpu"))
        if devices and torch.cuda.is_available():
            self._pin()
        # the copies of a device wait in this thread's stream
        helpers = 0 if devices else min(_MOST_MOVING, torch.get_num_threads()) - 1
        for chunk in self._chunks:
            for number, offset in chunk.others:
                self.put(offset, tree.data(sources[number]))
            with torch.no_grad():
                if chunk.tensors:
                    there = [sources[number] for number in chunk.tensors]
                    torch._foreach_copy_(chunk.views, there, non_blocking=True)
                _move([(view, sources[number]) for number, view in chunk.large], helpers)
            if not devices:
                filled.advance(chunk.upto)
        for device in devices:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
        filled.advance(plan.size)

    def _pin(self) -> None:
        """Let the device copy into it directly."""
        if self._pinned or self._memory is None:
            return
        address = self._bytes.data_ptr()
        if int(_cuda().cudaHostRegister(address, len(self._bytes), 0)) == 0:
            self._pinned = address
            return
        # the runtime keeps the refusal, which the next kernel would be blamed for: let it be this
        with contextlib.suppress(RuntimeError):
            torch.ones(1, device="cuda")

    def put(self, offset: int, data: memoryview | bytes) -> None:
        """Put bytes to a place."""
        self._bytes.numpy().data[offset : offset + len(data)] = data

    def take(self, start: int, end: int) -> memoryview:
        """The bytes of a range, not copied."""
        return self._bytes.numpy().data[start:end]


class _Chunk(NamedTuple):
    """The leaves that are copied at once.

    Attributes:
        upto: everything below this offset is there afterwards.
        tensors: numbers of the leaves that are tensors, but for large ones.
        views: their places.
        large: numbers and places of large tensors.
        others: the other leaves and their offsets.
    """

    upto: int
    tensors: list[int]
    views: list[torch.Tensor]
    large: list[tuple[int, torch.Tensor]]
    others: list[tuple[int, int]]


def _chunks(plan: Layout, views: Sequence[torch.Tensor]) -> Iterator[_Chunk]:
    chunk, size = _Chunk(0, [], [], [], []), 0
    for number in plan.ascending:
        extent = plan.extents[number]
        if not extent.leaf.nbytes:
            continue
        if size >= _CHUNK:
            yield chunk._replace(upto=extent.offset)
            chunk, size = _Chunk(0, [], [], [], []), 0
        if extent.leaf.kind == "tensor" and extent.leaf.nbytes >= _LARGE:
            chunk.large.append((number, views[number]))
        elif extent.leaf.kind == "tensor":
            chunk.tensors.append(number)
            chunk.views.append(views[number])
        else:
            chunk.others.append((number, extent.offset))
        size += extent.leaf.nbytes
    yield chunk._replace(upto=plan.size)


def _move(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], helpers: int) -> None:
    """Copy tensors to their places, some threads together.

    The C library's copy does not first read what it overwrites, as torch's does; nor do threads
    wait for each other at each tensor, which takes long where others want the cores as well.
    """
    moves: list[tuple[int, int, int]] = []
    for view, source in pairs:
        if not _is_plain(source, view):
            view.copy_(source, non_blocking=True)
            continue
        to, at, size = view.data_ptr(), source.data_ptr(), view.nbytes
        moves += ((to + n, at + n, min(_MOVE, size - n)) for n in range(0, size, _MOVE))
    rest = iter(moves)

    def work() -> None:
        for to, at, size in rest:
            ctypes.memmove(to, at, size)

    others: list[BackgroundTask[None]] = []
    try:
        with contextlib.suppress(RuntimeError):  # a limit on threads: fewer do it as well
            while len(others) < min(helpers, len(moves) - 1):
                others.append(BackgroundTask(work, "checkpoint copy"))
        work()
    finally:
        for other in others:
            other.wait()
    for other in others:
        other.result()


def _is_plain(source: torch.Tensor, view: torch.Tensor) -> bool:
    """Whether its bytes are those of its place, in this order.

    Tensors of other classes, as one that a collective still fills, need not say where theirs are.
    """
    same = source.dtype == view.dtype and source.nbytes == view.nbytes
    here = source.device.type == "cpu" and source.is_contiguous() and type(source) in tree.TENSORS
    return same and here and not source.is_conj() and not source.is_neg()


def _cuda() -> Any:
    """The CUDA runtime; torch does not say of what type it is."""
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
