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
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from hpcdet.checkpoint.buffers import PAGE, Bytes, Scratch, lasting
from hpcdet.checkpoint.rankfile import SMALL_FILE, RankFile
from hpcdet.checkpoint.shard import HINT, Shard, begin_digest
from hpcdet.checkpoint.tree import Leaf, from_bytes
from hpcdet.errors import IntegrityError

_PIECE = 4 << 20
"""Bytes read at once. What is read by the way lies in memory of this process for a while, new
memory, which may take the kernel as long as the disk takes to fill it."""
_THREADS = 3
"""One waits for the disk, one for memory that the kernel clears or that is copied to, in turn."""
_AHEAD = 6
"""Pieces that are read before the first of them is hashed; bounds the memory of a mere check."""
_ARENA = 32 << 20
_SMALL = 64 << 10
"""Leaves up to this size are copied."""
_BRIDGE = 128 << 10
"""Bytes that nobody wants are read all the same, if they are fewer than this between others."""


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
    readers: int = 1,
) -> Iterator[Entry]:
    """The leaves of files, checked; one file after the other, each from its beginning to its end.

    Of each file the table and the HDF5 header are checked as well. Leaves that are merely
    checked come without data, those that are skipped not at all.

    Args:
        use: what is wanted of a leaf, by the file that it is in.
        seen: told how many more bytes have been read and checked.
        into: leaves by name whose tensors are overwritten, where type and shape are the same,
            and given back. After an error they may hold anything.
        readers: how many processes of this node read the same at the same time. Several do so
            through the page cache, so that the disk is asked for each byte once.

    Raises:
        IntegrityError: a file is missing, or not what was written; names file and dataset.
        OSError: a file cannot be read just now.
    """
    under_way: deque[tuple[_Piece, Future[None] | None]] = deque()
    scratch = Scratch(_PIECE)
    with contextlib.ExitStack() as files, ThreadPoolExecutor(_THREADS, "hpcdet-read") as pool:
        pieces = _pieces(folder, shards, _Wanted(use, into or {}), readers == 1, files, scratch)
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
                if piece.lent:
                    scratch.give_back(piece.memory)
        finally:
            for _, filled in under_way:
                if filled is not None:
                    filled.cancel()


@dataclass(frozen=True)
class _Wanted:
    """What a reader wants: ``use`` and ``into`` of ``read``."""

    use: Callable[[Shard, Leaf], Use]
    into: Mapping[str, Leaf]

    def parts(self, file: RankFile) -> Iterator[_Bytes]:
        """What is wanted of a file, ascending; among it all its holes."""
        for row in file.rows():
            leaf, target, arena = row.leaf, None, False
            if leaf is not None:
                wanted = self.use(file.shard, leaf)
                if wanted is Use.SKIP:
                    continue
                if wanted is Use.GIVE:
                    target = _target(leaf, self.into.get(leaf.name))
                    arena = target is None
            yield _Bytes(row.start, row.end, leaf, row.digest, arena, target)


def _pieces(
    folder: Path,
    shards: Iterable[Shard],
    wanted: _Wanted,
    direct: bool,
    files: contextlib.ExitStack,
    scratch: Scratch,
) -> Iterator[_Piece]:
    """What is to be read; a file is opened, and memory taken, when its turn comes."""
    for shard in shards:
        file = RankFile(folder / shard.file, shard)
        files.callback(file.close)
        if direct:
            file.open_direct()
        last: _Piece | None = None
        for together in _arenas(wanted.parts(file)):
            for piece in _cut(file, together, scratch):
                if last is not None:
                    yield last
                last = piece
        if last is not None:
            last.ends = True
            yield last


