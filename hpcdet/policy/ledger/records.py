"""Records of a ledger: lines in canonical form, each with the digest of the one before.

A line is ``{"body":{…},"host":…,"prev":…,"seq":…,"step":…,"time":…,"type":…,"hash":…}``. Its
``hash`` is SHA-256 of a zero byte and the line without it (the digest of a leaf in RFC 6962),
``prev`` is the ``hash`` of the line before. No number is a float: fractions are
written as text (``float.hex``), so that any reader in any language has the same bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeGuard

from hpcdet.errors import IntegrityError
from hpcdet.store.fs import bounded_json, files, packed, typed_fields

TYPES = frozenset(
    {
        "open",
        "policy",
        "source_admit",
        "step_batch",
        "audit",
        "skip",
        "checkpoint",
        "rollback",
        "resume",
        "policy_change",
        "revoke",
        "site_attest",
        "eval",
        "prune",
        "seal",
        "close",
    }
)
LONGEST = 4 << 20
"""Bytes of a line."""
MOST = 500_000
"""Records of an attempt that are read: a hundred times what a day of training writes."""
LARGEST = 512 << 20
"""Bytes of a ledger that are read."""
EXACT = 2**53 - 1
"""The largest whole number that every reader of JSON has exactly."""

_HASH = b',"hash":"'
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class LedgerOwner:
    """The attempt that a ledger is of."""

    experiment: str
    trial: int
    attempt: int


@dataclass(frozen=True)
class LedgerHead:
    """The place up to which a ledger is meant: a record, and its hash, 64 hex digits."""

    attempt: int
    seq: int
    hash: str


@dataclass(frozen=True)
class LedgerRecord:
    """An entry of a ledger.

    Attributes:
        seq: its place in the attempt's ledger, from 0; ``prev``: hash of the one before, "" of the
            first.
        type: one of ``TYPES``; ``step``: batches that were trained.
        time: ISO 8601, by the host's clock: order is by ``seq``, whatever clocks say.
    """

    seq: int
    prev: str
    type: str
    step: int
    time: str
    host: str
    body: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Its canonical form.

        Raises:
            ValueError: the body has a float, a number beyond ``EXACT``, or no JSON.
        """
        plain = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        _refuse_inexact(plain)
        return files.canonical(plain)


def last_time(path: Path) -> str:
    """Return the time of a ledger's last whole record, unverified; "" if there is none."""
    try:
        with packed.open_file(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2 * LONGEST))
            lines = file.read(2 * LONGEST).splitlines()
    except (IntegrityError, OSError):
        return ""
    for raw in reversed(lines):
        with contextlib.suppress(ValueError):
            return parse(raw)[0].time
    return ""


def line(record: LedgerRecord) -> tuple[bytes, str]:
    """Return the line of a record, with its newline, and its hash.

    Raises:
        ValueError: as ``LedgerRecord.to_bytes``, or it is longer than ``LONGEST``.
    """
    data = record.to_bytes()
    if len(data) > LONGEST - 100:
        raise ValueError(f"a record of {len(data)} bytes is longer than {LONGEST}")
    digest = hashlib.sha256(b"\0" + data).hexdigest()
    return b'%s,"hash":"%s"}\n' % (data[:-1], digest.encode()), digest


def parse(raw: bytes) -> tuple[LedgerRecord, str]:
    """Return the record of a line without its newline, and its hash.

    Raises:
        ValueError: it is none, or not byte for byte what is written of it.
    """
    head, found, tail = raw.rpartition(_HASH)
    data = head + b"}"
    digest = hashlib.sha256(b"\0" + data).hexdigest()
    if not found or tail != b'%s"}' % digest.encode():
        raise ValueError("it has not the hash of what it holds")
    value = bounded_json.json_value(data)
    if not isinstance(value, dict):
        raise ValueError("it is no record")
    try:
        record = typed_fields.build(LedgerRecord, value)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"it is no record: {error}") from None
    # a duplicate key, or another way to write the same: two readers might read two things
    if record.to_bytes() != data:
        raise ValueError("it is not written canonically")
    if record.type not in TYPES or not files.is_time(record.time):
        raise ValueError("its type or its time is none")
    return record, digest


@dataclass(frozen=True)
class AttemptLedger:
    """The ledger of one attempt, as far as it is one.

    Attributes:
        path: its file.
        hashes: of the records, in order.
        wrong: why the line behind the last record is none; "": there is no such line.
        torn: bytes behind the last whole line, which a writer that was killed has left.
    """

    attempt: int
    path: Path
    records: tuple[LedgerRecord, ...]
    hashes: tuple[str, ...]
    wrong: str = ""
    torn: int = 0

    @property
    def head(self) -> LedgerHead | None:
        """Its last record; None if it has none."""
        if not self.records:
            return None
        return LedgerHead(self.attempt, len(self.records) - 1, self.hashes[-1])


def read(attempt: int, path: Path) -> AttemptLedger | None:
    """Read an attempt's ledger up to the first line that does not follow; None if there is none.

    Raises:
        IntegrityError: it is no plain file.
        OSError: it may not be read.
    """
    try:
        file = packed.open_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with file:
        return _read(attempt, path, file)


def _read(attempt: int, path: Path, file: IO[bytes]) -> AttemptLedger:
    records: list[LedgerRecord] = []
    hashes: list[str] = []
    wrong, torn, size = "", 0, 0
    while raw := file.readline(LONGEST + 1):
        size += len(raw)
        if size > LARGEST or len(records) == MOST:
            wrong = (
                f"it has more than {MOST} records or {LARGEST >> 20} MiB, and is read no further"
            )
            break
        if not raw.endswith(b"\n"):
            torn = len(raw)
            wrong = f"a line is longer than {LONGEST} bytes" if torn > LONGEST else ""
            break
        try:
            record, digest = parse(raw[:-1])
            if record.seq != len(records) or record.prev != (hashes[-1] if hashes else ""):
                raise ValueError("it does not follow the record before it")
        except ValueError as error:
            wrong = str(error)
            break
        records.append(record)
        hashes.append(digest)
    return AttemptLedger(attempt, path, tuple(records), tuple(hashes), wrong, torn)


def is_head(value: object) -> TypeGuard[dict[str, Any]]:
    """True for what ``dataclasses.asdict`` makes of a ``LedgerHead``."""
    return (
        isinstance(value, dict)
        and value.keys() == {"attempt", "seq", "hash"}
        and all(type(value[name]) is int and value[name] >= 0 for name in ("attempt", "seq"))
        and isinstance(value["hash"], str)
        and _DIGEST.fullmatch(value["hash"]) is not None
    )


def _refuse_inexact(value: Any) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise ValueError(f"the key {name!r} is no text")
            _refuse_inexact(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _refuse_inexact(inner)
    elif isinstance(value, float) or (isinstance(value, int) and abs(value) > EXACT):
        raise ValueError(f"{value!r} is not exact in JSON: write it as text")
