"""One rank's file: written straight from tensor memory, read with every byte checked."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from hpcdet.checkpoint.layout import gaps, layout
from hpcdet.checkpoint.tree import Leaf, from_bytes
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


def leaf_digest(leaf: Leaf, data: memoryview | bytes) -> str:
    """BLAKE3 of type, shape and bytes: what the leaf holds, wherever it lies."""
    head = files.canonical([leaf.kind, leaf.dtype, list(leaf.shape)])
    return str(blake3(head + b"\n").update(data).hexdigest())


def write(
    folder: Path, leaves: Sequence[Leaf], rank: int, world: int
) -> tuple[Shard, dict[str, str]]:
    """Write a rank's file; it has its name only once it is whole and durable.

    Returns:
        The shard, and the digest of each leaf by name.

    Raises:
        OSError: the disk is full or fails; nothing is left behind.
    """
    # the layouts that are remembered must not keep the tensors of this save alive
    plan = layout(tuple(replace(leaf, source=None) for leaf in leaves), rank, world)
    path = folder / file_name(rank, world)
    temporary = folder / f".{path.name}.{os.getpid()}.tmp"
    try:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, files.FILE_MODE)
        try:
            os.ftruncate(fd, plan.size)
            for offset, piece in plan.pieces:
                _write_at(fd, memoryview(piece), offset)
            digests = []
            for leaf, extent in zip(leaves, plan.extents, strict=True):
                data = leaf.data()
                digests.append(leaf_digest(leaf, data))
                _write_at(fd, data, extent.offset)
            table = plan.table_text(digests)
            _write_at(fd, memoryview(table), plan.table[0])
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    files.sync_folder(folder)
    shard = Shard(path.name, plan.size, plan.table, blake3(table).hexdigest())
    return shard, {leaf.name: digest for leaf, digest in zip(leaves, digests, strict=True)}


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
        for name, kind, dtype, shape, offset, nbytes, digest in table["leaves"]:
            leaf = Leaf(name, kind, dtype, tuple(shape), nbytes)
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
