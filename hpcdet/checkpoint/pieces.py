"""Pieces of a rank's file: read, brought to where their bytes belong, and hashed, by any thread.

Those of a file may be worked on at the same time, in the order in which they lie there or in
none; only a leaf that is longer than a piece is hashed by one after the other. What they came to
is looked at in order, by the thread that reads the file.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from blake3 import blake3

from hpcdet.checkpoint.buffers import Bytes, populate
from hpcdet.checkpoint.rankfile import SMALL_FILE, RankFile
from hpcdet.checkpoint.shard import HINT, Shard, begin_digest
from hpcdet.checkpoint.tree import Leaf, from_bytes
from hpcdet.errors import IntegrityError


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


@dataclass(eq=False)
class Range:
    """Bytes of a file that belong together: a leaf, or a hole between leaves (of the frame).

    Attributes:
        target: where its bytes are to go; None for a leaf that is merely checked, and a hole.
        is_new: nobody has written to the target yet.
    """

    start: int
    end: int
    leaf: Leaf | None = None
    digest: str = ""
    target: torch.Tensor | None = None
    is_new: bool = False
    _hasher: blake3 | None = None

    def place(self, start: int, end: int) -> Bytes:
        """Where the bytes of this range of the file are to go; there is a target."""
        assert self.target is not None
        return self.target.numpy()[start - self.start : end - self.start]

    def hash(self, data: Bytes) -> None:
        """Hash its next bytes; it is a leaf."""
        leaf = self.leaf
        assert leaf is not None
        if self._hasher is None:
            self._hasher = begin_digest(leaf.kind, leaf.dtype, leaf.shape)
        self._hasher.update(data.data)

    def entry(self, file: RankFile) -> Entry:
        """All of it has been hashed: the leaf, checked."""
        assert self.leaf is not None and self._hasher is not None
        file.check(self._hasher.hexdigest(), self.digest, self.leaf.name)
        return Entry(file.shard, self.leaf, self.digest, self.target)


class Piece:
    """A range of a file, of whole pages, that is read at once.

    Args:
        memory: for what is read, as far as it is not read to where it belongs.
        before: the one before it in the file, if a leaf of that goes on in this one.

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
    ) -> None:
        self.start = start
        self.end = start + memory.size
        self.memory = memory
        self.ends = False
        self._hashed = threading.Event()
        self._before = before
        self._scattered = False  # it was read to where it belongs, not to its own memory
        self._file = file
        self._parts = parts

    @property
    def large(self) -> bool:
        """Whether it is worth another thread."""
        return self.memory.size > SMALL_FILE

    def work(self) -> None:
        """Read it and hash it. Those before it must be worked on, too, or be given up."""
        try:
            self._fill()
            if self._before is not None:
                self._before._hashed.wait()
                self._before = None
            for part in self._parts:
                if part.leaf is not None:
                    part.hash(self._read(part))
        finally:
            self._hashed.set()

    def give_up(self) -> None:
        """Nobody will work on it: those after it are not to wait."""
        self._hashed.set()

    def _fill(self) -> None:
        """Read it, to where it is to go at once if that can be any memory."""
        targets = [part for part in self._parts if part.target is not None]
        for part in targets:
            if part.is_new:
                populate(part.place(*self._range(part)))
        if not targets or self._file.is_direct(self.start):
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

    def _range(self, part: Range) -> tuple[int, int]:
        """What of a part is in this piece."""
        return max(part.start, self.start), min(part.end, self.end)

    def _memory(self, start: int, end: int) -> Bytes:
        return self.memory[start - self.start : end - self.start]

    def _read(self, part: Range) -> Bytes:
        """A part's bytes, as they were read."""
        if self._scattered and part.target is not None:
            return part.place(*self._range(part))
        return self._memory(*self._range(part))

    def entries(self) -> Iterator[Entry]:
        """The leaves that end in it, checked. It has been worked on, and those before it taken."""
        for part in self._parts:
            if part.leaf is None:
                self._file.frame.update(self._read(part).data)
            elif part.end <= self.end:
                yield part.entry(self._file)
        if self.ends:
            self._file.finish()
