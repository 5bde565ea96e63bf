"""Data on the local disk of a node (``data.stage``): copied once per allocation, and verified.

    LOCAL/hpcdet-UID/data-KEY/             the copies, by their own names
    LOCAL/hpcdet-UID/data-KEY.lock         held by who copies, and shared by all who read

The folder has another name where a user has taken that of another one. The copies are never the
truth: what nobody uses may be removed at any time, and is by whoever comes next. Locks by ``flock``
hold on a node's own disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hpcdet.errors import ConfigError, HpcdetError, IntegrityError
from hpcdet.store.folder import private_folders
from hpcdet.store.fs import files

PLACE, JOB = "HPCDET_STAGE", "HPCDET_STAGE_JOB"
"""Variables that tell ranks on which disk, and for which allocation."""
FOLDER = "HPCDET_DATA"
"""The variable that tells code where its data is."""
DIGEST = "HPCDET_DATA_DIGEST"
"""SHA-256 over paths and contents of the data, as 64 hex digits."""

_KEY = "data.stage"
_CHUNK = 1 << 20
_LOOK_S = 0.2
_RECORD = ".digest.json"


class LeftEarly(Exception):
    """A notice to leave came before the data was there."""


def expanded(text: str, key: str = _KEY) -> Path:
    """Return a path with this process's variables and ``~``. ``key``: of the config, for errors.

    Raises:
        ConfigError: a variable is not set here, or it is no absolute path.
    """
    path = Path(os.path.expandvars(text)).expanduser()
    if not path.is_absolute() or "$" in str(path):
        raise ConfigError(f"{text} is {path} here, which is no path", where=key)
    return path


def staged(
    sources: Sequence[str],
    disk: str,
    job: str,
    heard: Callable[[], object],
    *,
    key: str = _KEY,
) -> tuple[Path, str, str]:
    """Copy data to a node's disk, unless that has been done for this allocation.

    The lock of the copies is held until this process ends, whatever it becomes.

    Args:
        sources: files and folders; no two of the same name.
        disk: the node's; its variables are expanded here.
        job: the allocation.
        heard: true once this process has to leave.
        key: of the config that asks for it, for errors.

    Returns:
        The folder that has each of them by its name, the digest, and why these are links to the
        originals; "" if they are copies.

    Raises:
        ConfigError: one is not there.
        Unavailable: other users may put another folder in the place of this one.
        IntegrityError: a copy differs from what was read.
        LeftEarly: a notice came meanwhile.
        OSError: nothing can be written there, or one cannot be read.
    """
    named = {path.name: path for path in (expanded(text, key) for text in sources)}
    for path in named.values():
        if not path.exists():
            raise ConfigError(f"{path} is not there", where=key, hint="do nodes see it?")
    base = _own_folder(expanded(disk, key))
    place = base / f"data-{_key(job, sources)}"
    while (record := _held(base, place, named, heard)) is None:
        if heard():
            raise LeftEarly
        time.sleep(_LOOK_S)
    return place, str(record["digest"]), str(record["why"])


def digest_of(read: Mapping[str, str]) -> str:
    """Return the digest of data by those of its files, SHA-256 in hex, by their names."""
    total = hashlib.sha256()
    for name, digest in sorted(read.items()):
        total.update(f"{digest}  {name}\0".encode(errors="surrogateescape"))
    return total.hexdigest()


def linked(sources: Sequence[str], place: Path) -> Path:
    """Make a folder of links to data, where there is no disk to copy it to; return it.

    Raises:
        ConfigError: as ``expanded``.
        OSError: it cannot be made.
    """
    files.make_folder(place)
    for path in map(expanded, sources):
        with contextlib.suppress(FileExistsError):
            (place / path.name).symlink_to(path)
    return place


def remove(disk: str) -> None:
    """Remove the copies on this node that no process uses; errors leave them there."""
    with contextlib.suppress(OSError, HpcdetError):
        for base in private_folders.own(expanded(disk)):
            private_folders.refuse_exchangeable(base, "")
            _sweep(base)


def _key(job: str, sources: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([job, *sources]).encode()).hexdigest()[:16]


def _own_folder(root: Path) -> Path:
    files.make_folder(root)
    base = private_folders.below(root)
    private_folders.refuse_exchangeable(base, f"chmod +t {root}, or another paths.local")
    return base


def _held(
    base: Path, place: Path, named: dict[str, Path], heard: Callable[[], object]
) -> dict[str, str] | None:
    """Share the lock of the copies, which who takes it first makes; None: another does so now."""
    path = place.with_suffix(".lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, files.FILE_MODE)
    try:
        if _taken(fd, fcntl.LOCK_EX) and not (place / _RECORD).exists():
            _sweep(base, place)
            _fill(place, named, heard)
        # between two locks there is none: what was seen before may have been removed
        if _taken(fd, fcntl.LOCK_SH) and _is(path, fd):
            record = files.read_json(place / _RECORD)
            if isinstance(record, dict):
                os.set_inheritable(fd, True)
                fd = -1
                return record
        return None
    finally:
        if fd >= 0:
            os.close(fd)


def _is(path: Path, fd: int) -> bool:
    """True if a path still leads to the file that was opened."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), os.stat(path))
    return False


