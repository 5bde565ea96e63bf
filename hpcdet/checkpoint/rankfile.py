"""A rank's file, open for reading: its table, and its bytes, past the page cache or not."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from hpcdet.checkpoint.buffers import PAGE, Bytes
from hpcdet.checkpoint.layout import gaps
from hpcdet.checkpoint.shard import HINT, Shard
from hpcdet.checkpoint.tree import Leaf, Part
from hpcdet.errors import IntegrityError

SMALL_FILE = 1 << 20
"""Up to this size a file is not worth reading past the page cache."""
_PROBES = 8


@dataclass(frozen=True)
class Row:
    """What the table says of a leaf."""

    leaf: Leaf
    offset: int
    digest: str


class RankFile:
    """A rank's file, open for reading.

    Attributes:
        frame: BLAKE3 of the bytes that are in no dataset, as far as they were read.
        holes: where those are, once ``rows`` has been asked for.
        left: how many of its parts have not been read yet.
    """

    def __init__(self, path: Path, shard: Shard) -> None:
        self.path = path
        self.shard = shard
        self.frame = blake3()
        self.holes: list[tuple[int, int]] = []
        self.left = 0
        self._frame_digest = ""
        self._direct = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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

    def table(self) -> Any:
        """The table, which covers every other byte of the file."""
        offset, length = self.shard.table
        text = np.empty(length, np.uint8)
        self.fill(offset, text)
        self.check(blake3(text.data).hexdigest(), self.shard.root, "table")
        return json.loads(text.tobytes())

    def rows(self) -> list[Row]:
        """What the table says, and where the HDF5 header lies (``holes``)."""
        table = self.table()
        self._frame_digest = table["frame"]
        found = []
        for name, kind, dtype, shape, offset, nbytes, *of, digest in table["leaves"]:
            part = Part(tuple(of[0]["shape"]), of[0]["start"]) if of else None
            leaf = Leaf(name, kind, dtype, tuple(shape), nbytes, part=part)
            found.append(Row(leaf, offset, digest))
        taken = [(row.offset, row.offset + row.leaf.nbytes) for row in found]
        table_at, length = self.shard.table
        self.holes = gaps([*taken, (table_at, table_at + length)], self.shard.bytes)
        return found

    def expect(self, parts: int) -> None:
        """So many parts of it will be read now; decides how."""
        self.left = parts
        if self.shard.bytes > SMALL_FILE and not self._is_cached():
            with contextlib.suppress(OSError):  # a file system that knows no direct reads
                self._direct = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)

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
        fd = self._direct if self._direct >= 0 else self._fd
        while offset < end:
            try:
                count = os.preadv(fd, [rest], offset)
            except OSError as error:
                if error.errno != errno.EINVAL or fd == self._fd:
                    raise
                fd = self._fd  # it wants another alignment
                continue
            if not count:
                raise IntegrityError("the file ends too early", where=str(self.path), hint=HINT)
            if count % PAGE:
                fd = self._fd
            offset += count
            rest = rest[count:]

    def count_down(self) -> None:
        """One more part has been read."""
        self.left -= 1
        if not self.left:
            self.check(self.frame.hexdigest(), self._frame_digest, "HDF5 header")
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
    """Check that files are there, have their sizes, and that their tables are what was written.

    Raises:
        IntegrityError: one is not.
    """
    for shard in shards:
        with contextlib.closing(RankFile(folder / shard.file, shard)) as file:
            file.table()
