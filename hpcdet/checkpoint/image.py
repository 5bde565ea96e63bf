"""A rank's file in memory, as it will lie on disk: copied into at once, written from in peace.

Only the copy holds training up; what it changes afterwards does not reach the file. The memory
is taken once and used again by every save: taking a gigabyte from the kernel costs more than
copying it.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hpcdet.checkpoint import memory
from hpcdet.checkpoint.layout import Layout, gaps
from hpcdet.checkpoint.tree import Leaf

PAGE = 4096
_CHUNK = 16 << 20
_SPARE = 256 << 20
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14
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

    def wait(self, offset: int) -> None:
        """Return once everything below this offset is there.

        Raises:
            RuntimeError: it never will be.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failed or self._upto >= offset)
            if self._upto < offset:
                raise RuntimeError("the state could not be copied")


class Image:
    """Memory for the file of one rank, for one save at a time.

    Args:
        room: bytes of memory that may be taken, asked when more is needed.
    """

    def __init__(self, room: Callable[[], int] = memory.available) -> None:
        self._room = room
        self._memory: mmap.mmap | None = None
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._pinned = 0  # its address, if CUDA knows it
        self._plan: Layout | None = None
        self._views: list[torch.Tensor] = []
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
        self._plan, self._views = None, []
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
        self._views = [
            self._view(each.leaf, *extent)
            for each, extent in zip(plan.extents, extents, strict=True)
        ]
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
            taken.madvise(_POPULATE_WRITE)
        except OSError:
            self._bytes[::PAGE] = 0

    def release(self) -> None:
        """Give the memory back."""
        if self._pinned:
            _cuda().cudaHostUnregister(self._pinned)
        self._pinned, self._plan, self._views = 0, None, []
        self._bytes, self._memory = torch.empty(0, dtype=torch.uint8), None

    def fill(self, leaves: Sequence[Leaf], filled: Filled) -> None:
        """Copy the data of leaves, which are those of the layout, to their places.

        What the caller does to them afterwards no longer matters. ``filled`` is told how far it
        is, and that it failed if it does.
        """
        assert self._plan is not None
        try:
            self._fill(leaves, self._plan, filled)
        except BaseException:
            filled.fail()
            raise

    def _fill(self, leaves: Sequence[Leaf], plan: Layout, filled: Filled) -> None:
        devices = {leaf.source.device for leaf in leaves if _on_device(leaf.source)}
        if devices and torch.cuda.is_available():
            self._pin()
        into: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        size = 0
        for number in plan.ascending:
            leaf, extent = leaves[number], plan.extents[number]
            if not leaf.nbytes:
                continue
            if size >= _CHUNK:
                _copy(into, sources)
                if not devices:
                    filled.advance(extent.offset)
                into, sources, size = [], [], 0
            if isinstance(leaf.source, torch.Tensor):
                into.append(self._views[number])
                sources.append(leaf.source)
            else:
                self.put(extent.offset, leaf.data())
            size += leaf.nbytes
        _copy(into, sources)
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

    def put(self, offset: int, data: memoryview | bytes) -> None:
        """Put bytes to a place."""
        self._bytes.numpy().data[offset : offset + len(data)] = data

    def take(self, start: int, end: int) -> memoryview:
        """The bytes of a range, not copied."""
        return self._bytes.numpy().data[start:end]


def _on_device(source: object) -> bool:
    return isinstance(source, torch.Tensor) and source.device.type != "cpu"


def _copy(into: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    if into:
        with torch.no_grad():
            torch._foreach_copy_(into, sources, non_blocking=True)


def _cuda() -> Any:
    """The CUDA runtime; torch does not say of what type it is."""
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
