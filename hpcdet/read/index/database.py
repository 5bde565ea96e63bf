"""``index.sqlite``: an experiment as tables, for SQL and Datasette, derived from its files.

    experiments  trials  hyperparameters  attempts  metrics  checkpoints  events  jobs
    v_leaderboard  v_attempts  v_waste

SQLite over network file systems is not safe for writers. So it is written on a disk of this
host, by one process at a time, and what comes of that replaces ``index.sqlite`` at once;
readers open what never changes. Where the experiment cannot be written, it stays on this host.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcdet.errors import IntegrityError, NotFound
from hpcdet.read.index import tables
from hpcdet.read.index.updating import bring_up_to_date
from hpcdet.store.folder import home, private_folders, trust
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files

__all__ = ["differences", "local_folder", "place", "query", "rebuild", "snapshot", "update"]

_PIECE = 1 << 20
_KEEP_S = 30 * 86400.0
_HINT = "remove it, or let XDG_CACHE_HOME name a folder on a disk of this host"

Row = dict[str, Any]


def update(paths: ExperimentPaths) -> Path:
    """Bring the index of an experiment up to date; returns where it is (see ``place``).

    Raises:
        Unavailable: this host has no folder for it that is only the user's.
        OSError: it cannot be written there.
    """
    with _working_copy(paths) as file:
        try:
            bring_up_to_date(file, paths)
        except sqlite3.DatabaseError:  # damaged by whatever: it is derived
            _remove(file)
            bring_up_to_date(file, paths)
        if _version(file) != _version(paths.index) and _may_write(paths):
            files.replace(paths.index, _pieces(file))
        return place(paths)


def rebuild(paths: ExperimentPaths) -> Path:
    """Build the index of an experiment from its files alone; returns where it is."""
    with _working_copy(paths) as file:
        _remove(file)
        bring_up_to_date(file, paths, afresh=True)
        if not trust.is_own(paths.root):
            return place(paths)
        files.replace(paths.index, _pieces(file))
    return paths.index


def place(paths: ExperimentPaths) -> Path:
    """Return the path of the index: in the experiment, or on this host if it stays as it is.

    It does where it cannot be written, or belongs to another user.
    """
    if _may_write(paths):
        return paths.index
    here = _local(paths)
    return here if here.is_file() or not paths.index.is_file() else paths.index


def _may_write(paths: ExperimentPaths) -> bool:
    return trust.is_own(paths.root) and os.access(paths.root, os.W_OK)


def snapshot(paths: ExperimentPaths, to: Path) -> None:
    """Build the index of an experiment from its files at ``to``, replacing what is there."""
    with _built(paths) as file:
        files.replace(to, _pieces(file))


def differences(paths: ExperimentPaths) -> list[str]:
    """Return the tables and views of the index that differ from the experiment's files.

    Raises:
        NotFound: there is no index.
    """
    present = place(paths)
    if not present.is_file():
        hint = f"make it: hpcdet index rebuild {home.called(paths)}"
        raise NotFound("there is no index", where=str(present), hint=hint)
    names = (*tables.TABLES, *tables.VIEWS)
    with _built(paths) as file:
        return [name for name in names if _all(present, name) != _all(file, name)]


def query(paths: ExperimentPaths, sql: str) -> list[Row]:
    """Return the rows of a query on the index, opened as read-only and immutable.

    Raises:
        sqlite3.Error: the index is not there, or the query is wrong.
    """
    return _query(place(paths), sql)


def _all(file: Path, name: str) -> list[Row] | None:
    """Return every row of a table or view; None if it does not exist or cannot be read."""
    order = ", ".join(f'"{key}"' for key in tables.TABLES[name].keys) if name[:2] != "v_" else "1"
    try:
        return _query(file, f"select * from {name} order by {order}")
    except sqlite3.DatabaseError:
        return None


def _query(file: Path, sql: str) -> list[Row]:
    try:
        fd = files.open_to_read(file)
    except (OSError, IntegrityError) as error:
        raise sqlite3.OperationalError(f"unable to open database file: {error}") from error
    try:
        db = sqlite3.connect(f"file:/proc/self/fd/{fd}?mode=ro&immutable=1", uri=True)
        try:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute(sql)]
        finally:
            db.close()
    finally:
        os.close(fd)


@contextlib.contextmanager
def _built(paths: ExperimentPaths) -> Iterator[Path]:
    """Provide a newly built index while the context lasts."""
    with tempfile.TemporaryDirectory(prefix="index-", dir=local_folder()) as folder:
        file = Path(folder) / "index.sqlite"
        bring_up_to_date(file, paths, afresh=True)
        yield file


# -- the working copy ------------------------------------------------------------------------


def local_folder() -> Path:
    """Return the folder of indexes on this host. Raises as ``private_folders.of_host``."""
    return private_folders.of_host("index")


def _local(paths: ExperimentPaths) -> Path:
    where = hashlib.sha256(os.fsencode(paths.root.resolve())).hexdigest()[:16]
    return local_folder() / f"{paths.id}.{where}.sqlite"


@contextlib.contextmanager
def _working_copy(paths: ExperimentPaths) -> Iterator[Path]:
    """Provide this host's own copy of the index; a newer one of another host is copied first."""
    file = _local(paths)
    _forget_old(file.parent)
    fd = os.open(file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, files.FILE_MODE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if _version(file) != _version(paths.index) and _newer(paths.index, file):
            _remove(file)
            files.replace(file, _pieces(paths.index))
        yield file
    finally:
        os.close(fd)


def _forget_old(folder: Path) -> None:
    """Remove copies without recent changes, whose experiments may be gone."""
    for file in folder.glob("*.sqlite"):
        with contextlib.suppress(OSError):  # somebody else removes it, or is at work on it
            if time.time() - file.stat().st_mtime < _KEEP_S:
                continue
            with file.with_suffix(".lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(file)


def _newer(one: Path, other: Path) -> bool:
    try:
        return not other.exists() or one.stat().st_mtime > other.stat().st_mtime
    except FileNotFoundError:
        return False


def _remove(file: Path) -> None:
    """Remove a database and the files that a killed transaction of SQLite may have left."""
    file.unlink(missing_ok=True)
    file.with_name(f"{file.name}-journal").unlink(missing_ok=True)


def _version(file: Path) -> str:
    """Return the version, which every change replaces; "" if there is no readable index."""
    try:
        rows = _query(file, "select value_json from remembered where key = 'version'")
    except sqlite3.Error:
        return ""
    return str(rows[0]["value_json"]) if rows else ""


def _pieces(file: Path) -> Iterator[bytes]:
    with files.open_file(file) as source:
        while piece := source.read(_PIECE):
            yield piece
