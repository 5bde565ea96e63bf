"""How an HDF5 file of given datasets lies on disk, found without writing one.

HDF5 is the container, POSIX is the data path: HDF5 decides where everything lies and writes
the *frame* (all bytes that are not data), into memory; the data go to the offsets it named, by
``pwrite``. The structure is the same at every save of a trial, so its frame is made once.

The last dataset is ``/table``: JSON that lists every other dataset with its place and its
digest, and the digest of the frame. So every byte of the file is covered by the table.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from blake3 import blake3
from h5py import h5d, h5p, h5s, h5t

from hpcdet.checkpoint.state.tree import Leaf
from hpcdet.store.fs import files

NO_DIGEST = "0" * 64
TABLE = "table"
_ALIGNMENT = 64
_PAGE = 1 << 16
_HDF5_NUMBERS = frozenset(
    {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
    | {f"float{bits}" for bits in (16, 32, 64)}
    | {f"complex{bits}" for bits in (64, 128)}
)


@dataclass(frozen=True)
class Extent:
    """Where the bytes of one dataset lie in the file."""

    leaf: Leaf
    offset: int

    @property
    def end(self) -> int:
        return self.offset + self.leaf.nbytes


@dataclass(frozen=True)
class Layout:
    """A file of known structure.

    Attributes:
        size: of the whole file in bytes.
        extents: one per leaf, in the order the leaves were given.
        table: offset and length of ``/table``.
        pieces: (offset, bytes) of the frame that are not all zeros.
        frame: BLAKE3 of the frame.
    """

    size: int
    extents: tuple[Extent, ...]
    table: tuple[int, int]
    pieces: tuple[tuple[int, bytes], ...]
    frame: str

    def table_text(self, digests: Sequence[str]) -> bytes:
        """Contents of ``/table``, given the leaves' digests in their order."""
        return _table_text(self.frame, self._rows, digests)

    @functools.cached_property
    def ascending(self) -> tuple[int, ...]:
        """Numbers of the leaves in the order in which they lie in the file."""
        places = [(each.offset, each.end) for each in self.extents]
        return tuple(sorted(range(len(places)), key=places.__getitem__))

    @functools.cached_property
    def to_hash(self) -> tuple[tuple[int, int, int, bytes], ...]:
        """Number, begin and end of each leaf, and what its digest begins with; ascending."""
        return tuple(
            (number, each.offset, each.end, digest_head(leaf.kind, leaf.dtype, leaf.shape))
            for number in self.ascending
            for each in (self.extents[number],)
            for leaf in (each.leaf,)
        )

    @functools.cached_property
    def _rows(self) -> tuple[str, ...]:
        return tuple(map(_row, self.extents))


