"""Digests of container images that are files or folders."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_CHUNK = 1 << 20


def digest(image: Path) -> str:
    """Return ``sha256:`` and the digest over all that an image holds.

    Of a folder that is, for each entry in the order of its path: the path, whether it is a file,
    a link or a folder, whether it may be executed, and contents or the link's target.

    Raises:
        OSError: the image is not there, or cannot be read.
    """
    if image.is_file():
        return f"sha256:{_of_file(image).hexdigest()}"
    total = hashlib.sha256()
    for name, status in _entries(image):
        path, kind = image / name, stat.S_IFMT(status.st_mode)
        total.update(f"{kind:o} {bool(status.st_mode & stat.S_IXUSR)}\0".encode())
        total.update(os.fsencode(name) + b"\0")
        if stat.S_ISREG(kind):
            total.update(_of_file(path).digest())
        elif stat.S_ISLNK(kind):
            total.update(os.fsencode(path.readlink()) + b"\0")
    return f"sha256:{total.hexdigest()}"


def stamp(image: Path) -> str:
    """Return what changes with an image's digest and is had without reading it: sizes and times.

    Raises:
        OSError: the image is not there.
    """
    total = hashlib.sha256()
    entries = [("", image.stat())] if image.is_file() else _entries(image)
    for name, status in entries:
        size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
        changed = 0 if stat.S_ISDIR(status.st_mode) else status.st_mtime_ns
        total.update(os.fsencode(name) + f"\0{status.st_mode:o} {size} {changed}\0".encode())
    return total.hexdigest()


def _of_file(path: Path) -> hashlib._Hash:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found


def _entries(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield path and status of everything in a folder, in the order of the paths."""
    if not folder.is_dir():
        raise FileNotFoundError(2, "no such file or folder", str(folder))
    found = {}
    for above, folders, names in os.walk(folder, onerror=_fail):
        for name in (*folders, *names):
            path = os.path.join(above, name)
            found[os.path.relpath(path, folder)] = os.lstat(path)
    yield from sorted(found.items())


def _fail(error: OSError) -> None:
    raise error