def _taken(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sweep(base: Path, mine: Path | None = None) -> None:
    """Remove the copies of allocations whose lock is free."""
    for path in base.glob("data-*.lock"):
        if mine is not None and path.stem == mine.name:
            continue
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if _taken(fd, fcntl.LOCK_EX):
                shutil.rmtree(path.with_suffix(""), ignore_errors=True)
                path.unlink(missing_ok=True)
        finally:
            os.close(fd)


def _fill(place: Path, named: dict[str, Path], heard: Callable[[], object]) -> None:
    """Copy and verify everything, or link to it where there is no room, and record it."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700)
    why = ""
    try:
        read = dict(_copied(named, place, heard))
        for name, digest in read.items():
            if _digest(place / name, heard) != digest:
                raise IntegrityError("the copy is not what was read", where=str(place / name))
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith(str(place)):
            raise  # of the original, not of the copy
        why = f"no copies on {place.parent}: {error.strerror}"
        shutil.rmtree(place, ignore_errors=True)
        linked([str(path) for path in named.values()], place)
        read = {name: _digest(path, heard) for name, path in _files(named)}
    record = {"digest": digest_of(read), "why": why}
    files.replace(place / _RECORD, files.canonical(record))


def _copied(
    named: dict[str, Path], place: Path, heard: Callable[[], object]
) -> Iterator[tuple[str, str]]:
    """Copy every file; yield its name and the digest of what was read."""
    for name, source in _files(named):
        copy = place / name
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with os.fdopen(files.open_to_read(source), "rb") as read:
            written = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, files.FILE_MODE)
            try:
                while chunk := read.read(_CHUNK):
                    _leave_if(heard)
                    digest.update(chunk)
                    _write(written, chunk, copy)
                os.fsync(written)
                os.posix_fadvise(written, 0, 0, os.POSIX_FADV_DONTNEED)  # verified from the disk
            finally:
                os.close(written)
        yield name, digest.hexdigest()


def _write(fd: int, chunk: bytes, copy: Path) -> None:
    try:
        files.write_all(fd, chunk)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(copy)) from error


def _files(named: dict[str, Path]) -> Iterator[tuple[str, Path]]:
    """Yield the relative name and the path of every file, through links."""
    for name, source in named.items():
        if source.is_file():
            yield name, source
            continue
        seen: set[tuple[int, int]] = set()
        for above, folders, names in os.walk(source, followlinks=True, onerror=_fail):
            status = os.stat(above)
            if (status.st_dev, status.st_ino) in seen:
                folders.clear()  # a link leads back to it
                continue
            seen.add((status.st_dev, status.st_ino))
            folders.sort()
            for file in sorted(names):
                path = Path(above, file)
                yield str(Path(name) / path.relative_to(source)), path


def _digest(path: Path, heard: Callable[[], object]) -> str:
    found = hashlib.sha256()
    with os.fdopen(files.open_to_read(path), "rb") as file:
        while chunk := file.read(_CHUNK):
            _leave_if(heard)
            found.update(chunk)
    return found.hexdigest()


def _leave_if(heard: Callable[[], object]) -> None:
    if heard():
        raise LeftEarly


def _fail(error: OSError) -> None:
    raise error