@functools.lru_cache(maxsize=1 << 14)
def digest_head(kind: str, dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the bytes that precede a leaf's own in its digest."""
    return files.canonical([kind, dtype, list(shape)]) + b"\n"


def _row(extent: Extent) -> str:
    """A leaf's line in the table up to its digest, which is all that differs between saves."""
    leaf = extent.leaf
    row = [leaf.name, leaf.kind, leaf.dtype, list(leaf.shape), extent.offset, leaf.nbytes]
    if leaf.part:
        row.append({"shape": list(leaf.part.shape), "start": leaf.part.start})
    return files.canonical(row).decode().removesuffix("]") + ',"'


def _table_text(frame: str, rows: Sequence[str], digests: Sequence[str]) -> bytes:
    """Equal to ``files.canonical({"frame": frame, "leaves": [row + [digest], …]})``."""
    lines = ",".join([f'{row}{digest}"]' for row, digest in zip(rows, digests, strict=True)])
    return f'{{"frame":"{frame}","leaves":[{lines}]}}'.encode()


@functools.lru_cache(maxsize=8)
def layout(leaves: tuple[Leaf, ...], rank: int, world: int) -> Layout:
    """Where everything lies in rank's file of these leaves; only their structure matters."""
    memory = _Memory()
    with h5py.File(
        memory,
        "w",
        libver=("v110", "v110"),
        alignment_threshold=1,
        alignment_interval=_ALIGNMENT,
        meta_block_size=_PAGE * (1 + len(leaves) // 128),
    ) as file:
        file.attrs.update(format="hpcdet-checkpoint", schema_version=1, rank=rank, world=world)
        extents = tuple(
            Extent(leaf, _dataset(file, leaf.name, _h5_type(leaf), leaf.shape)) for leaf in leaves
        )
        rows = tuple(map(_row, extents))
        length = len(_table_text(NO_DIGEST, rows, [NO_DIGEST] * len(leaves)))
        table = (_dataset(file, TABLE, np.dtype("u1"), (length,)), length)
        for leaf in leaves:
            if not _is_number(leaf):
                file[leaf.name].attrs["dtype"] = leaf.dtype
            if leaf.part:
                file[leaf.name].attrs.update(whole_shape=leaf.part.shape, start=leaf.part.start)
    ranges = [(e.offset, e.end) for e in extents] + [(table[0], sum(table))]
    frame = [(start, memory.take(start, end)) for start, end in gaps(ranges, memory.size)]
    digest = blake3(b"".join(data for _, data in frame)).hexdigest()
    pieces = tuple((start, data) for start, data in frame if any(data))
    return Layout(memory.size, extents, table, pieces, digest)


def gaps(ranges: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """The parts of ``0…size`` that none of the ranges covers, ascending."""
    found = []
    position = 0
    for start, end in sorted(ranges):
        if start > position:
            found.append((position, start))
        position = max(position, end)
    if size > position:
        found.append((position, size))
    return found


def _dataset(file: h5py.File, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Make a contiguous dataset whose place is fixed at once; returns its offset."""
    links = h5p.create(h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    links.set_char_encoding(h5t.CSET_UTF8)
    how = h5p.create(h5p.DATASET_CREATE)
    how.set_layout(h5d.CONTIGUOUS)
    how.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    how.set_fill_time(h5d.FILL_TIME_NEVER)
    how.set_obj_track_times(False)
    space = h5s.create_simple(shape) if shape else h5s.create(h5s.SCALAR)
    made = h5d.create(file.id, name.encode(), h5t.py_create(dtype), space, how, links)
    return made.get_offset() or 0


def _is_number(leaf: Leaf) -> bool:
    numpy = leaf.kind in ("array", "scalar")
    return (np.dtype(leaf.dtype).name if numpy else leaf.dtype) in _HDF5_NUMBERS


def _h5_type(leaf: Leaf) -> np.dtype[Any]:
    """The type that HDF5 readers see; of the same size as the true one.

    What HDF5 has no number for is shown as unsigned integers of its size, or as opaque; the
    attribute ``dtype`` then holds the true type.
    """
    if _is_number(leaf):
        return np.dtype(leaf.dtype)
    count = math.prod(leaf.shape)
    size = leaf.nbytes // count if count else 1
    return np.dtype(f"u{size}" if size in (1, 2, 4, 8) else f"V{size}")


class _Memory(io.RawIOBase):
    """A file in memory that holds only the pages that were written to."""

    def __init__(self) -> None:
        self.size = 0
        self.position = 0
        self.pages: dict[int, bytearray] = {}

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.position = offset + (0, self.position, self.size)[whence]
        return self.position

    def tell(self) -> int:
        return self.position

    def truncate(self, size: int | None = None) -> int:
        self.size = self.position if size is None else size
        return self.size

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        view = memoryview(buffer).cast("B")
        view[:] = self.take(self.position, self.position + len(view))
        self.position += len(view)
        return len(view)

    def write(self, buffer) -> int:  # type: ignore[no-untyped-def]
        view = memoryview(buffer).cast("B")
        for start in range(-(self.position % _PAGE), len(view), _PAGE):
            page = self.pages.setdefault((self.position + start) // _PAGE, bytearray(_PAGE))
            part = view[max(start, 0) : start + _PAGE]
            within = max(-start, 0)
            page[within : within + len(part)] = part
        self.position += len(view)
        self.size = max(self.size, self.position)
        return len(view)

    def take(self, start: int, end: int) -> bytes:
        """The bytes of a range; zeros where nothing was written."""
        empty = bytes(_PAGE)
        first = start // _PAGE
        pages = (self.pages.get(n, empty) for n in range(first, -(-end // _PAGE)))
        return b"".join(pages)[start - first * _PAGE : end - first * _PAGE]
