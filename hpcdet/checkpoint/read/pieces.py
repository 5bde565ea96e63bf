"""Pieces of a rank's file: read, brought to where their bytes belong, and hashed, by any thread.

Those of a file may be worked on at the same time, in the order in which they lie there or in
none; only a leaf that lies in several pieces is hashed by one after the other. What they came to
is looked at in order, by the thread that reads the file, which also does what is to be done with
small leaves: of those Python's own work takes longest, which one thread at a time can do.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from blake3 import blake3

from hpcdet.checkpoint.format.rank_file import SMALL_FILE, RankFile
from hpcdet.checkpoint.format.shard import HINT, Shard, begin_digest
from hpcdet.checkpoint.io.read_buffers import Bytes, Scratch, populate
from hpcdet.checkpoint.io.shared_ring import Slot
from hpcdet.checkpoint.state.tree import Leaf, from_bytes
from hpcdet.errors import IntegrityError

_LARGE = 64 << 10
"""A leaf of so many bytes is worth another thread."""
_NEAR = 512 << 10
"""Bytes that are copied and then hashed while they are still in a core's own cache."""


@dataclass(frozen=True)
class Entry:
    """A leaf that is what was written; ``value`` makes it a value, if its bytes were asked for.

    Attributes:
        shard: the file it is in.
        data: its bytes, in new memory.
        existing: the tensor that was there, and has the bytes now; then there is no ``data``.
    """

    shard: Shard
    leaf: Leaf
    digest: str
    data: torch.Tensor | None
    existing: torch.Tensor | None = None

    def value(self) -> Any:
        """The value.

        Raises:
            IntegrityError: it is of a type that no hpcdet writes.
        """
        if self.existing is not None:
            return self.existing
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


@dataclass(eq=False, slots=True)
class Range:
    """Bytes of a file that belong together: a leaf, or a hole between leaves (of the frame).

    Attributes:
        data: new memory for its bytes; nobody has written to it yet.
        existing: a tensor that is overwritten with them.
        target: the bytes of either; None for a leaf that is merely checked, and a hole.
        elsewhere: another rank of this node hashes it, and says so if it is another.
    """

    start: int
    end: int
    leaf: Leaf | None = None
    digest: str = ""
    data: torch.Tensor | None = None
    existing: torch.Tensor | None = None
    target: Bytes | None = None
    elsewhere: bool = False
    _hasher: blake3 | None = None

    def hash(self, data: Bytes, target: Bytes | None = None) -> None:
        """Hash its next bytes; it is a leaf. With ``target`` they are copied there as well."""
        leaf = self.leaf
        assert leaf is not None
        if self.elsewhere:
            if target is not None:
                target[:] = data
            return
        if self._hasher is None:
            self._hasher = begin_digest(leaf.kind, leaf.dtype, leaf.shape)
        if target is None:
            self._hasher.update(data.data)
            return
        for start in range(0, data.size, _NEAR):
            near = data[start : start + _NEAR]
            target[start : start + _NEAR] = near
            self._hasher.update(near.data)

    def entry(self, file: RankFile) -> Entry:
        """All of it has been hashed: the leaf, checked."""
        assert self.leaf is not None
        if not self.elsewhere:
            assert self._hasher is not None
            file.check(self._hasher.hexdigest(), self.digest, self.leaf.name)
        return Entry(file.shard, self.leaf, self.digest, self.data, self.existing)


class Piece:
    """A range of a file, of whole pages, that is read at once.

    Args:
        memory: for what is read, as far as it is not read to where it belongs.
        before: the one before it in the file, if a leaf of that goes on in this one.
        slot: whose memory it is, if ranks of this node read for each other; then larger leaves
            are hashed by the rank that reads where they begin.

    Attributes:
        ends: it is the last one of its file.
    """

    def __init__(
        self,
        file: RankFile,
        start: int,
        memory: Bytes,
        parts: Sequence[Range],
        before: Piece | None,
        slot: Slot | None = None,
    ) -> None:
        self.start = start
        self.end = start + memory.size
        self.memory = memory
        self.ends = False
        self._hashed = threading.Event()
        self._before = before
        self._file = file
        self._parts = parts
        self._slot = slot
        if slot is not None:
            for part in parts:
                if part.start >= start and self._is_large(part):
                    part.elsewhere = not slot.mine

    @property
    def large(self) -> bool:
        """Whether it is worth another thread."""
        return self.memory.size > SMALL_FILE

    def work(self) -> None:
        """Read it, and do with the larger parts what is to be done; ``entries`` does the rest.

        Those before it must be worked on, too, or be given up.
        """
        try:
            parts = [part for part in self._parts if self._is_large(part)]
            found, targets = self._fill(parts)
            if self._before is not None:
                self._before._hashed.wait()
                self._before = None
            for part, data, target in zip(parts, found, targets, strict=True):
                part.hash(data, target)
        finally:
            self._hashed.set()

    def give_back(self, scratch: Scratch) -> None:
        """Its entries have been taken: give its memory back to where it is from."""
        if self._slot is not None:
            self._slot.give_back()
        else:
            scratch.give_back(self.memory)

    def give_up(self) -> None:
        """Give the piece up: those after it do not wait for it."""
        self._hashed.set()

    def _is_large(self, part: Range) -> bool:
        """True if a part is a leaf that takes longer than Python's objects for it.

        For others the thread that makes those does all: any other would wait for Python longer than
        it takes.
        """
        start, end = part.start, part.end
        is_large = end - start >= _LARGE or start < self.start or end > self.end
        return is_large and part.leaf is not None

    def _fill(self, parts: Sequence[Range]) -> tuple[list[Bytes], list[Bytes | None]]:
        """Read it; what was read of these parts, and where it is still to go."""
        found = [self._read(part) for part in parts]
        targets = [self._target(part) for part in parts]
        for part, target in zip(parts, targets, strict=True):
            if part.data is not None and target is not None:
                populate(target)
        if self._slot is not None:
            self._slot.fill(lambda memory: self._file.fill(self.start, memory))
            return found, targets
        if self._file.is_direct(self.start):
            self._file.fill(self.start, self.memory)
            return found, targets
        memories, at = [], 0
        for n, (part, target) in enumerate(zip(parts, targets, strict=True)):
            if target is not None:
                start, end = self._within(part)
                memories += [self.memory[at:start], target]
                found[n], at = target, end
        memories.append(self.memory[at:])
        self._file.scatter(self.start, [memory for memory in memories if memory.size])
        return found, [None] * len(found)

    def _within(self, part: Range) -> tuple[int, int]:
        """Where in this piece a part begins and ends, or what of it is here."""
        return max(part.start, self.start) - self.start, min(part.end, self.end) - self.start

    def _read(self, part: Range) -> Bytes:
        """A part's bytes in memory of this piece."""
        start, end = self._within(part)
        return self.memory[start:end]

    def _target(self, part: Range) -> Bytes | None:
        """Where the bytes of a part that are in this piece are to go."""
        if part.target is None:
            return None
        return part.target[max(self.start - part.start, 0) : self.end - part.start]

    def entries(self) -> Iterator[Entry]:
        """The leaves that end in it, checked. It has been worked on, and those before it taken."""
        for part in self._parts:
            if part.leaf is None:
                self._file.frame.update(self._read(part).data)
            elif part.end <= self.end:
                if not self._is_large(part):
                    data = self._read(part)
                    if part.target is not None:
                        part.target.data[:] = data.data  # so few that Python need not be given up
                    part.hash(data)
                yield part.entry(self._file)
        if self.ends:
            self._file.finish()
