"""Records of TensorBoard's event files, encoded without TensorBoard.

An event file is a sequence of records (length, masked CRC-32C, data, masked CRC-32C), each an
``Event`` of TensorFlow's ``event.proto`` in Protocol Buffers' wire format. Numbers keep their
64 bits; ``simple_value``, which most writers use, has 32.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

VERSION = "brain.Event:2"
"""With it TensorBoard heeds ``SessionLog``."""
_SCALAR, _TENSOR = 1, 2  # DataClass
_FLOAT, _DOUBLE, _STRING = 1, 2, 7  # DataType
_HPARAMS = "_hparams_/session_start_info"


def event(time_s: float, step: int = 0, *parts: bytes) -> bytes:
    """Return an event as a record of an event file; ``parts`` are what the functions below make."""
    return _record(b"".join((_fixed(1, time_s), _whole(2, step) if step else b"", *parts)))


def file_version() -> bytes:
    """Return the content of the first event of a file."""
    return _bytes(3, VERSION.encode())


def session_start() -> bytes:
    """Return the content of an event that drops what is known of its step and later ones."""
    return _bytes(7, _whole(1, 1))


def summary(values: Iterable[bytes]) -> bytes:
    """Return the content of an event with ``scalar``, ``text`` and ``hparams`` values."""
    return _bytes(5, b"".join(values))


def scalar(tag: str, number: float) -> bytes:
    """Return a number for the page of scalars."""
    tensor = _whole(1, _DOUBLE) + _bytes(2, b"") + _bytes(6, struct.pack("<d", number))
    return _value(tag, "scalars", b"", _SCALAR, tensor)


def text(tag: str, markdown: str) -> bytes:
    """Return Markdown for the page of texts."""
    tensor = _whole(1, _STRING) + _bytes(2, b"") + _bytes(8, markdown.encode(errors="replace"))
    return _value(tag, "text", b"", _TENSOR, tensor)


def hparams(params: Mapping[str, Any], group: str, time_s: float) -> bytes:
    """Return a trial's hyperparameters for the page of hyperparameters.

    Args:
        params: by name: numbers, truth values and texts.
        group: runs of one group are attempts at the same hyperparameters.
        time_s: of the trial's start.
    """
    pairs = (
        _bytes(1, _text(1, name) + _bytes(2, _struct(value))) for name, value in params.items()
    )
    start = b"".join(pairs) + _text(4, group) + _fixed(5, time_s)
    empty = _whole(1, _FLOAT) + _bytes(2, _bytes(2, b""))
    return _value(_HPARAMS, "hparams", _bytes(3, start), 0, empty)


def _value(tag: str, plugin: str, content: bytes, kind: int, tensor: bytes) -> bytes:
    """Return a ``Summary.Value``."""
    data = _text(1, plugin) + (_bytes(2, content) if content else b"")
    metadata = _bytes(1, data) + (_whole(4, kind) if kind else b"")
    return _bytes(1, _text(1, tag) + _bytes(9, metadata) + _bytes(8, tensor))


def _struct(value: bool | int | float | str) -> bytes:
    """Return a ``google.protobuf.Value``."""
    if isinstance(value, bool):
        return _whole(4, int(value))
    try:
        return _fixed(2, float(value)) if isinstance(value, int | float) else _text(3, value)
    except OverflowError:  # more digits than a number has there
        return _text(3, str(value))


# -- Protocol Buffers' wire format -------------------------------------------------------------


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1  # a negative one as its complement
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def _whole(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _fixed(field: int, number: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", number)


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode(errors="replace"))


# -- records ------------------------------------------------------------------------------------


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


_CRC = _table()


def _masked(data: bytes) -> bytes:
    """Return the CRC-32C (RFC 3720) of data, rotated and offset as in TFRecord files."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked(length), data, _masked(data)))
