"""Manifests of sources: the digest of every file, of every record if wanted, and of all of it.

The digest of all is the root of a Merkle tree (RFC 6962, SHA-256), whose first leaf says whose
data they are and whose other leaves are the files in the order of their names. A policy names the
root. Record digests lie beside the manifest, 32 bytes each, so that any one of them is found
without reading the others.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from hpcdet.errors import IntegrityError
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.merkle import Merkle
from hpcdet.store.folder import trust
from hpcdet.store.folder.derived_store import KnownDigests
from hpcdet.store.fs import bounded_json, files, typed_fields

SCHEMA = "hpcdet-manifest/1"
RECORDS = ".records"
"""What the name of the file with record digests adds to the manifest's."""
SAMPLE = 16
"""Files whose contents are compared where not all are."""
SOURCE_ID = re.compile(r"[a-z0-9._-]{1,64}")

_CHUNK = 1 << 20
_LARGEST_RECORD = 256 << 20
_BYTES = re.compile("[\udc80-\udcff]")
"""What Python makes of bytes in a name that are not UTF-8."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

Watch = Callable[[int], None]
"""Told of the bytes that were read, piece by piece."""


@dataclass(frozen=True)
class ListedFile:
    """A file of a source: its name below the folder with ``/``, its digest and size in bytes."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class RecordDigests:
    """The records of a source, in the order of its files.

    Attributes:
        format: ``lines``, ``files`` or ``bytes:N``.
        root: Merkle root of the records' digests.
    """

    format: str
    count: int
    root: str


