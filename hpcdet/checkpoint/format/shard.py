"""One rank's file: written straight from tensor memory, or from an image of it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from hpcdet.checkpoint.format.hdf5_layout import Layout, digest_head
from hpcdet.checkpoint.format.host_image import PAGE, Filled, Image
from hpcdet.checkpoint.io.direct_write import DIRECT, PIECE, DirectOutput, open_direct
from hpcdet.checkpoint.io.task import BackgroundTask
from hpcdet.checkpoint.state import tree
from hpcdet.checkpoint.state.tree import Leaf
from hpcdet.store.fs import files
from hpcdet.store.trials.manifests import HINT as HINT

_PIECE = 16 << 20
_MOST_HASHING = 4
"""Threads that make digests, if training has as many: its threads wait for the one that is held up,
so that holding up all of them at once, for a part of the time, costs less."""


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
        """Return the record as JSON."""
        return asdict(self) | {"table": list(self.table)}

    @staticmethod
    def decode(value: Mapping[str, Any]) -> Shard:
        """The inverse of ``encode``."""
        offset, length = value["table"]
        return Shard(value["file"], value["bytes"], (offset, length), value["root"])


def file_name(rank: int, world: int) -> str:
    """Name of a rank's file: ``rank-00003-of-00008.h5``."""
    return f"rank-{rank:05d}-of-{world:05d}.h5"


def frozen_name(rank: int, world: int) -> str:
    """Name of the file of unchanged leaves: ``rank-00003-of-00008.frozen.h5``."""
    return f"rank-{rank:05d}-of-{world:05d}.frozen.h5"


@dataclass(frozen=True)
class Written:
    """A rank's file that is durable, and the digest of each of its leaves by name.

    Attributes:
        linked: it was there already, under another name.
    """

    shard: Shard
    digests: Mapping[str, str]
    linked: bool = False


def leaf_digest(leaf: Leaf, data: memoryview | bytes) -> str:
    """BLAKE3 of type, shape and bytes: what the leaf holds, wherever it lies."""
    return str(begin_digest(leaf.kind, leaf.dtype, leaf.shape).update(data).hexdigest())


def begin_digest(kind: str, dtype: str, shape: tuple[int, ...]) -> blake3:
    """The digest of a leaf before its bytes, which may then be added piece by piece."""
    return blake3(digest_head(kind, dtype, shape))


def write(folder: Path, name: str, sources: Sequence[Any], plan: Layout) -> Written:
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
        for source, extent in zip(sources, plan.extents, strict=True):
            data = tree.data(source)
            digests.append(leaf_digest(extent.leaf, data))
            _write_at(fd, data, extent.offset)
        table = plan.table_text(digests)
        _write_at(fd, memoryview(table), plan.table[0])
        return table

    table = _make(folder / name, content, 0)
    return _written(plan, name, table, digests)


def persist(
    folder: Path,
    name: str,
    image: Image,
    filled: Filled,
    plan: Layout,
    link: Callable[[Shard, Path], bool] | None = None,
) -> Written:
    """Write a rank's file from an image, past the page cache where the file system can.

    Other threads make the digests meanwhile; all may begin before the image is filled.

    Args:
        link: puts a file that is there already into the folder, if it is the same, and says
            whether it did; then nothing is written before the digests are known.

    Raises:
        OSError: the disk is full or fails; nothing is left behind.
    """
    hashing = BackgroundTask(
        lambda: _digests(image, filled, plan), "checkpoint digests", or_here=True
    )
    last = plan.table[0] // PAGE * PAGE
    digests: list[str] = []

    def content(fd: int) -> bytes:
        output = DirectOutput(fd)
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
        if link is not None:
            found = hashing.result()
            same = _written(plan, name, plan.table_text(found), found, linked=True)
            if link(same.shard, folder):
                files.sync_folder(folder)
                return same
        table = _make(folder / name, content, DIRECT)
    finally:
        hashing.wait()  # the image belongs to the next save
    return _written(plan, name, table, digests)


def _digests(image: Image, filled: Filled, plan: Layout) -> list[str]:
    """Digests of all leaves, in their order; made in the order in which the image is filled.

    Training goes on meanwhile: what is done for each leaf is little, for Python does one thing at
    a time.
    """
    found = [""] * len(plan.extents)
    whole = image.take(0, plan.size)
    rest = iter(plan.to_hash)  # of all threads together

    def work() -> None:
        there = 0
        for number, start, end, head in rest:
            if end > there:
                there = filled.wait(end)
            found[number] = blake3(head).update(whole[start:end]).hexdigest()

    more = min(_MOST_HASHING, torch.get_num_threads()) - 1
    others: list[BackgroundTask[None]] = []
    try:
        with contextlib.suppress(RuntimeError):  # a limit on threads: fewer do it as well
            while len(others) < more:
                others.append(BackgroundTask(work, "checkpoint digests"))
        work()
    finally:
        for other in others:
            other.wait()
    for other in others:
        other.result()
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


def _written(
    plan: Layout, name: str, table: bytes, digests: Sequence[str], linked: bool = False
) -> Written:
    shard = Shard(name, plan.size, plan.table, blake3(table).hexdigest())
    names = (extent.leaf.name for extent in plan.extents)
    return Written(shard, dict(zip(names, digests, strict=True)), linked)


def _write_at(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data[:_PIECE], offset)
        if not written:
            raise OSError(errno.EIO, "the file system takes no more bytes")
        data = data[written:]
        offset += written
