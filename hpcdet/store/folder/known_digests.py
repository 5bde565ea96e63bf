"""Digests of files that were read before: a cache of this host and user.

A file is known by device, inode, size and both of its times. The cache can be removed at any time:
everything is read again then, and no answer changes.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from types import TracebackType

from hpcdet.errors import HpcdetError
from hpcdet.store.folder import private_folders

_SETTLED_S = 3.0
"""What changed less than this ago may change again without another time."""
_TABLE = (
    "CREATE TABLE IF NOT EXISTS files (device INTEGER, inode INTEGER, size INTEGER, "
    "modified INTEGER, changed INTEGER, digest TEXT, PRIMARY KEY (device, inode)) WITHOUT ROWID"
)
_FIND = (
    "SELECT digest FROM files "
    "WHERE device = ? AND inode = ? AND size = ? AND modified = ? AND changed = ?"
)


class KnownDigests:
    """The cache; where it cannot be opened, read or written, nothing is known."""

    def __init__(self) -> None:
        self._base: sqlite3.Connection | None = None

    def __enter__(self) -> KnownDigests:
        with contextlib.suppress(HpcdetError, OSError, sqlite3.Error):
            path = private_folders.of_host("digests") / "digests.sqlite"
            try:
                self._base = self._opened(str(path))
            except sqlite3.DatabaseError:  # it is no database any more
                path.unlink()
                self._base = self._opened(str(path))
        return self

    @staticmethod
    def _opened(path: str) -> sqlite3.Connection:
        base = sqlite3.connect(path, isolation_level=None)
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("PRAGMA synchronous = NORMAL")
        base.execute(_TABLE)
        return base

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._base is not None:
            self._base.close()
            self._base = None

    def get(self, status: os.stat_result) -> str:
        """Return the digest of a file that looks like this; "" if it is not known."""
        if self._base is None:
            return ""
        with contextlib.suppress(sqlite3.Error):
            for (digest,) in self._base.execute(_FIND, _key(status)):
                return str(digest)
        return ""

    def put(self, status: os.stat_result, digest: str) -> None:
        """Keep the digest of a file that looked like this before it was read, and still does."""
        newest = max(status.st_mtime_ns, status.st_ctime_ns)
        if self._base is None or time.time_ns() - newest < _SETTLED_S * 1e9:
            return
        with contextlib.suppress(sqlite3.Error):
            row = (*_key(status), digest)
            self._base.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", row)


def _key(status: os.stat_result) -> tuple[int, ...]:
    # inodes may exceed what SQLite has for a whole number
    numbers = (status.st_dev, status.st_ino, status.st_size)
    signed = [(number + 2**63) % 2**64 - 2**63 for number in numbers]
    return (*signed, status.st_mtime_ns, status.st_ctime_ns)
