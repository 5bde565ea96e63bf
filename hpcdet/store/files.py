"""The three ways a file is ever written: once, replaced as a whole, or appended to.

They rest on what shared file systems keep their word about: ``link`` and ``rename`` are
atomic on the server, data is durable after ``fsync``, a name after ``fsync`` of its folder.
Success of a link is read from the file itself (``st_nlink``), not from the return code: NFS
may report an error for a retransmitted request that succeeded.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

FILE_MODE = 0o600
FOLDER_MODE = 0o700


def now() -> str:
    """The time as ISO 8601 in UTC, to the microsecond: what every record carries."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: equal values give equal bytes.

    Raises:
        ValueError: for NaN and infinities, which are not JSON. Write them as strings.
    """
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def make_folder(path: Path, mode: int = FOLDER_MODE) -> None:
    """Make a folder and those above it; durable when this returns."""
    if path.is_dir():
        return
    make_folder(path.parent, mode)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=mode)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable. File systems that cannot are left in peace."""
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
    """Give a durable file a second name, unless somebody has it; True if this call did."""
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
    """Put new contents, at once or in pieces, in place of the old ones.

    Readers see the one or the other.
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
    """A log that processes write to, opened at its end; only its owner may read what is made."""
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, FILE_MODE))


def read_json(path: Path) -> Any | None:
    """The JSON value of a file, or None if the file is not there or not complete.

    ``open`` is asked, not ``exists``: a cached negative directory entry must not hide a file.
    """
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
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
    """``os.write`` until everything is written."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except OSError:
        return False
