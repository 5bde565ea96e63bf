"""Standard streams of processes whose logs lie on the disk that they write to."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


def lose_what_does_not_fit() -> None:
    """Let standard output and error lose what a full disk does not take, and raise nothing.

    A process that works on through a full disk must not end by saying so. A pipe that nobody
    reads any more raises as before.
    """
    sys.stdout, sys.stderr = stream(1), stream(2)


def stream(fd: int) -> io.TextIOWrapper:
    """A stream of text lines to a descriptor that takes what it can."""
    return io.TextIOWrapper(
        io.BufferedWriter(_LossyFile(fd)),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=True,
    )


class _LossyFile(io.RawIOBase):
    """A descriptor; what it does not take is lost."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except BrokenPipeError:
            raise
        except OSError:
            pass
        return len(data)
