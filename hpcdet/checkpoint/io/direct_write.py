"""Writing large pieces to a file at the speed of the disk, past the page cache.

Where the file system does not take that (tmpfs and others refuse ``O_DIRECT``), pieces go
through the page cache, are sent on at once, and are dropped from it a little later: else a file
larger than the memory of the job would drive out everything else.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
from collections.abc import Callable
from pathlib import Path

from hpcdet.store.fs import files

PIECE = 16 << 20
DIRECT = os.O_DIRECT
_BEHIND = 64 << 20
_SEND = 2  # SYNC_FILE_RANGE_WRITE
_SEND_AND_WAIT = 7


def open_direct(path: Path, flags: int, direct: int = DIRECT) -> int:
    """Open a file past the page cache, or through it where that is refused."""
    try:
        return os.open(path, flags | direct, files.FILE_MODE)
    except OSError as error:
        if not direct or error.errno != errno.EINVAL:
            raise
    return os.open(path, flags, files.FILE_MODE)


class DirectOutput:
    """Writes to an open file, from its beginning to its end.

    Pieces must begin at multiples of 4096 in memory and file, and be as long, or they go through
    the page cache.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._sent = 0  # up to here it was sent to the disk
        self._dropped = 0  # up to here nothing is in the page cache any more

    def write(self, data: memoryview, offset: int) -> None:
        """Write all of it.

        Raises:
            OSError: the disk is full or fails.
        """
        while data:
            try:
                written = os.pwrite(self._fd, data[:PIECE], offset)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct():
                    raise
                flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
                fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~DIRECT)
                continue
            if not written:
                raise OSError(errno.EIO, "the file system takes no more bytes")
            data = data[written:]
            offset += written
            if not self._direct():
                self._send(offset)

    def _direct(self) -> bool:
        return bool(fcntl.fcntl(self._fd, fcntl.F_GETFL) & DIRECT)

    def _send(self, end: int) -> None:
        if end - self._sent < PIECE:
            return
        _sync_range(self._fd, self._sent, end - self._sent, _SEND)
        self._sent = end
        done = end - _BEHIND
        if done > self._dropped:
            length = done - self._dropped
            _sync_range(self._fd, self._dropped, length, _SEND_AND_WAIT)
            with contextlib.suppress(OSError):  # it is only advice
                os.posix_fadvise(self._fd, self._dropped, length, os.POSIX_FADV_DONTNEED)
            self._dropped = done


def _sync_range(fd: int, offset: int, length: int, how: int) -> None:
    """``sync_file_range``, where there is such a thing.

    Raises:
        OSError: the disk failed. It has to be said here: ``fsync`` does not say it again.
    """
    call = _library()
    if call is not None and call(fd, offset, length, how) < 0:
        number = ctypes.get_errno()
        if number in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
            raise OSError(number, os.strerror(number))


@functools.cache
def _library() -> Callable[[int, int, int, int], int] | None:
    call = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_uint]
    return call
