"""Reading ranks' files: every byte that is used is checked, while the next ones are on their way.

Data come in pieces, by a few threads, past the page cache where the file is not in it
(``O_DIRECT``), straight into the memory that the values will have; the calling thread hashes
behind them. So loading takes about as long as the disk needs.

Direct reads want offset, length and memory in whole pages, which leaves are not: some tens of MB
of neighbouring leaves share one *arena*, in which they lie as in the file. It is given back when
the last of them goes; small ones are copied out of it, so as not to hold it. Leaves for which
there is memory already (weights of a model that was made) are copied there, piece by piece.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import itertools
import json
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blake3 import blake3

from hpcdet.checkpoint.layout import gaps
from hpcdet.checkpoint.shard import HINT, Shard, begin_digest
from hpcdet.checkpoint.tree import Leaf, Part, from_bytes
from hpcdet.errors import IntegrityError

_PAGE = mmap.PAGESIZE
_HUGE = 2 << 20
_PIECE = 16 << 20
_THREADS = 2
_AHEAD = 8
"""Pieces that are read before the first of them is hashed; bounds the memory of a mere check."""
_ARENA = 32 << 20
_SMALL = 64 << 10
"""Leaves up to this size are copied."""
_BRIDGE = 128 << 10
"""Bytes that nobody wants are read all the same, if they are fewer than this between others."""
_SMALL_FILE = 1 << 20
"""Up to this size a file is not worth reading past the page cache."""
_PROBES = 8

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Use(enum.Enum):
    """What a reader wants of a leaf."""

    SKIP = enum.auto()
    CHECK = enum.auto()
    GIVE = enum.auto()


@dataclass(frozen=True)
class Entry:
    """A leaf that is what was written; ``value`` makes it a value, if its bytes were asked for.

    Attributes:
        shard: the file it is in.
    """

    shard: Shard
    leaf: Leaf
    digest: str
    data: torch.Tensor | None

    def value(self) -> Any:
        """The value.

        Raises:
            IntegrityError: it is of a type that no hpcdet writes.
        """
        leaf = self.leaf
        assert self.data is not None, f"only the digest of {leaf.name} was asked for"
        try:
            return from_bytes(leaf.kind, leaf.dtype, leaf.shape, self.data)
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            raise IntegrityError(
                f"dataset {leaf.name} cannot be a {leaf.kind} of {leaf.dtype} ({error})",
                where=self.shard.file,
                hint=HINT,
            ) from None


def read(
    folder: Path,
    shards: Iterable[Shard],
    use: Callable[[Shard, Leaf], Use] = lambda _shard, _leaf: Use.GIVE,
    seen: Callable[[int], None] = lambda _: None,
    into: Mapping[str, Leaf] | None = None,
) -> Iterator[Entry]:
    """The leaves of files, checked; one file after the other, each from its beginning to its end.

    Of each file the table and the HDF5 header are checked as well. Leaves that are merely
    checked come without data, those that are skipped not at all.

    Args:
        use: what is wanted of a leaf, by the file that it is in.
        seen: told how many more bytes have been read and checked.
        into: leaves by name whose tensors are overwritten, where type and shape are the same,
            and given back. After an error they may hold anything.

    Raises:
        IntegrityError: a file is missing, or not what was written; names file and dataset.
        OSError: a file cannot be read just now.
    """
    under_way: deque[tuple[_Piece, Future[None] | None]] = deque()
    with contextlib.ExitStack() as files, ThreadPoolExecutor(_THREADS, "hpcdet-read") as pool:
        pieces = _pieces(folder, shards, use, into or {}, files)
        try:
            while True:
                for piece in itertools.islice(pieces, _AHEAD - len(under_way)):
                    under_way.append((piece, pool.submit(piece.fill) if piece.large else None))
                if not under_way:
                    return
                piece, filled = under_way.popleft()
                if filled is None:
                    piece.fill()
                else:
                    filled.result()
                yield from piece.entries()
                seen(piece.end - piece.start)
        finally:
            for _, filled in under_way:
                if filled is not None:
                    filled.cancel()


def check_tables(folder: Path, shards: Iterable[Shard]) -> None:
    """Check that files are there, have their sizes, and that their tables are what was written.

    Raises:
        IntegrityError: one is not.
    """
    for shard in shards:
        with contextlib.closing(_File(folder / shard.file, shard)) as file:
            file.table()


def _pieces(
    folder: Path,
    shards: Iterable[Shard],
    use: Callable[[Shard, Leaf], Use],
    into: Mapping[str, Leaf],
    files: contextlib.ExitStack,
) -> Iterator[_Piece]:
    """What is to be read; a file is opened, and memory taken, when its turn comes."""
    for shard in shards:
        file = _File(folder / shard.file, shard)
        files.callback(file.close)
        for together in _arenas(file.parts(use, into)):
            yield from _cut(file, together)


class _File:
    """A rank's file, open for reading.

    Attributes:
        frame: BLAKE3 of the bytes that are in no dataset, as far as they were read.
        left: how many of its parts have not been read yet.
    """

    def __init__(self, path: Path, shard: Shard) -> None:
        self.path = path
        self.shard = shard
        self.frame = blake3()
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

    def parts(self, use: Callable[[Shard, Leaf], Use], into: Mapping[str, Leaf]) -> list[_Bytes]:
        """What is wanted of the file, ascending; decides how it is read."""
        table = self.table()
        rows, shard = table["leaves"], self.shard
        self._frame_digest = table["frame"]
        taken = [(row[4], row[4] + row[5]) for row in rows]
        holes = gaps([*taken, (shard.table[0], sum(shard.table))], shard.bytes)
        parts = [_Bytes(start, end) for start, end in holes]
        for name, kind, dtype, shape, offset, nbytes, *of, digest in rows:
            part = Part(tuple(of[0]["shape"]), of[0]["start"]) if of else None
            leaf = Leaf(name, kind, dtype, tuple(shape), nbytes, part=part)
            wanted = use(shard, leaf)
            if wanted is not Use.SKIP:
                target = _target(leaf, into.get(name)) if wanted is Use.GIVE else None
                arena = wanted is Use.GIVE and target is None
                parts.append(_Bytes(offset, offset + nbytes, leaf, digest, arena, target))
        if shard.bytes > _SMALL_FILE and not self._is_cached():
            with contextlib.suppress(OSError):  # a file system that knows no direct reads
                self._direct = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        self.left = len(parts)
        return sorted(parts, key=lambda part: (part.start, part.end))

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
            if count % _PAGE:
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
        if found != expected:
            raise IntegrityError(
                f"dataset {dataset} is not what was written", where=str(self.path), hint=HINT
            )


class _Bytes:
    """Bytes of a file that belong together: a leaf, or a hole between leaves (of the frame).

    Attributes:
        arena: whether it is a leaf whose value is to be where it is read to.
    """

    def __init__(
        self,
        start: int,
        end: int,
        leaf: Leaf | None = None,
        digest: str = "",
        arena: bool = False,
        target: torch.Tensor | None = None,
    ) -> None:
        self.start = start
        self.end = end
        self.leaf = leaf
        self.arena = arena
        self._digest = digest
        self._target = target
        self._copied = 0
        self._hasher = None if leaf is None else begin_digest(leaf.kind, leaf.dtype, leaf.shape)

    def take(self, file: _File, data: Bytes) -> None:
        """Its next bytes have been read."""
        (self._hasher or file.frame).update(data.data)
        if self._target is not None:
            self._target.numpy()[self._copied : self._copied + data.size] = data
            self._copied += data.size

    def entry(self, file: _File, memory: Bytes) -> Entry | None:
        """All of it has been read: the leaf, checked; None for a hole.

        Args:
            memory: where its bytes are, if it is of an arena.
        """
        if self.leaf is None or self._hasher is None:
            return None
        file.check(self._hasher.hexdigest(), self._digest, self.leaf.name)
        data = self._target
        if self.arena:
            small = memory.size <= _SMALL
            data = torch.from_numpy(memory.copy() if small else memory) if memory.size else _empty()
        return Entry(file.shard, self.leaf, self._digest, data)


class _Piece:
    """A range of a file, of whole pages, that is read at once.

    Attributes:
        memory: of this range.
        arena: of all pieces of its arena, from ``origin`` in the file on; ``memory`` itself if
            nothing in it is to be given.
    """

    def __init__(
        self,
        file: _File,
        start: int,
        memory: Bytes,
        parts: Sequence[_Bytes],
        origin: int,
        arena: Bytes,
    ) -> None:
        self.start = start
        self.end = start + memory.size
        self.memory = memory
        self.arena = arena
        self._origin = origin
        self._file = file
        self._parts = parts

    @property
    def large(self) -> bool:
        """Whether it is worth another thread."""
        return self.memory.size > _SMALL_FILE

    def fill(self) -> None:
        """Read it."""
        self._file.fill(self.start, self.memory)

    def entries(self) -> Iterator[Entry]:
        """The leaves that end in it, checked. It has been filled, and those before it taken."""
        for part in self._parts:
            start, end = max(part.start, self.start), min(part.end, self.end)
            part.take(self._file, self.memory[start - self.start : end - self.start])
            if part.end <= self.end:
                whole = self.arena[part.start - self._origin : part.end - self._origin]
                entry = part.entry(self._file, whole)
                self._file.count_down()
                if entry is not None:
                    yield entry


def _arenas(parts: Sequence[_Bytes]) -> Iterator[list[_Bytes]]:
    """Parts, ascending, that are read into the same memory: neighbours that are treated alike."""
    arena: list[_Bytes] = []
    given: bool | None = None
    for part in parts:
        if arena and (
            part.start - arena[-1].end > _BRIDGE
            or arena[-1].end - arena[0].start >= _ARENA
            or (part.leaf is not None and given is not None and part.arena is not given)
        ):
            yield arena
            arena, given = [], None
        arena.append(part)
        if part.leaf is not None:
            given = part.arena
    yield arena


def _cut(file: _File, parts: Sequence[_Bytes]) -> Iterator[_Piece]:
    """The pieces of an arena."""
    origin = parts[0].start - parts[0].start % _PAGE
    size = -(-parts[-1].end // _PAGE) * _PAGE - origin
    arena = _memory(size) if any(part.arena for part in parts) else None
    first = 0
    for skip in range(0, size, _PIECE):
        length = min(_PIECE, size - skip)
        start, end = origin + skip, origin + skip + length
        beyond = first
        while beyond < len(parts) and parts[beyond].start < end:
            beyond += 1
        memory = _scratch(length) if arena is None else arena[skip : skip + length]
        own = (start, memory) if arena is None else (origin, arena)
        yield _Piece(file, start, memory, parts[first:beyond], *own)
        while first < beyond and parts[first].end <= end:
            first += 1


def _memory(size: int) -> Bytes:
    """New memory that begins with a page, of huge pages where the system has them."""
    if size < 2 * _HUGE:
        return _scratch(size)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    mapped = mmap.mmap(-1, size + _HUGE, flags=flags)
    with contextlib.suppress(OSError, AttributeError):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(mapped, np.uint8)
    skip = -raw.ctypes.data % _HUGE
    return raw[skip : skip + size]


def _scratch(size: int) -> Bytes:
    """Memory that begins with a page, as the allocator has it: what was in use before, mostly."""
    raw = np.empty(size + _PAGE, np.uint8)
    skip = -raw.ctypes.data % _PAGE
    return raw[skip : skip + size]


def _target(leaf: Leaf, there: Leaf | None) -> torch.Tensor | None:
    """The bytes of a tensor that is there, if the leaf fits it exactly."""
    if (
        there is None
        or leaf.part
        or there.part
        or (there.kind, there.dtype, there.shape)
        != (
            leaf.kind,
            leaf.dtype,
            leaf.shape,
        )
    ):
        return None
    source = there.source
    if not isinstance(source, torch.Tensor) or source.device.type != "cpu" or not leaf.nbytes:
        return None
    plain = source.is_contiguous() and not source.is_conj() and not source.is_neg()
    return source.detach().reshape(-1).view(torch.uint8) if plain else None


def _empty() -> torch.Tensor:
    """Torch refuses other views of an empty array."""
    return torch.empty(0, dtype=torch.uint8)
