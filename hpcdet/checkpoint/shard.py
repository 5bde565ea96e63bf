"""One rank's file: written straight from tensor memory, read with every byte checked."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from hpcdet.checkpoint.image import PAGE, Filled, Image
from hpcdet.checkpoint.layout import Layout, gaps
from hpcdet.checkpoint.output import DIRECT, PIECE, Output, open_direct
from hpcdet.checkpoint.task import Task
from hpcdet.checkpoint.tree import Leaf, Part, from_bytes
from hpcdet.errors import IntegrityError
from hpcdet.store import files

_PIECE = 16 << 20
HINT = "an older checkpoint is used where there is one; `hpcdet ckpt verify` checks them all"


@dataclass(frozen=True)
class Shard:
    """A rank's file as the manifest knows it.

    Attributes:
        file: name in the checkpoint's folder.
        bytes: its size.
        table: offset and length of the table inside it.
        root: BLAKE3 of the table, which covers every other byte.
    """

    file: str
    bytes: int
    table: tuple[int, int]
    root: str

    def encode(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"table": list(self.table)}

    @staticmethod
    def decode(value: Mapping[str, Any]) -> Shard:
        """The inverse of ``encode``."""
        offset, length = value["table"]
        return Shard(value["file"], value["bytes"], (offset, length), value["root"])


def file_name(rank: int, world: int) -> str:
    """``rank-00003-of-00008.h5``"""
    return f"rank-{rank:05d}-of-{world:05d}.h5"


@dataclass(frozen=True)
class Written:
    """A rank's file that is durable, and the digest of each of its leaves by name."""

    shard: Shard
    digests: Mapping[str, str]


def leaf_digest(leaf: Leaf, data: memoryview | bytes) -> str:
    """BLAKE3 of type, shape and bytes: what the leaf holds, wherever it lies."""
    return str(begin_digest(leaf.kind, leaf.dtype, leaf.shape).update(data).hexdigest())


def begin_digest(kind: str, dtype: str, shape: tuple[int, ...]) -> blake3:
    """The digest of a leaf before its bytes, which may then be added piece by piece."""
    return blake3(_head(kind, dtype, shape))


@functools.lru_cache(maxsize=1 << 14)
def _head(kind: str, dtype: str, shape: tuple[int, ...]) -> bytes:
    return files.canonical([kind, dtype, list(shape)]) + b"\n"


def write(folder: Path, leaves: Sequence[Leaf], plan: Layout, rank: int, world: int) -> Written:
    """Write a rank's file straight from the memory of its leaves.

    For states that there is no memory for a copy of; else ``persist`` is faster.

    Raises:
        OSError: the disk is full or fails; nothing is left behind.
    """
    digests: list[str] = []

    def content(fd: int) -> bytes:
        os.ftruncate(fd, plan.size)
        for offset, piece in plan.pieces:
            _write_at(fd, memoryview(piece), offset)
        for leaf, extent in zip(leaves, plan.extents, strict=True):
            data = leaf.data()
            digests.append(leaf_digest(leaf, data))
            _write_at(fd, data, extent.offset)
        table = plan.table_text(digests)
        _write_at(fd, memoryview(table), plan.table[0])
        return table

    table = _make(folder / file_name(rank, world), content, 0)
    return _written(plan, rank, world, table, digests)