@dataclass(eq=False)
class _Bytes:
    """Bytes of a file that belong together: a leaf, or a hole between leaves (of the frame).

    Attributes:
        arena: whether it is a leaf whose value is to be where it is read to.
        target: where its bytes are to go, if there is such a place.
    """

    start: int
    end: int
    leaf: Leaf | None = None
    digest: str = ""
    arena: bool = False
    target: torch.Tensor | None = None
    _hasher: blake3 | None = None

    def place(self, start: int, end: int) -> Bytes:
        """Where the bytes of this range of the file are to go; there is a target."""
        assert self.target is not None
        return self.target.numpy()[start - self.start : end - self.start]

    def take(self, file: RankFile, data: Bytes) -> None:
        """Hash its next bytes."""
        leaf = self.leaf
        if leaf is None:
            file.frame.update(data.data)
            return
        if self._hasher is None:
            self._hasher = begin_digest(leaf.kind, leaf.dtype, leaf.shape)
        self._hasher.update(data.data)

    def entry(self, file: RankFile, memory: Bytes) -> Entry | None:
        """All of it has been read: the leaf, checked; None for a hole.

        Args:
            memory: where its bytes are, if it is of an arena.
        """
        if self.leaf is None or self._hasher is None:
            return None
        file.check(self._hasher.hexdigest(), self.digest, self.leaf.name)
        data = self.target
        if self.arena:
            small = memory.size <= _SMALL
            data = torch.from_numpy(memory.copy() if small else memory) if memory.size else _empty()
        return Entry(file.shard, self.leaf, self.digest, data)


class _Piece:
    """A range of a file, of whole pages, that is read at once.

    Attributes:
        memory: of this range.
        arena: of all pieces of its arena, from ``origin`` in the file on; ``memory`` itself if
            nothing in it is to be given.
        ends: it is the last one of its file.
    """

    def __init__(
        self,
        file: RankFile,
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
        self.ends = False
        self._scattered = False  # it was read to where it belongs, not to its own memory
        self._origin = origin
        self._file = file
        self._parts = parts

    @property
    def lent(self) -> bool:
        """Whether nothing that is given lies in its memory."""
        return self.arena is self.memory

    @property
    def large(self) -> bool:
        """Whether it is worth another thread."""
        return self.memory.size > SMALL_FILE

    def fill(self) -> None:
        """Read it, to where it is to go as far as that can be any memory."""
        targets = [part for part in self._parts if part.target is not None]
        if not targets or self._file.is_direct:
            self._file.fill(self.start, self.memory)
            for part in targets:
                part.place(*self._range(part))[:] = self._read(part)
            return
        self._scattered = True
        memories, at = [], self.start
        for part in targets:
            start, end = self._range(part)
            memories += [self._memory(at, start), part.place(start, end)]
            at = end
        memories.append(self._memory(at, self.end))
        self._file.scatter(self.start, [memory for memory in memories if memory.size])

    def _range(self, part: _Bytes) -> tuple[int, int]:
        """What of a part is in this piece."""
        return max(part.start, self.start), min(part.end, self.end)

    def _memory(self, start: int, end: int) -> Bytes:
        return self.memory[start - self.start : end - self.start]

    def _read(self, part: _Bytes) -> Bytes:
        """A part's bytes, as they were read."""
        if self._scattered and part.target is not None:
            return part.place(*self._range(part))
        return self._memory(*self._range(part))

    def entries(self) -> Iterator[Entry]:
        """The leaves that end in it, checked. It has been filled, and those before it taken."""
        for part in self._parts:
            part.take(self._file, self._read(part))
            if part.end <= self.end:
                whole = self.arena[part.start - self._origin : part.end - self._origin]
                entry = part.entry(self._file, whole)
                if entry is not None:
                    yield entry
        if self.ends:
            self._file.finish()


def _arenas(parts: Iterable[_Bytes]) -> Iterator[list[_Bytes]]:
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
    if arena:
        yield arena


def _cut(file: RankFile, parts: Sequence[_Bytes], scratch: Scratch) -> Iterator[_Piece]:
    """The pieces of an arena."""
    origin = parts[0].start - parts[0].start % PAGE
    size = -(-parts[-1].end // PAGE) * PAGE - origin
    arena = lasting(size) if any(part.arena for part in parts) else None
    first = 0
    for skip in range(0, size, _PIECE):
        length = min(_PIECE, size - skip)
        start, end = origin + skip, origin + skip + length
        beyond = first
        while beyond < len(parts) and parts[beyond].start < end:
            beyond += 1
        memory = scratch.take(length) if arena is None else arena[skip : skip + length]
        own = (start, memory) if arena is None else (origin, arena)
        yield _Piece(file, start, memory, parts[first:beyond], *own)
        while first < beyond and parts[first].end <= end:
            first += 1


def _target(leaf: Leaf, there: Leaf | None) -> torch.Tensor | None:
    """The bytes of a tensor that is there, if the leaf fits it exactly."""
    if (
        there is None
        or leaf.part
        or there.part
        or (there.kind, there.dtype, there.shape) != (leaf.kind, leaf.dtype, leaf.shape)
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
