"""The store of what this host and user have derived from files: one database, on a local disk.

It holds nothing of its own: removing it changes no answer, and everything is read again. So no
failure of it is one of its user's. Where it cannot be opened, read or written, nothing is known.
Of a value with another checksum than it was written with, nothing is known either.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdet import __version__
from hpcdet.errors import HpcdetError
from hpcdet.store.folder import private_folders
from hpcdet.store.fs import files

if TYPE_CHECKING:
    import sqlite3

SCHEMA = 4
"""Raised whenever something else is kept under a name."""

_SETTLED_S = 3.0
"""What changed less than this ago may change again without another time."""
_KEEP_DAYS = 30
"""A value is removed so many days after it was written."""
_LARGEST = 2 << 30
"""Bytes of a store that is begun anew."""
_AT_ONCE = 8 << 20
"""Bytes of values that wait to be written at most."""
_WAIT_S = 0.5
"""Seconds to wait for another process that writes."""
_DAY_S = 86400

_TABLE = (
    "CREATE TABLE IF NOT EXISTS known "
    "(home TEXT, part TEXT, day INTEGER, crc INTEGER, value BLOB, PRIMARY KEY (home, part))"
)


Value = bytes | Callable[[], bytes]


class DerivedStore:
    """The store; safe to use by several threads, and by several processes at once.

    A value has a ``home``, as the identity of a folder, and is a ``part`` of it.
    """

    def __init__(self) -> None:
        self._base: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, str], Value] = {}
        self._size = 0
        self._failed: tuple[type[Exception], ...] = ()
        self._path: Path | None = None
        with contextlib.suppress(HpcdetError, OSError, ImportError):
            import sqlite3

            self._failed = (sqlite3.Error, OSError)
            with contextlib.suppress(*self._failed):
                self._open(private_folders.of_host("derived"))

    def _open(self, folder: Path) -> None:
        import sqlite3

        path = folder / f"{__version__}.{SCHEMA}.sqlite"
        _forget_old(folder)
        if path.exists() and path.stat().st_size > _LARGEST:
            _remove(path)
        self._path = path
        try:
            self._base = _connected(path)
        except sqlite3.OperationalError:  # locked, or the disk is full
            self._base = None
        except sqlite3.DatabaseError:  # it is no database any more
            _remove(path)
            self._base = _connected(path)

    def get(self, home: str, part: str) -> bytes | None:
        """Return a value; None if it is not known."""
        with self._lock:
            if (value := self._waiting.get((home, part))) is not None:
                return _made(value)
        found = self._rows("home = ? AND part = ?", (home, part))
        return found.get(part)

    def every(self, home: str) -> dict[str, bytes]:
        """Return all known values of a home by their parts."""
        found = self._rows("home = ?", (home,))
        with self._lock:
            waiting = [(part, value) for (of, part), value in self._waiting.items() if of == home]
        found |= {part: _made(value) for part, value in waiting}
        return found

    def put(self, home: str, part: str, value: Value) -> None:
        """Keep a value in place of the former one; written with others, or at the end.

        Args:
            value: or what makes it, and is called when it is written: of what changes until then,
                only the last one is made.
        """
        if self._base is None:
            return
        with self._lock:
            self._waiting[home, part] = value
            self._size += len(value) if isinstance(value, bytes) else 0
            full = self._size > _AT_ONCE
        if full:
            self.flush()

    def flush(self) -> None:
        """Write what waits. If that fails, it is dropped, and nothing more is kept."""
        with self._lock:
            waiting, self._waiting, self._size = self._waiting, {}, 0
            if self._base is None or not waiting:
                return
            today = int(time.time()) // _DAY_S
            made = ((home, part, _made(value)) for (home, part), value in waiting.items())
            rows = ((home, part, today, zlib.crc32(value), value) for home, part, value in made)
            try:
                self._base.execute("BEGIN IMMEDIATE")
                self._base.executemany("INSERT OR REPLACE INTO known VALUES (?, ?, ?, ?, ?)", rows)
                self._base.execute("COMMIT")
            except self._failed as error:
                self._give_up(error)

    def close(self) -> None:
        """Write what waits, and close the database."""
        self.flush()
        with self._lock, contextlib.suppress(*self._failed):
            if self._base is not None:
                self._base.close()
            self._base = None

    def _rows(self, where: str, of: tuple[str, ...]) -> dict[str, bytes]:
        with self._lock:
            if self._base is None:
                return {}
            try:
                rows = self._base.execute(f"SELECT part, crc, value FROM known WHERE {where}", of)
                return {
                    part: value
                    for part, crc, value in rows
                    if isinstance(value, bytes) and zlib.crc32(value) == crc
                }
            except self._failed as error:
                self._give_up(error)
        return {}

    def _give_up(self, error: Exception) -> None:
        """Use the store no more; make one that is damaged anew, once."""
        import sqlite3

        base, self._base = self._base, None
        with contextlib.suppress(*self._failed):
            if base is not None:
                base.close()
            if self._path is not None and not isinstance(error, sqlite3.OperationalError):
                _remove(self._path)
                self._base, self._path = _connected(self._path), None


def _made(value: Value) -> bytes:
    return value if isinstance(value, bytes) else value()


def _connected(path: Path) -> sqlite3.Connection:
    import sqlite3

    os.close(os.open(path, os.O_RDWR | os.O_CREAT, files.FILE_MODE))
    base = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
    try:
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("PRAGMA synchronous = OFF")  # values have checksums, and are derived
        today = int(time.time()) // _DAY_S
        [(swept,)] = base.execute("PRAGMA user_version")
        if swept != today:
            base.execute(_TABLE)
            base.execute("DELETE FROM known WHERE day < ?", (today - _KEEP_DAYS,))
            base.execute(f"PRAGMA user_version = {today}")
    except BaseException:
        base.close()
        raise
    return base


def _forget_old(folder: Path) -> None:
    """Remove the stores of other versions that were not written for ``_KEEP_DAYS`` days."""
    for file in folder.glob("*.sqlite"):
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > _KEEP_DAYS * _DAY_S:
                _remove(file)


def _remove(path: Path) -> None:
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)


_here: tuple[Any, DerivedStore] | None = None


def opened() -> DerivedStore:
    """Return the store of this process, which is opened at the first call."""
    global _here
    key = (os.getpid(), os.environ.get("XDG_CACHE_HOME"), os.environ.get("TMPDIR"))
    if _here is None or _here[0] != key:
        if _here is not None and _here[0][0] == key[0]:
            _here[1].close()
        _here = key, DerivedStore()
    return _here[1]


def reopened() -> DerivedStore:
    """Return the store of this process as a new process would find it."""
    _at_end()
    return opened()


@atexit.register
def _at_end() -> None:
    global _here
    if _here is not None and _here[0][0] == os.getpid():
        _here[1].close()
    _here = None


# -- digests of files --------------------------------------------------------------------------


class KnownDigests:
    """Digests of files that were read before.

    A file is known by device, inode, size and both of its times.
    """

    def __init__(self) -> None:
        self._store = opened()

    def __enter__(self) -> KnownDigests:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.flush()

    def get(self, status: os.stat_result) -> str:
        """Return the digest of a file that looks like this; "" if it is not known."""
        known = self._store.get(_file(status), "digest") or b""
        look, _, digest = known.decode("ascii", "replace").partition(" ")
        return digest if look == _look(status) else ""

    def put(self, status: os.stat_result, digest: str) -> None:
        """Keep the digest of a file that looked like this before it was read, and still does."""
        newest = max(status.st_mtime_ns, status.st_ctime_ns)
        if time.time_ns() - newest >= _SETTLED_S * 1e9:
            self._store.put(_file(status), "digest", f"{_look(status)} {digest}".encode())


def identity(status: os.stat_result) -> str:
    """Return what tells a file or folder of this host from every other."""
    return f"{status.st_dev:x}:{status.st_ino:x}"


def _file(status: os.stat_result) -> str:
    return f"file {identity(status)}"


def _look(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"
