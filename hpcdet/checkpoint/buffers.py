"""Memory to read into: whole pages, as direct reads want it."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
_OWN = 4 << 20

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def lasting(size: int) -> Bytes:
    """New memory for values that stay: it goes back to the system with the last of them.

    Huge pages are not asked for. The kernel clears them faster, but a virtual machine has given
    back to its host just that memory of which they could be made: to have it again takes several
    times as long as small pages do.
    """
    if size < _OWN:
        return _plain(size)
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(mapped, np.uint8)


class Scratch:
    """Memory for what is only looked at: new memory costs more than the reading into it.

    Args:
        size: of what is mostly asked for; such memory is used again.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: list[Bytes] = []

    def take(self, size: int) -> Bytes:
        """Memory of so many bytes, which may hold anything."""
        if size > self._size:
            return _plain(size)
        whole = self._free.pop() if self._free else _plain(self._size)
        return whole[:size]

    def give_back(self, memory: Bytes) -> None:
        """Nobody looks at this memory any more."""
        whole = memory.base
        if isinstance(whole, np.ndarray) and whole.size == self._size + PAGE:
            skip = -whole.ctypes.data % PAGE
            self._free.append(whole[skip : skip + self._size])


def _plain(size: int) -> Bytes:
    raw = np.empty(size + PAGE, np.uint8)
    skip = -raw.ctypes.data % PAGE
    return raw[skip : skip + size]
