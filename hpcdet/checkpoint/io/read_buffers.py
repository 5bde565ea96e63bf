"""Memory to read into: whole pages, as direct reads want it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
POPULATE_WRITE = 23
"""``MADV_POPULATE_WRITE``, Linux 5.14."""
_HUGE = 2 << 20
_WORTH = 64 << 10

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Scratch:
    """Memory for what is only looked at: new memory costs more than the reading into it.

    It is of huge pages, where those can be had: a disk is asked for so many ranges of memory at
    once, of which each page is one, and these few pages are soon found.

    Args:
        size: of what is mostly asked for; such memory is used again.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: list[Bytes] = []
        self._lent: dict[int, Bytes] = {}

    def take(self, size: int) -> Bytes:
        """Memory of so many bytes, which may hold anything."""
        if size > self._size:
            return _plain(size)
        whole = self._free.pop() if self._free else self._new()
        self._lent[whole.ctypes.data] = whole
        return whole[:size]

    def give_back(self, memory: Bytes) -> None:
        """Give back a buffer that has no reader any more."""
        whole = self._lent.pop(memory.ctypes.data, None)
        if whole is not None:
            self._free.append(whole)

    def _new(self) -> Bytes:
        if self._size < _HUGE:
            return _plain(self._size)
        mapped = mmap.mmap(-1, self._size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without them
            mapped.madvise(mmap.MADV_HUGEPAGE)
        raw = np.frombuffer(mapped, np.uint8)
        skip = -raw.ctypes.data % _HUGE
        return raw[skip : skip + self._size]


def _plain(size: int) -> Bytes:
    raw = np.empty(size + PAGE, np.uint8)
    skip = -raw.ctypes.data % PAGE
    return raw[skip : skip + size]


def populate(memory: Bytes) -> None:
    """Have the kernel map all pages of new memory at once; their contents stay.

    That costs less than one by one, when each is first written to.

    A kernel that knows no such thing finds them one by one, as ever.
    """
    address = memory.ctypes.data
    start = -(-address // PAGE) * PAGE
    length = (address + memory.size) // PAGE * PAGE - start
    call = _madvise()
    if length >= _WORTH and call is not None:
        call(start, length, POPULATE_WRITE)


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """``madvise`` of any memory, without Python being held up."""
    call = getattr(ctypes.CDLL(None), "madvise", None)
    if call is not None:
        call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return call