@dataclass(frozen=True)
class SourceManifest:
    """The files of a source.

    Attributes:
        source: its id in policies.
        about: what else its owner says of it: ``name``, ``license``.
        folder: where the files lie, as seen from the manifest; no part of the root, as folders
            may be moved.
    """

    source: str
    files: tuple[ListedFile, ...]
    about: dict[str, str] = field(default_factory=dict)
    records: RecordDigests | None = None
    folder: str = "."

    @property
    def root(self) -> str:
        """Merkle root, ``sha256:…``."""
        tree = Merkle()
        records = asdict(self.records) if self.records else None
        tree.add(
            files.canonical(
                {"schema": SCHEMA, "source": self.source, "about": self.about, "records": records}
            )
        )
        for one in self.files:
            tree.add(files.canonical(asdict(one)))
        return tree.root

    def to_bytes(self) -> bytes:
        """The file: the same bytes for the same content."""
        plain = {"schema": SCHEMA, "root": self.root, **asdict(self)}
        text = json.dumps(plain, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
        return text.encode() + b"\n"

    @staticmethod
    def load(path: Path) -> SourceManifest:
        """Read a manifest.

        Raises:
            GovernanceBroken: it is not what was written (G111), or of another version (G101).
            ConfigError: others than its owner may change it.
            OSError: it is not there, or may not be read.
        """
        with trust.open_trusted(path, "manifest", any_owner=True) as file:
            data = files.bounded_read(file, path, files.HUGE)
        try:
            raw = bounded_json.json_value(data, bounded_json.MANY_NODES)
            if raw["schema"] != SCHEMA:
                raise GovernanceBroken("G101", "its version is unknown", where=str(path))
            found = typed_fields.build(SourceManifest, raw)
            found._refuse()
            # byte for byte, or a second reader might find another value in the same file
            if found.to_bytes() != data:
                raise ValueError("it is not what was written")
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            what = f"it is no manifest of a source: {error}"
            hint = "put it back from a backup, or make it again: hpcdet data manifest"
            raise GovernanceBroken("G111", what, where=str(path), hint=hint) from None
        return found

    def _refuse(self) -> None:
        if not SOURCE_ID.fullmatch(self.source):
            raise ValueError(f"{typed_fields.short(self.source)} is no id of a source")
        names = [one.name for one in self.files]
        if not names or names != sorted(set(names)):
            raise ValueError("its files are not in the order of their names, each once")
        outside = next((one for one in names if not _is_below(one)), None)
        if outside is not None:
            raise ValueError(f"it lists {typed_fields.short(outside)}, outside of its folder")
        digests = [one.sha256 for one in self.files]
        if self.records is not None:
            record_format(self.records.format)
            digests.append(self.records.root)
        if not all(map(_DIGEST.fullmatch, digests)) or any(one.bytes < 0 for one in self.files):
            raise ValueError("a digest is not sha256: and 64 hex digits, or a size is negative")


def make(
    folder: Path,
    source: str,
    *,
    about: dict[str, str] | None = None,
    records: str = "",
    sidecar: BinaryIO | None = None,
    watch: Watch = lambda _: None,
    only: Sequence[str] | None = None,
    known: KnownDigests | None = None,
) -> SourceManifest:
    """Read a source's files and return their manifest.

    Args:
        only: list these files alone, of all below the folder.
        known: files that it knows are not read again; no record has a digest then.
        records: also digest every record: ``lines`` (of text, their ends left out), ``files`` (each
            is one) or ``bytes:N``; "": none.
        sidecar: gets the record digests, 32 bytes each.
        watch: told of the bytes read.

    Raises:
        ValueError: the id, or the format of records, is none.
        IntegrityError: the folder is empty, a link leads out of it, something in it is no file, or
            a file changed while it was read.
        OSError: a file may not be read.
    """
    if not SOURCE_ID.fullmatch(source):
        raise ValueError(f"{typed_fields.short(source)} is no id of a source: a-z, 0-9, . _ -")
    split = record_format(records) if records else None
    tree, listed = Merkle(), []
    for name in names(folder) if only is None else only:
        with _opened(folder, name) as file:
            status = os.fstat(file.fileno())
            if known is not None and (digest := known.get(status)):
                watch(status.st_size)
                listed.append(ListedFile(name, digest, status.st_size))
                continue
            digester = _Digester(split, tree, sidecar)
            size = _read(file, name, digester.feed, watch)
            listed.append(ListedFile(name, digester.end(), size))
            if known is not None:
                known.put(status, listed[-1].sha256)
    found = RecordDigests(records, tree.count, tree.root) if records else None
    return SourceManifest(source, tuple(listed), about or {}, found)


def names(folder: Path) -> list[str]:
    """Return the files below a folder, hidden ones too, in the order of their names.

    Raises:
        IntegrityError: there is none, something is no file, or a folder is a link.
    """
    found = sorted(_walk(folder, PurePosixPath()))
    if not found:
        raise IntegrityError("there are no files in it", where=str(folder), hint="name another")
    return found


def _walk(folder: Path, below: PurePosixPath) -> Iterator[str]:
    with os.scandir(folder / below) as entries:
        for entry in entries:
            name = below / entry.name
            where = str(folder / name)
            if _BYTES.search(entry.name):
                raise IntegrityError("its name is not UTF-8", where=repr(where), hint="rename it")
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(folder, name)
            elif entry.is_symlink() and entry.is_dir():
                hint = "put the files there, or make a manifest of that folder"
                raise IntegrityError("a folder is a symbolic link", where=where, hint=hint)
            else:
                yield str(name)


def verify(
    manifest: SourceManifest, folder: Path, *, deep: bool = False, watch: Watch = lambda _: None
) -> list[str]:
    """Compare a folder with its manifest; returns what is wrong, a line for each file.

    Names and sizes of all files are compared, and the contents of all (``deep``) or of ``SAMPLE``
    that are drawn anew each time.
    """
    listed = {one.name: one for one in manifest.files}
    there = set(names(folder))
    wrong = [f"{name}: is missing" for name in sorted(listed.keys() - there)]
    wrong += [f"{name}: is not listed" for name in sorted(there - listed.keys())]
    both = sorted(listed.keys() & there)
    drawn = set(both if deep else random.SystemRandom().sample(both, min(SAMPLE, len(both))))
    for name in both:
        try:
            wrong += _compare(folder, listed[name], name in drawn, watch)
        except (IntegrityError, OSError) as error:
            said = error.what if isinstance(error, IntegrityError) else error.strerror
            wrong.append(f"{name}: {said}")
    return wrong


def _compare(folder: Path, listed: ListedFile, whole: bool, watch: Watch) -> Iterator[str]:
    with _opened(folder, listed.name) as file:
        size = os.fstat(file.fileno()).st_size
        if size != listed.bytes:
            yield f"{listed.name}: has {size} bytes, {listed.bytes} are listed"
        elif whole:
            digester = _Digester(None, Merkle(), None)
            _read(file, listed.name, digester.feed, watch)
            if digester.end() != listed.sha256:
                yield f"{listed.name}: its contents are not those that are listed"


def spot_check(
    source: str,
    count: int,
    digests: Path,
    fetch: Callable[[int], bytes],
    indices: Iterable[int],
) -> list[str]:
    """Compare records, as the training reads them, with their digests.

    Args:
        count: of the source's records; ``digests``: their file, as ``verify_records`` found it.
        fetch: returns the bytes of a record by its index from 0.

    Returns:
        A line for each record that differs.

    Raises:
        GovernanceBroken: the manifest has no records, or an index is none of theirs (G111).
    """
    wrong: list[str] = []
    with files.open_file(digests) as file:
        for index in indices:
            if not 0 <= index < count:
                what, hint = f"record {index} is none of {count}", "make it with --records"
                raise GovernanceBroken("G111", what, where=str(digests), hint=hint)
            file.seek(32 * index)
            if file.read(32) != hashlib.sha256(fetch(index)).digest():
                wrong.append(f"record {index} of {source} is not what was listed")
    return wrong


def verify_records(records: RecordDigests, digests: Path) -> str:
    """Compare the file of record digests with their root; returns what is wrong, or ""."""
    tree = Merkle()
    try:
        with files.open_file(digests) as file:
            if os.fstat(file.fileno()).st_size != 32 * records.count:
                return f"it does not hold {records.count} digests"
            while leaf := file.read(32):
                tree.add(leaf)
    except FileNotFoundError:
        return "is missing"
    return "" if tree.root == records.root else "it is not what was written"


def record_format(text: str) -> int:
    """Bytes of a record; 0: lines; -1: files.

    Raises:
        ValueError: there is no such format.
    """
    if text in ("lines", "files"):
        return 0 if text == "lines" else -1
    match = re.fullmatch(r"bytes:([1-9]\d{0,8})", text)
    if not match or int(match[1]) > _LARGEST_RECORD:
        raise ValueError(
            f"{typed_fields.short(text)} is no format of records: lines, files, bytes:N"
        )
    return int(match[1])


class _Digester:
    """Digests of a file and, if wanted, of its records, fed piece by piece."""

    def __init__(self, split: int | None, tree: Merkle, sidecar: BinaryIO | None) -> None:
        self._whole = hashlib.sha256()
        self._split, self._tree, self._sidecar = split, tree, sidecar
        self._rest = bytearray()

    def feed(self, piece: bytes) -> None:
        self._whole.update(piece)
        if self._split is None or self._split < 0:
            return
        self._rest += piece
        done = 0
        if self._split:
            while len(self._rest) - done >= self._split:
                self._record(self._rest[done : done + self._split])
                done += self._split
        else:
            while (end := self._rest.find(b"\n", done)) >= 0:
                self._record(self._rest[done:end].removesuffix(b"\r"))
                done = end + 1
        del self._rest[:done]
        if len(self._rest) > _LARGEST_RECORD:
            raise ValueError(f"a record has more than {_LARGEST_RECORD} bytes: are these lines?")

    def end(self) -> str:
        """The file's digest; what is left is its last record."""
        if self._split is not None and self._split < 0:
            self._add(self._whole.digest())
        elif self._rest:
            self._record(self._rest)
        return f"sha256:{self._whole.hexdigest()}"

    def _record(self, record: bytearray) -> None:
        self._add(hashlib.sha256(record).digest())

    def _add(self, digest: bytes) -> None:
        self._tree.add(digest)
        if self._sidecar is not None:
            self._sidecar.write(digest)


def _opened(folder: Path, name: str) -> BinaryIO:
    """Open a file below a folder, wherever its name or a link in it leads meanwhile."""
    fd = files.open_to_read(folder / name)
    real = Path(f"/proc/self/fd/{fd}").readlink()
    if not real.is_relative_to(folder.resolve()):
        os.close(fd)
        hint = "put a copy in its place, or remove the link"
        raise IntegrityError("it leads out of the folder", where=str(folder / name), hint=hint)
    return os.fdopen(fd, "rb")


def _read(file: BinaryIO, name: str, feed: Callable[[bytes], None], watch: Watch) -> int:
    """Read an open file to its end; returns its bytes. Raises ``IntegrityError`` if it changes."""
    before, size = os.fstat(file.fileno()), 0
    while size <= before.st_size and (piece := file.read(_CHUNK)):  # a log might grow for ever
        feed(piece)
        size += len(piece)
        watch(len(piece))
    after = os.fstat(file.fileno())
    if (before.st_mtime_ns, size) != (after.st_mtime_ns, after.st_size):
        hint = "do it again when nothing writes there"
        raise IntegrityError("it changed while it was read", where=name, hint=hint)
    return size


def _is_below(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return name == str(PurePosixPath(name)) and name != "." and not {"..", "/"} & set(parts)
