"""The files of ended trials, read from archives or from the folder alike.

``trials/0007/history-1.zip`` holds attempts (``attempts/2/claim.json``, ``…/logs/rank-0.log``) and
controls (``control/0001.json``) of a trial that has ended, byte for byte; one beside the config
holds workers (``workers/0001-0003.0/claim.json``) of an experiment that is closed. Readers of
such a file ask here, with the name that it had, and need not know where it is now.

An archive is made whole and under a name of its own, and never changed; files are removed only
after they are in one. So a reader that finds neither, and then looks for an archive again,
misses nothing. **An archive has the last word**: an attempt or control that is in one is read
there alone, whatever a lost node's old copy may still write under its former name. A trial that
is continued gets new attempts and controls as files beside it, and a second archive at its end.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hpcdet.errors import IntegrityError
from hpcdet.store.fs import files

if TYPE_CHECKING:
    import zipfile

STEM = "history"

SMALL = 16 * 1024
"""Bytes of a record's file up to which it is kept in memory with its archive's table."""

IN_MEMORY = 1024 * 1024
"""Bytes of a file up to which it is unpacked at once; of larger ones, what is read of them."""

_CONTENTS = 16 << 20
"""Bytes of an archive's table of contents: those of some 150,000 files."""

_INSIDE = re.compile(
    r"(.*/trials/\d+)/((?:attempts|control)(?:/.+)?)"  # of a trial
    r"|(.*)/(workers(?:/.+)?)"  # of an experiment
)

_NUMBER = re.compile(r"\d+")
_ABSENT = (FileNotFoundError, NotADirectoryError)


def archive(home: Path, number: int) -> Path:
    """Return the path of an archive in a trial's or an experiment's folder, numbered from 1."""
    return home / f"{STEM}-{number}.zip"


def unit(name: str) -> str:
    """Return the unit a file is packed in: its attempt (``attempts/2``), worker or control."""
    kind, _, rest = name.partition("/")
    return name if kind == "control" else f"{kind}/{rest.partition('/')[0]}"


def _inside(path: Path) -> tuple[str, str] | None:
    """Return the folder whose archives may hold a path, and the path's name there."""
    match = _INSIDE.fullmatch(str(path))
    if match is None:
        return None
    return match[1] or match[3], match[2] or match[4]


@dataclass(frozen=True)
class Archive:
    """One archive's table of contents.

    Attributes:
        folders: names in each folder, as ``os.listdir`` would give them.
        small: contents of its small records.
    """

    path: Path
    folders: Mapping[str, frozenset[str]]
    units: frozenset[str]
    small: Mapping[str, bytes]

    @classmethod
    def read(cls, path: Path) -> Archive:
        """Read the table of contents. Raises as ``zipfile`` does for damage, and OSError."""
        folders: dict[str, set[str]] = {}
        units: set[str] = set()
        small: dict[str, bytes] = {}
        with _zip(path) as opened:
            for info in opened.infolist():
                units.add(unit(info.filename))
                name = info.filename
                while name:
                    name, _, entry = name.rpartition("/")
                    folders.setdefault(name, set()).add(entry)
                if info.filename.endswith(".json") and info.file_size <= SMALL:
                    small[info.filename] = opened.read(info)
        listed = {name: frozenset(entries) for name, entries in folders.items()}
        return cls(path, listed, frozenset(units), small)

    def open(self, name: str) -> IO[bytes]:
        """Open a member as a seekable file. Raises FileNotFoundError."""
        if (data := self.small.get(name)) is not None:
            return io.BytesIO(data)
        import zipfile
        import zlib

        try:
            with _zip(self.path) as opened:
                info = opened.getinfo(name)
                if info.file_size <= IN_MEMORY:
                    return io.BytesIO(opened.read(info))
                return opened.open(info)  # keeps what it needs of the archive open
        except KeyError:
            raise FileNotFoundError(f"{name} is not in {self.path}") from None
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise FileNotFoundError(f"{name} in {self.path} is damaged: {error}") from None


class _Listed(io.RawIOBase):
    """A file that refuses reads larger than any genuine table of contents."""

    def __init__(self, path: Path) -> None:
        self._file = files.open_file(path)

    def read(self, size: int = -1) -> bytes:
        if size > _CONTENTS:
            import zipfile

            raise zipfile.BadZipFile(f"its table of contents has {size} bytes")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()


