"""Files on shared storage: written once, replaced whole, or appended to; opened for reading.

These rely only on what shared file systems guarantee: ``link`` and ``rename`` are
atomic on the server, data is durable after ``fsync``, a name after ``fsync`` of its folder.
Success of a link is read from the file itself (``st_nlink``), not from the return code: NFS
may report an error for a retransmitted request that succeeded.

A reader of a folder did not necessarily make it. So every file in it is opened here: without
waiting, and only if it is a file; and what is read at once has a bound.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import secrets
import socket
import stat
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, BinaryIO

from hpcdet.errors import IntegrityError
from hpcdet.store.fs import bounded_json

FILE_MODE = 0o600
FOLDER_MODE = 0o700
LARGEST = 16 << 20
"""Bytes of a file that is read as a whole: records have a few thousand, a provenance or a history
of a long search a few million."""
HUGE = 512 << 20
"""The same of a file that grows with the trials of a search or the tensors of a model."""
_HINT = "hpcdet writes nothing like it: put the file back from a backup, or move it away"
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def now() -> str:
    """Return the time as ISO 8601 in UTC, to the microsecond, as every record has it."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def is_time(text: object) -> bool:
    """True for a time with its zone, such as ``now`` returns."""
    try:
        time = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return False
    # a day more or less, for another zone, is a date still
    return time is not None and time.tzinfo is not None and 1970 <= time.year < 9999


def canonical(value: Any) -> bytes:
    """Return JSON with sorted keys and no spaces: equal values have equal bytes.

    Half of a surrogate pair, as in a name of a file that is not UTF-8, is escaped.

    Raises:
        ValueError: for NaN and infinities, which are not JSON. Write them as strings.
    """
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode(errors="backslashreplace")


def make_folder(path: Path, mode: int = FOLDER_MODE) -> None:
    """Make a folder and those above it; durable when this returns."""
    if path.is_dir():
        return
    make_folder(path.parent, mode)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=mode)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable, on file systems that can."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def write_once(path: Path, data: bytes, mode: int = FILE_MODE) -> bool:
    """Make a file that did not exist, whole or not at all.

    Returns:
        True if this call made it; False if it was there already (nothing is changed then).
    """
    with _temporary(path, data, mode) as temporary:
        return link_once(temporary, path)


def link_once(temporary: Path, path: Path) -> bool:
    """Link a durable file to a second name, unless that exists; True if this call made it."""
    with contextlib.suppress(OSError):
        os.link(temporary, path)
    made = _same_file(temporary, path)
    if not made and not path.exists():
        os.link(temporary, path)  # raises, and says why
        made = True
    if made:
        sync_folder(path.parent)
    return made


def replace(path: Path, data: bytes | Iterable[bytes], mode: int = FILE_MODE) -> None:
    """Replace a file's contents as a whole, given at once or in pieces.

    Readers see either the old or the new contents.
    """
    temporary = _write_temporary(path, data, mode)
    try:
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def append_log(path: Path) -> BinaryIO:
    """Open a log for appending by several processes; a new one is readable by its owner only."""
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, FILE_MODE))


def open_to_read(path: Path, *, follow: bool = True) -> int:
    """Open a plain file for reading and return its descriptor. Never blocks.

    ``open`` is asked, not ``exists``: a cached negative directory entry must not hide a file.

    Args:
        follow: a link leads to the file; else the file itself has to have this name.

    Raises:
        IntegrityError: what has the name is no file (a pipe, a device, a folder, a link to itself).
        OSError: as ``open``, if it is not there or may not be read.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        fd = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    except OSError as error:
        link = "a link to itself" if follow else "a link"
        kinds = {errno.ENXIO: "a socket or a device", errno.ELOOP: link}
        if error.errno not in kinds:
            raise
        raise no_file(path, kinds[error.errno]) from error
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise no_file(path, _KINDS.get(stat.S_IFMT(mode), "something else"))
    return fd


def no_file(path: Path, kind: str) -> IntegrityError:
    """Return the error for a path that is not a plain file."""
    return damaged(path, f"it is {kind} instead of a file")


def damaged(path: Path, what: str) -> IntegrityError:
    """Return the error for a file whose contents were not written so."""
    return IntegrityError(what, where=str(path), hint=_HINT)


def open_file(path: Path) -> BinaryIO:
    """Open a plain file for reading, as ``open_to_read``, and return a file object."""
    return os.fdopen(open_to_read(path), "rb")


def open_record(path: Path) -> BinaryIO:
    """Open a file of an experiment, as ``open_file``; it may be what a stranger has made.

    A link in it that another user made leads to files of that user only: what the reader alone may
    read does not come into reports, exports and registries by somebody else's link.

    Raises:
        IntegrityError: as ``open_to_read``, and for such a link.
        OSError: as ``open``.
    """
    try:
        return os.fdopen(open_to_read(path, follow=False), "rb")
    except IntegrityError:
        link = os.lstat(path)
        if not stat.S_ISLNK(link.st_mode):
            raise
    file = open_file(path)
    if link.st_uid not in (0, os.getuid(), os.fstat(file.fileno()).st_uid):
        file.close()
        raise damaged(path, "it is another user's link to a file that is not theirs")
    return file


def read(path: Path, most: int = LARGEST) -> bytes:
    """Return all of a file's contents.

    Raises:
        IntegrityError: it is no file, or larger than ``most`` bytes.
        OSError: as ``open``.
    """
    with open_file(path) as file:
        return bounded_read(file, path, most)


def bounded_read(file: IO[bytes], path: Path, most: int = LARGEST) -> bytes:
    """Return the rest of an open file, with the bounds and errors of ``read``."""
    size = os.fstat(file.fileno()).st_size if isinstance(file, io.BufferedReader) else 0
    data = b"" if size > most else file.read(size + 1)  # room for as much as is asked for is made
    if len(data) > size:  # it has grown, or its size is not known
        data += file.read(most + 1 - len(data))
    if size > most or len(data) > most:
        raise damaged(path, f"it has more than {most} bytes")
    return data


def read_json(path: Path, large: bool = False) -> Any | None:
    """Return the JSON value of a file, or None if the file does not exist or is incomplete.

    Args:
        large: it grows with the trials of a search or the tensors of a model.

    Raises:
        IntegrityError: it is no file, or exceeds the bounds of ``bounded_json``.
    """
    try:
        if large:
            return parse_json(read(path, HUGE), path, bounded_json.MANY_NODES)
        return parse_json(read(path), path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def parse_json(data: bytes, path: Path, most: int = bounded_json.NODES) -> Any | None:
    """Return the JSON value of a file's bytes, of at most ``most`` values, as ``read_json``."""
    try:
        return bounded_json.json_value(data, most)
    except bounded_json.Unreasonable as error:
        raise damaged(path, str(error)) from error
    except ValueError:
        return None


@contextlib.contextmanager
def _temporary(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    temporary = _write_temporary(path, data, mode)
    try:
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _write_temporary(path: Path, data: bytes | Iterable[bytes], mode: int) -> Path:
    make_folder(path.parent)
    nonce = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    temporary = path.parent / f".{path.name}.{nonce}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        if mode & 0o077:  # asked for: the umask has no say
            os.fchmod(fd, mode)
        for piece in (data,) if isinstance(data, bytes) else data:
            write_all(fd, piece)
        os.fsync(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(fd)
    return temporary


def write_all(fd: int, data: bytes) -> None:
    """Call ``os.write`` until everything is written."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except OSError:
        return False
