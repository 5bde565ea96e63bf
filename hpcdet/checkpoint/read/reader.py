"""Reading ranks' files: every byte that is used is checked, while the next ones are on their way.

Data come in pieces, by a few threads, past the page cache where the file is not in it
(``O_DIRECT``). Direct reads want offset, length and memory in whole pages, which leaves are not,
and go fastest into huge pages: they go into memory that is used over and over. The thread that
has read a piece copies it to where it belongs, weights of a model that was made or new tensors,
and hashes it, while others wait for the disk. So loading takes about as long as the disk needs.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from hpcdet.checkpoint.format.rank_file import FIRST, RankFile
from hpcdet.checkpoint.format.shard import Shard
from hpcdet.checkpoint.format.table import TableRow
from hpcdet.checkpoint.io.read_buffers import PAGE, Bytes, Scratch
from hpcdet.checkpoint.io.shared_ring import ALONE, SLOT, Readers, Ring
from hpcdet.checkpoint.read.pieces import Entry, Piece, Range
from hpcdet.checkpoint.state.tree import Leaf

__all__ = ["Entry", "Use", "read"]

_PIECE = SLOT
"""Bytes read at once. What is read by the way lies in memory of this process for a while, new
memory, which may take the kernel as long as the disk takes to fill it."""
_THREADS = 4
"""Some wait for the disk while the others copy and hash, or the kernel clears memory for them."""
_AHEAD = 8
"""Pieces that are under way; bounds the memory of a mere check."""
_BRIDGE = 128 << 10
"""Bytes that nobody wants are read all the same, if they are fewer than this between others."""


class Use(enum.Enum):
    """The use that a reader makes of a leaf."""

    SKIP = enum.auto()
    CHECK = enum.auto()
    GIVE = enum.auto()


def read(
    folder: Path,
    shards: Iterable[Shard],
    use: Callable[[Shard, Leaf], Use] = lambda _shard, _leaf: Use.GIVE,
    seen: Callable[[int], None] = lambda _: None,
    into: Callable[[], Mapping[str, Leaf]] = dict,
    readers: Readers = ALONE,
) -> Iterator[Entry]:
    """The leaves of files, checked; one file after the other, each from its beginning to its end.

    Of each file the table and the HDF5 header are checked as well. Leaves that are merely
    checked come without data, those that are skipped not at all.

    Args:
        use: what is wanted of a leaf, by the file that it is in.
        seen: told how many more bytes have been read and checked.
        into: gives leaves by name whose tensors are overwritten, where type and shape are the
            same, and given back; asked once the disk is at work. After an error they may hold
            anything.
        readers: the processes of this node that read the same at the same time, so that the disk
            is asked for each byte once: through the page cache, or for each other, in a ring. Then
            all want the same leaves, for whatever use, and what has come is to be used only once
            the last leaf has.

    Raises:
        IntegrityError: a file is missing, or not what was written; names file and dataset.
        OSError: a file cannot be read just now, or not by a rank that was to read it for this one.
    """
    under_way: deque[tuple[Piece, Future[None] | None]] = deque()
    scratch, ring = Scratch(_PIECE), readers.ring
    with contextlib.ExitStack() as files, ThreadPoolExecutor(_THREADS, "hpcdet-read") as pool:
        direct = readers.count == 1 or ring is not None
        pieces = _pieces(folder, shards, _Wanted(use, into), direct, files, scratch, ring)
        beside = _has_threads(pool)
        try:
            while True:
                for piece in itertools.islice(pieces, _AHEAD - len(under_way)):
                    others = beside and piece.large
                    under_way.append((piece, pool.submit(piece.work) if others else None))
                if not under_way:
                    if ring is not None:
                        ring.finish()
                    return
                piece, worked = under_way.popleft()
                if worked is None:
                    piece.work()
                else:
                    worked.result()
                yield from piece.entries()
                seen(piece.end - piece.start)
                piece.give_back(scratch)
        finally:
            if ring is not None:
                ring.give_up()
            for piece, worked in under_way:
                if worked is None or worked.cancel():
                    piece.give_up()


def _has_threads(pool: ThreadPoolExecutor) -> bool:
    """True if other threads can work.

    Python gives none to a script that ends, whose last checkpoint is then copied, nor does a limit.
    """
    try:
        pool.submit(int)
    except RuntimeError:
        return False
    return True


class _Wanted:
    """The request of a reader: ``use`` and ``into`` of ``read``."""

    def __init__(
        self, use: Callable[[Shard, Leaf], Use], into: Callable[[], Mapping[str, Leaf]]
    ) -> None:
        self._use = use
        self._into = functools.cache(into)

    def parts(self, file: RankFile) -> Iterator[Range]:
        """The wanted ranges of a file, ascending, all its holes included."""
        wanted = self._wanted(file)
        first: list[tuple[TableRow, Use]] = []
        for each in wanted:
            first.append(each)
            if each[0].end >= FIRST:
                break
        file.fetch(row for row, _ in first if row.start < FIRST)
        there = self._into()
        for row, use in itertools.chain(first, wanted):
            part = Range(row.start, row.end, row.leaf, row.digest)
            if row.leaf is not None and use is Use.GIVE:
                _aim(part, row.leaf, there.get(row.leaf.name))
            yield part

    def _wanted(self, file: RankFile) -> Iterator[tuple[TableRow, Use]]:
        for row in file.table.rows:
            use = Use.CHECK if row.leaf is None else self._use(file.shard, row.leaf)
            if use is not Use.SKIP:
                yield row, use


def _pieces(
    folder: Path,
    shards: Iterable[Shard],
    wanted: _Wanted,
    direct: bool,
    files: contextlib.ExitStack,
    scratch: Scratch,
    ring: Ring | None,
) -> Iterator[Piece]:
    """The pieces to read; a file is opened, and memory taken, when its turn comes."""
    for shard in shards:
        file = RankFile(folder / shard.file, shard)
        files.callback(file.close)
        file.begin(direct)
        last: Piece | None = None
        for piece in _cut(file, wanted.parts(file), scratch, ring):
            if last is not None:
                yield last
            last = piece
        if last is not None:
            last.ends = True
            yield last


def _cut(
    file: RankFile, parts: Iterable[Range], scratch: Scratch, ring: Ring | None
) -> Iterator[Piece]:
    """The pieces of a file in which these parts lie, which ascend."""
    start = 0
    here: list[Range] = []  # what begins before the end of the next piece, and has not ended
    last: Piece | None = None
    for part in itertools.chain(parts, [None]):
        while here and (
            part is None or part.start >= start + _PIECE or part.start - here[-1].end > _BRIDGE
        ):
            end = min(start + _PIECE, -(-here[-1].end // PAGE) * PAGE)
            before = last if here[0].start < start else None
            slot = ring.slot(end - start) if ring is not None else None
            memory = slot.memory if slot is not None else scratch.take(end - start)
            last = Piece(file, start, memory, here, before, slot)
            yield last
            here = [each for each in here if each.end > end]
            start = end
        if part is not None:
            if not here:
                start = part.start - part.start % PAGE
            here.append(part)


def _aim(part: Range, leaf: Leaf, there: Leaf | None) -> None:
    """Find where the bytes of a leaf are to go: into the tensor that is there if it fits exactly.

    Nearly every method of a tensor lets other threads have Python meanwhile, and with thousands of
    tensors waiting for it again takes longer than all else. So few are called.
    """
    if (
        there is not None
        and leaf.nbytes
        and not (leaf.part or there.part)
        and (there.kind, there.dtype, there.shape) == (leaf.kind, leaf.dtype, leaf.shape)
        and isinstance(there.source, torch.Tensor)
        and there.source.is_cpu
        and there.source.is_contiguous()
    ):
        with contextlib.suppress(RuntimeError):  # a conjugate or negative view
            existing = there.source.data
            part.target = _bytes(existing)
            part.existing = existing
            return
    part.data = torch.empty(leaf.nbytes, dtype=torch.uint8)
    part.target = part.data.numpy()


def _bytes(tensor: torch.Tensor) -> Bytes:
    """The bytes of a contiguous tensor in main memory.

    Raises:
        RuntimeError: it is a conjugate or negative view: its values are others than its bytes say.
    """
    try:
        array = tensor.numpy()
    except TypeError:  # of a type that numpy does not know
        array = tensor.reshape(-1).view(torch.uint8).numpy()
    return array.reshape(-1).view(np.uint8)