def _zip(path: Path) -> zipfile.ZipFile:
    """Open an archive; its file is closed with its last reader."""
    import zipfile

    try:
        return zipfile.ZipFile(_Listed(path))
    except IntegrityError as error:
        raise zipfile.BadZipFile(error.what) from None


def archives(home: Path | str) -> Iterator[Archive]:
    """Yield the archives in a folder, in order; a damaged one counts as absent."""
    return (read for read in _archives(home) if read is not None)


def damaged(home: Path) -> bool:
    """True if an archive in a folder is unreadable, so that the trial's state is unknown."""
    return any(read is None for read in _archives(home))


def _archives(home: Path | str) -> Iterator[Archive | None]:
    for number in itertools.count(1):
        try:
            # most have none, and a text costs less than a path at every file that is opened
            stat = os.stat(f"{home}/{STEM}-{number}.zip")
        except OSError:
            return
        try:
            yield _read(archive(Path(home), number), (stat.st_ino, stat.st_mtime_ns, stat.st_size))
        except OSError:
            yield None  # perhaps only now


@functools.lru_cache(maxsize=4096)
def _read(path: Path, stamp: tuple[int, ...]) -> Archive | None:  # noqa: ARG001 - a part of the cache's key
    import zipfile
    import zlib

    try:
        return Archive.read(path)
    except (zipfile.BadZipFile, zlib.error, EOFError):
        return None


@dataclass(frozen=True)
class PackedFile:
    """A file or folder in an archive."""

    archive: Archive
    name: str

    def __str__(self) -> str:
        return f"{self.archive.path}:{self.name}"


def find(path: Path) -> PackedFile | None:
    """Return the archive member that holds a path of an experiment; None if none does."""
    inside = _inside(path)
    if inside is None:
        return None
    home, name = inside
    if "/" not in name:  # a folder of units: each is in an archive, or is not
        return None
    wanted = unit(name)
    return next((PackedFile(one, name) for one in archives(home) if wanted in one.units), None)


def open_file(path: Path) -> IO[bytes]:
    """Open a file of an experiment for reading, packed or not.

    Raises:
        FileNotFoundError, NotADirectoryError: it is neither there nor in an archive.
        IntegrityError: it is no plain file.
    """
    inside = find(path)
    if inside is None:
        try:
            return files.open_record(path)
        except _ABSENT:
            inside = find(path)  # perhaps it was packed just now
            if inside is None:
                raise
    return inside.archive.open(inside.name)


def read_bytes(path: Path) -> bytes:
    """Return a file's contents, packed or not. Raises as ``open_file`` and ``files.read``."""
    try:
        return _read_bytes(path)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return _read_bytes(path)  # packed by another host while it was open here


def _read_bytes(path: Path) -> bytes:
    with open_file(path) as file:
        return files.bounded_read(file, path)


def read_json(path: Path) -> Any | None:
    """Return the JSON value of a file, packed or not, as ``files.read_json``."""
    try:
        return files.parse_json(read_bytes(path), path)
    except _ABSENT:
        return None


def names(folder: Path) -> list[str]:
    """Return the names in a folder, packed or not, unordered; none for an absent folder."""
    member = find(folder)
    if member is not None:
        return list(member.archive.folders.get(member.name, ()))
    found: set[str] = set()
    with contextlib.suppress(*_ABSENT):
        found.update(os.listdir(folder))
    # after the files, which go only when an archive has them
    inside = _inside(folder)
    if inside is not None:
        home, name = inside
        for one in archives(home):
            found.update(one.folders.get(name, ()))
    return list(found)


def numbers(folder: Path, suffix: str = "") -> list[int]:
    """Return the numbers ``n`` of a folder's entries ``n`` + suffix, ascending, packed or not.

    Listing the folder refreshes what a network file system has cached of it.
    """
    stems = (name.removesuffix(suffix) for name in names(folder) if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if _NUMBER.fullmatch(stem))


def exists(path: Path) -> bool:
    """True if a file, or an attempt's folder, exists, packed or not."""
    inside = find(path)
    if inside is None:
        if path.exists():
            return True
        inside = find(path)
    if inside is None:
        return False
    folder, _, entry = inside.name.rpartition("/")
    return entry in inside.archive.folders.get(folder, ())


def where(path: Path) -> str:
    """Return a path for messages: of a packed file, the archive and its name in it."""
    return str(find(path) or path)
