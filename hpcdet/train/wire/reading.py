"""Decoding of messages; no message, however malformed, does harm."""

from __future__ import annotations

import math
import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from hpcdet.checkpoint.state.tree import NUMPY_KINDS, from_bytes
from hpcdet.errors import IntegrityError
from hpcdet.train.wire.kinds import DEEPEST, FLOAT, INT, LENGTH, TORCH_TYPES, is_key, named

_NUMPY_TYPE = re.compile(rf"[<>|][{NUMPY_KINDS}][0-9]{{1,12}}(\[[0-9]{{0,9}}[a-zA-Z]{{1,2}}\])?")
_UNREADABLE = (
    *(LookupError, TypeError, ValueError, RuntimeError, OverflowError, MemoryError),
    struct.error,
)


class Garbled(IntegrityError):
    """Raised for bytes that are no message: damaged, or from a rank of another version."""


def decode(message: bytearray | memoryview) -> Any:
    """The value of a message. Nothing in it shares memory with the message.

    Whatever the message says, its value takes no more memory than a fixed multiple of its length.

    Raises:
        Garbled: it is none.
    """
    reader = _Reader(memoryview(message))
    try:
        value = reader.value(DEEPEST)
    except _UNREADABLE as error:
        why = f"{type(error).__name__}: {error}"[:200]
        raise Garbled(f"what another rank has sent cannot be read: {why}") from error
    if reader.left:
        raise Garbled(f"what another rank has sent has {reader.left} bytes too many")
    return value


class _Reader:
    """Reads a message from its beginning; a length that goes beyond its end is refused first."""

    def __init__(self, message: memoryview) -> None:
        self._message = message
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._message) - self._at

    def take(self, count: int) -> memoryview:
        """The next bytes."""
        if count > self.left:
            raise ValueError(f"{count} bytes are to follow, and {self.left} do")
        start, self._at = self._at, self._at + count
        return self._message[start : self._at]

    def number(self, kind: struct.Struct) -> Any:
        """The next 8 bytes."""
        (found,) = kind.unpack_from(self._message, self._at)
        self._at += 8
        return found

    def length(self, least: int = 1) -> int:
        """How many of something follow, of which each takes so many bytes at least."""
        count: int = self.number(LENGTH)
        if count * least > self.left:
            raise ValueError(f"{count} items are to follow in {self.left} bytes")
        return count

    def value(self, depth: int) -> Any:
        read = _READERS[self._message[self._at]]
        self._at += 1
        if depth < 0:
            raise ValueError(f"it is nested more than {DEEPEST} deep")
        return read(self, depth)

    def text(self) -> str:
        return str(self.take(self.length()), "utf-8", "surrogatepass")

    def items(self, depth: int) -> list[Any]:
        return [self.value(depth - 1) for _ in range(self.length())]

    def run(self, code: str) -> list[Any]:
        count = self.length(8)
        return list(struct.unpack(f"<{count}{code}", self.take(8 * count)))

    def table(self, depth: int) -> list[Any]:
        columns = self.items(depth)
        if set(map(type, columns)) != {list}:
            raise ValueError("a column is no list")
        return list(zip(*columns, strict=True))

    def pairs(self, depth: int) -> Iterator[tuple[Any, Any]]:
        for _ in range(self.length(2)):
            key = self.value(depth - 1)
            if not is_key(key):
                raise ValueError(f"{named(key)} is no key")
            yield key, self.value(depth - 1)

    def ordered(self, depth: int) -> OrderedDict[Any, Any]:
        metadata = self.value(depth - 1)
        made = OrderedDict(self.pairs(depth))
        if metadata is not None:
            made._metadata = OrderedDict(metadata)  # type: ignore[attr-defined]
        return made

    def data(self, kind: str) -> Any:
        dtype, axes = self.text(), self.take(1)[0]
        shape = struct.unpack(f"<{axes}Q", self.take(8 * axes))
        size = math.prod(shape) * _item_bytes(kind, dtype)
        if kind == "scalar" and shape:
            raise ValueError("a scalar has no axes")
        content = bytearray(self.take(size))
        own = torch.frombuffer(content, dtype=torch.uint8) if size else _NOTHING
        return from_bytes(kind, dtype, shape, own)


def _item_bytes(kind: str, name: str) -> int:
    if kind == "tensor":
        return TORCH_TYPES[name].itemsize
    dtype = np.dtype(name) if _NUMPY_TYPE.fullmatch(name) else None
    if dtype is None or dtype.str != name:
        raise ValueError(f"there is no type {name[:40]!r}")
    return dtype.itemsize


_NOTHING = torch.empty(0, dtype=torch.uint8)

_READERS: dict[int, Callable[[_Reader, int], Any]] = {
    ord("N"): lambda _, __: None,
    ord("T"): lambda _, __: True,
    ord("F"): lambda _, __: False,
    ord("i"): lambda reader, _: reader.number(INT),
    ord("I"): lambda reader, _: int.from_bytes(reader.take(reader.length()), "little", signed=True),
    ord("d"): lambda reader, _: reader.number(FLOAT),
    ord("s"): lambda reader, _: reader.text(),
    ord("b"): lambda reader, _: bytes(reader.take(reader.length())),
    ord("f"): lambda reader, _: reader.run("d"),
    ord("q"): lambda reader, _: reader.run("q"),
    ord("l"): _Reader.items,
    ord("z"): _Reader.table,
    ord("t"): lambda reader, depth: tuple(reader.items(depth)),
    ord("m"): lambda reader, depth: dict(reader.pairs(depth)),
    ord("o"): _Reader.ordered,
    ord("x"): lambda reader, _: reader.data("tensor"),
    ord("a"): lambda reader, _: reader.data("array"),
    ord("c"): lambda reader, _: reader.data("scalar"),
}
