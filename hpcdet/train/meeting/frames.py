"""Messages between a rank and rank 0: a kind, a number and byte strings, all of bounded length.

On the wire, integers in network order: length of what follows (4 bytes), kind (1), number (4),
and each part with its length (4) before it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

MOST_BYTES = 64 * 2**20
"""Of one message. Keys and addresses are small, but the store is open to the user's code, too."""
_HEAD = struct.Struct("!IBI")
_LENGTH = struct.Struct("!I")


class FrameKind(IntEnum):
    """The kind of a message; from ``SET`` on, requests to the store."""

    GOODBYE = 0
    LOST = 1
    ANSWER = 2
    SET = 3
    GET = 4
    WAIT = 5
    CHECK = 6
    ADD = 7
    COMPARE_SET = 8
    DELETE = 9
    COUNT = 10


@dataclass(frozen=True)
class Frame:
    """A message.

    Attributes:
        number: of a request, and of the answer to it.
    """

    kind: FrameKind
    number: int = 0
    parts: tuple[bytes, ...] = ()

    def encode(self) -> bytes:
        """The message on the wire.

        Raises:
            ValueError: it is longer than ``MOST_BYTES``.
        """
        body = b"".join(_LENGTH.pack(len(part)) + part for part in self.parts)
        if len(body) > MOST_BYTES:
            raise ValueError(f"{len(body)} bytes are too many for one message ({MOST_BYTES})")
        return _HEAD.pack(_HEAD.size - _LENGTH.size + len(body), self.kind, self.number) + body


class Incoming:
    """Puts the messages of one connection together again."""

    def __init__(self) -> None:
        self._data = bytearray()

    def take(self, data: bytes) -> Iterator[Frame]:
        """The messages that are complete with this data.

        Raises:
            ValueError: this is not how hpcdet's ranks speak.
        """
        self._data += data
        while len(self._data) >= _HEAD.size:
            length, kind, number = _HEAD.unpack_from(self._data)
            end = _LENGTH.size + length
            if not _HEAD.size <= end <= _HEAD.size + MOST_BYTES:
                raise ValueError(f"a message of {length} bytes")
            if len(self._data) < end:
                return
            body = bytes(self._data[_HEAD.size : end])
            del self._data[:end]
            yield Frame(FrameKind(kind), number, tuple(_parts(body)))


def _parts(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        if len(body) - at < _LENGTH.size:
            raise ValueError("a message that ends within a length")
        start = at + _LENGTH.size
        at = start + int(_LENGTH.unpack_from(body, at)[0])
        if at > len(body):
            raise ValueError("a message that is shorter than its parts")
        yield body[start:at]
