"""Append-only files of JSON lines, one writer each.

A line is ``{"n": 7, "t": "2026-…Z", "kind": "metrics", …, "crc": "9a0b1c2d"}``: a sequence
number from 1, a UTC time, what the record holds, and the CRC-32 of everything before
``,"crc"``. A line that is torn, damaged or out of sequence ends what a reader accepts: what
was read is always a prefix of what was written.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hpcdet.store.fs import bounded_json, files, packed

Line = dict[str, Any]

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode

_HEAD = 100
"""Bytes within which a line says what kind it is."""

_PLAIN = bounded_json.DEEPEST
"""Bytes of a line up to which nothing in it can be too deep or too long."""

_BEGIN = b'{"n":'

_END = b'"kind":"end"'

_PIECE = 1 << 16
_LARGE = 1 << 20
"""Bytes that are read at once: first, and where there is more."""

LONGEST = 24 << 20
"""Bytes of a line; what goes on for longer without an end is none."""

VALUES = 2_000_000
"""Values in a line: a metric may be a table."""

_MOST = 1 << 20
"""Bytes of records that wait to be written at most."""


def encode(n: int, kind: str, fields: dict[str, Any], t: str) -> bytes:
    """Return one line, its newline included.

    Raises:
        ValueError: a value is not JSON (NaN and infinities are not; see ``json_record.number``), or
            is one that no reader would accept (``bounded_json``, ``LONGEST``).
    """
    text = _encode({"n": n, "t": t, "kind": kind, **fields})
    head = text.encode(errors="backslashreplace")[:-1]  # half of a surrogate pair, as JSON has it
    if len(head) > LONGEST - 100:
        raise ValueError(f"a record of {len(head)} bytes is longer than {LONGEST}")
    if len(head) > _PLAIN:
        bounded_json.json_value(head + b"}", VALUES)
    return head + b',"crc":"%08x"}\n' % zlib.crc32(head)


def decode(raw: bytes) -> Line | None:
    """Return the record in one line (without its newline), or None if it is damaged."""
    head, mark, tail = raw.rpartition(b',"crc":"')
    if not mark or tail != b'%08x"}' % zlib.crc32(head):
        return None
    try:
        line = bounded_json.json_value(raw, VALUES)
    except ValueError:
        return None
    said = isinstance(line, dict) and isinstance(line.get("kind"), str)
    return line if said and files.is_time(line.get("t")) else None


@dataclass
class Reader:
    """A reader of a journal, which goes on where it stopped the last time.

    Attributes:
        offset: bytes accepted so far.
        n: sequence number of the last accepted line.
        last: where that line begins.
        damaged: a complete line was not what was written; nothing behind it is read.
        ended: a record of kind ``end`` has been read, or what looks like one.
    """

    path: Path
    offset: int = 0
    n: int = 0
    last: int = 0
    damaged: bool = False
    ended: bool = False

    def read(self, only: str = "", *, loose: bool = False) -> list[Line]:
        """Return the complete, intact lines that were added since the last call.

        Args:
            only: a kind; lines of others are checked and passed over.
            loose: it is known that the file is in no archive.
        """
        return list(self.each(only, loose=loose))

    def each(self, only: str = "", *, loose: bool = False) -> Iterator[Line]:
        """Yield the lines that ``read`` returns, of which none is kept here."""
        mark = b'"kind":"%s"' % only.encode() if only else b""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            try:
                yield from self._read(mark, loose)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                yield from self._read(mark, loose)  # packed by another host while it was open here

    def _read(self, mark: bytes, loose: bool) -> Iterator[Line]:
        if self.damaged:
            return
        opened = files.open_record if loose else packed.open_file
        with opened(self.path) as file:
            file.seek(self.offset)
            for data in _whole_lines(file):
                self.ended = self.ended or _END in data
                yield from self._accept(data, mark)
                if self.damaged:
                    return

    def _accept(self, data: bytes, mark: bytes) -> Iterator[Line]:
        for raw in data[:-1].split(b"\n"):
            passed = mark and raw.find(mark, 0, _HEAD) < 0 and _is_line(raw, self.n + 1)
            line = None if passed else decode(raw)
            if not passed and (line is None or line.get("n") != self.n + 1):
                self.damaged = True
                return
            self.n += 1
            self.last = self.offset
            self.offset += len(raw) + 1
            if line is not None:
                yield line


def _whole_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the rest of a file in pieces of complete lines."""
    pieces: list[bytes] = []  # of a line that has not ended
    size, held = _PIECE, 0
    while data := file.read(size):
        whole, end, rest = data.rpartition(b"\n")
        if end:
            yield b"".join((*pieces, whole, end))
            pieces, held = [], 0
        if rest:
            pieces.append(rest)
            held += len(rest)
        if held > LONGEST:
            yield b"\n"  # no line, which ends the reading
            return
        first = pieces[0] if pieces else b""
        empty = b"\0" in rest or not first.startswith(_BEGIN[: len(first)])
        if len(data) < size or empty:
            return  # the end; or zeros, which stand where a file system has no data yet
        size = _LARGE


def _is_line(raw: bytes, n: int) -> bool:
    """True if a line is intact and has this number, without decoding it."""
    head, found, tail = raw.rpartition(b',"crc":"')
    whole = bool(found) and tail == b'%08x"}' % zlib.crc32(head)
    return whole and head.startswith(b'{"n":%d,' % n)


def read(path: Path) -> list[Line]:
    """Return all intact lines of a journal; an absent journal has none."""
    return Reader(path).read()


class Writer:
    """The only writer of a journal. Opened again, it goes on after the last intact line.

    Attributes:
        n: number of the last record, also of one that is only noted.
        offset: bytes that are written.
    """

    def __init__(self, path: Path) -> None:
        files.make_folder(path.parent)
        reader = Reader(path)
        reader.read(loose=True)  # what somebody writes is in no archive
        self.path = path
        self.n = reader.n
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT, files.FILE_MODE)
        os.ftruncate(self._fd, reader.offset)
        self.offset = os.lseek(self._fd, reader.offset, os.SEEK_SET)
        self._noted: list[bytes] = []
        self._size = 0

    def append(self, kind: str, *, sync: bool = False, **fields: Any) -> int:
        """Add a record and return its number; with ``sync``, it is durable on return."""
        self.note(kind, **fields)
        self.flush()
        if sync:
            self.sync()
        return self.n

    def note(self, kind: str, **fields: Any) -> int:
        """Add one of many records, written with the next ``flush`` at the latest."""
        data = encode(self.n + 1, kind, fields, files.now())
        self._noted.append(data)
        self._size += len(data)
        self.n += 1
        if self._size >= _MOST:
            self.flush()
        return self.n

    def flush(self) -> None:
        """Write the noted records; if that fails, all of them are dropped.

        Raises:
            OSError: the disk is full, or fails.
        """
        noted, size = self._noted, self._size
        if not noted:
            return
        self._noted, self._size = [], 0
        try:
            files.write_all(self._fd, b"".join(noted))
        except OSError:
            # a full disk may have taken part of it: take it back, so that the next fits
            self.n -= len(noted)
            os.ftruncate(self._fd, self.offset)
            os.lseek(self._fd, self.offset, os.SEEK_SET)
            raise
        self.offset += size

    def sync(self) -> None:
        """Make everything added so far durable."""
        self.flush()
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file and drop records that were only noted; closing twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