def persist(
    folder: Path, image: Image, filled: Filled, plan: Layout, rank: int, world: int
) -> Written:
    """Write a rank's file from an image, past the page cache where the file system can.

    A second thread makes the digests meanwhile; both may begin before the image is filled.

    Raises:
        OSError: the disk is full or fails; nothing is left behind.
    """
    hashing = Task(lambda: _digests(image, filled, plan), "checkpoint digests")
    last = plan.table[0] // PAGE * PAGE
    digests: list[str] = []

    def content(fd: int) -> bytes:
        output = Output(fd)
        for start in range(0, last, PIECE):
            end = min(start + PIECE, last)
            filled.wait(end)
            output.write(image.take(start, end), start)
        filled.wait(plan.size)
        digests.extend(hashing.result())
        table = plan.table_text(digests)
        image.put(plan.table[0], table)
        output.write(image.take(last, -(-plan.size // PAGE) * PAGE), last)
        os.ftruncate(fd, plan.size)
        return table

    try:
        table = _make(folder / file_name(rank, world), content, DIRECT)
    finally:
        hashing.wait()  # the image belongs to the next save
    return _written(plan, rank, world, table, digests)


def _digests(image: Image, filled: Filled, plan: Layout) -> list[str]:
    """Of all leaves, in their order; made in that in which the image is filled."""
    found = [""] * len(plan.extents)
    for number in plan.ascending:
        extent = plan.extents[number]
        filled.wait(extent.end)
        found[number] = leaf_digest(extent.leaf, image.take(extent.offset, extent.end))
    return found


def _make(path: Path, content: Callable[[int], bytes], flags: int) -> bytes:
    """Make a file that has its name only once it is whole and durable."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fd = open_direct(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, flags)
        try:
            result = content(fd)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    files.sync_folder(path.parent)
    return result


def _written(plan: Layout, rank: int, world: int, table: bytes, digests: Sequence[str]) -> Written:
    shard = Shard(file_name(rank, world), plan.size, plan.table, blake3(table).hexdigest())
    names = (extent.leaf.name for extent in plan.extents)
    return Written(shard, dict(zip(names, digests, strict=True)))


def _write_at(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data[:_PIECE], offset)
        data = data[written:]
        offset += written


@dataclass(frozen=True)
class Entry:
    """A leaf that was read and is what was written; ``value`` makes it a value."""

    leaf: Leaf
    digest: str
    data: torch.Tensor

    def value(self) -> Any:
        leaf = self.leaf
        return from_bytes(leaf.kind, leaf.dtype, leaf.shape, self.data)


def read(
    folder: Path, shard: Shard, wanted: Callable[[str], bool] = lambda _: True
) -> Iterator[Entry]:
    """Every leaf of a file, in the order of the file; every byte of the file is checked.

    Leaves that are not ``wanted``, by name, are checked and not given.

    Raises:
        IntegrityError: the file is missing, or not what was written; names file and dataset.
    """
    path = folder / shard.file
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        raise IntegrityError("the file is missing", where=str(path), hint=HINT) from None
    try:
        size = os.fstat(fd).st_size
        if size != shard.bytes:
            raise IntegrityError(
                f"the file has {size} bytes, not {shard.bytes}", where=str(path), hint=HINT
            )
        text = bytes(_read_at(fd, *shard.table).numpy().data)
        _check(blake3(text).hexdigest(), shard.root, path, "table")
        table = json.loads(text)
        extents = [(row[4], row[4] + row[5]) for row in table["leaves"]]
        frame = blake3()
        for start, end in gaps([*extents, (shard.table[0], sum(shard.table))], size):
            frame.update(_read_at(fd, start, end - start).numpy().data)
        _check(frame.hexdigest(), table["frame"], path, "HDF5 header")
        for name, kind, dtype, shape, offset, nbytes, *of, digest in table["leaves"]:
            part = Part(tuple(of[0]["shape"]), of[0]["start"]) if of else None
            leaf = Leaf(name, kind, dtype, tuple(shape), nbytes, part=part)
            data = _read_at(fd, offset, nbytes)
            _check(leaf_digest(leaf, data.numpy().data), digest, path, name)
            if wanted(name):
                yield Entry(leaf, digest, data)
    finally:
        os.close(fd)


def _read_at(fd: int, offset: int, length: int) -> torch.Tensor:
    buffer = torch.empty(length, dtype=torch.uint8)
    rest = buffer.numpy().data
    while rest:
        count = os.preadv(fd, [rest[:_PIECE]], offset)
        if not count:
            raise IntegrityError("the file ends too early", where=f"offset {offset}", hint=HINT)
        rest = rest[count:]
        offset += count
    return buffer


def _check(found: str, expected: str, path: Path, dataset: str) -> None:
    if found != expected:
        raise IntegrityError(
            f"dataset {dataset} is not what was written", where=str(path), hint=HINT
        )
