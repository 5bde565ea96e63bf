"""A rank's file, open for reading: its table, and its bytes, past the page cache or not."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from blake3 import blake3

from hpcdet.checkpoint.format import table
from hpcdet.checkpoint.format.shard import HINT, Shard
from hpcdet.checkpoint.format.table import RankTable, TableRow
from hpcdet.checkpoint.io.read_buffers import PAGE, Bytes
from hpcdet.errors import IntegrityError
from hpcdet.store.fs import files

SMALL_FILE = 1 << 20
"""Up to this size a file is not worth reading past the page cache."""
FIRST = 64 << 20
"""What is wanted of so many bytes the kernel is to fetch into the page cache, while it is worked
out where that is to go."""
_ADVICE = 128 << 10
"""Bytes that the kernel is asked for at once: of more it fetches the beginning, as much as the
readahead of the device, which is hardly ever less than this."""
_NEAR = 128 << 10
"""What lies no farther apart is fetched with what lies between."""
_PROBES = 8
_AT_ONCE = 1024
"""As many memories as one read of the system may fill."""


class RankFile:
    """A rank's file, open for reading.

    Attributes:
        frame: BLAKE3 of the bytes that are in no dataset, as far as they were read.
    """

    def __init__(self, path: Path, shard: Shard) -> None:
        self.path = path
        self.shard = shard
        self.frame = blake3()
        self._direct = -1
        self._cold = False
        self._fetched = 0
        self._fd = -1
        try:
            self._fd = files.open_to_read(path)
        except FileNotFoundError:
            raise IntegrityError("the file is missing", where=str(path), hint=HINT) from None
        size = os.fstat(self._fd).st_size
        if size != shard.bytes:
            self.close()
            raise IntegrityError(
                f"the file has {size} bytes, not {shard.bytes}", where=str(path), hint=HINT
            )

    def close(self) -> None:
        """Close it; may be called again."""
        for fd in (self._fd, self._direct):
            if fd >= 0:
                os.close(fd)
        self._fd = self._direct = -1

    @functools.cached_property
    def table(self) -> RankTable:
        """The table, which covers every other byte of the file; validated."""
        offset, length = self.shard.table
        text = np.empty(length, np.uint8)
        self.fill(offset, text)
        self.check(blake3(text.data).hexdigest(), self.shard.root, "table")
        try:
            return table.parse(text.tobytes(), self.shard.table, self.shard.bytes)
        except ValueError as error:
            raise IntegrityError(str(error), where=str(self.path), hint=HINT) from error

    def begin(self, direct: bool) -> None:
        """Start reading the table from disk, without waiting, if it is not in the page cache.

        Args:
            direct: then read past the page cache from now on.
        """
        self._cold = self.shard.bytes > SMALL_FILE and not self._is_cached()
        if not self._cold:
            return
        if direct:
            with contextlib.suppress(OSError):  # a file system that knows no direct reads
                self._direct = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        with contextlib.suppress(OSError):
            offset, length = self.shard.table
            self._advise(offset, offset + length)

    def fetch(self, wanted: Iterable[TableRow]) -> None:
        """Start fetching these of the first bytes, ascending, into the page cache.

        ``fill`` finds them there. Nothing is done where the page cache has them already.
        """
        if not self._cold:
            return
        self._fetched = FIRST
        start = end = 0
        with contextlib.suppress(OSError):
            for row in wanted:
                if row.start - end > _NEAR:
                    self._advise(start, end)
                    start = row.start
                end = min(row.end, FIRST)
            self._advise(start, end)

    def _advise(self, start: int, end: int) -> None:
        for at in range(start, end, _ADVICE):
            os.posix_fadvise(self._fd, at, min(_ADVICE, end - at), os.POSIX_FADV_WILLNEED)

    def _is_cached(self) -> bool:
        """Whether the page cache has it, as it may right after it was written on this node."""
        probe = bytearray(1)
        try:
            for n in range(_PROBES):
                os.preadv(self._fd, [probe], self.shard.bytes * n // _PROBES, os.RWF_NOWAIT)
        except OSError:  # it would have to wait, or the file system cannot say
            return False
        return True

    def fill(self, offset: int, memory: Bytes) -> None:
        """Read from an offset on; what is behind the end of the file stays as it is."""
        end = min(offset + memory.size, self.shard.bytes)
        rest = memory.data
        fd = self._direct if self.is_direct(offset) else self._fd
        while offset < end:
            try:
                count = os.preadv(fd, [rest], offset)
            except OSError as error:
                if error.errno != errno.EINVAL or fd == self._fd:
                    raise
                fd = self._fd  # it wants another alignment
                continue
            if not count:
                raise self._too_short()
            if count % PAGE:
                fd = self._fd
            offset += count
            rest = rest[count:]

    def is_direct(self, offset: int) -> bool:
        """Whether reads from there go past the page cache, and want whole pages of one memory."""
        return self._direct >= 0 and offset >= self._fetched

    def scatter(self, offset: int, memories: Sequence[Bytes]) -> None:
        """Read from an offset on into one memory after the other, through the page cache."""
        end = min(offset + sum(memory.size for memory in memories), self.shard.bytes)
        rest = [memory.data for memory in memories]
        at = 0
        while offset < end:
            count = os.preadv(self._fd, rest[at : at + _AT_ONCE], offset)
            if not count:
                raise self._too_short()
            offset += count
            while at < len(rest) and count >= len(rest[at]):
                count -= len(rest[at])
                at += 1
            if count:
                rest[at] = rest[at][count:]

    def _too_short(self) -> IntegrityError:
        return IntegrityError("the file ends too early", where=str(self.path), hint=HINT)

    def finish(self) -> None:
        """All of it that is wanted, and so all of the holes, has been read.

        Raises:
            IntegrityError: the HDF5 header is not what was written.
        """
        self.check(self.frame.hexdigest(), self.table.frame, "HDF5 header")
        self.close()

    def check(self, found: str, expected: str, dataset: str) -> None:
        """Compare two digests.

        Raises:
            IntegrityError: they differ.
        """
        if found != expected:
            raise IntegrityError(
                f"dataset {dataset} is not what was written", where=str(self.path), hint=HINT
            )


def check_tables(folder: Path, shards: Iterable[Shard]) -> None:
    """Check that files are there, have their sizes, and that their tables are sound.

    Raises:
        IntegrityError: one is not.
    """
    for shard in shards:
        with contextlib.closing(RankFile(folder / shard.file, shard)) as file:
            _ = file.table
