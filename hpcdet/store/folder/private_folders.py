"""hpcdet's private folders outside of experiments: caches, state of local jobs, temporary files.

Their contents are trusted, and some are executed. So each belongs to the user alone, and so do
the folders above it as far as another user could replace it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hpcdet.errors import Unavailable
from hpcdet.store.fs import files, mounts

_HINT = "remove it, or let XDG_CACHE_HOME name a folder on a disk of this host"
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
LONGEST_SOCKET = 107
"""Bytes that the path of a Unix socket may have (``sun_path`` in unix(7), and its end)."""
_ROOM = 60
"""Of these, for what lies in the folder: a notebook's kernels have names of 45."""


def is_private(folder: Path) -> bool:
    """True if it is this user's own folder, not a link, and no other user may write into it."""
    status = folder.lstat()
    mine = status.st_uid == os.getuid() and stat.S_ISDIR(status.st_mode)
    return mine and not status.st_mode & _OTHERS


def refuse_foreign(folder: Path, hint: str) -> None:
    """Refuse a folder that is not private to the user. Raises Unavailable."""
    if not is_private(folder):
        what = "this folder belongs to another user, or others may write to it"
        raise Unavailable(what, where=str(folder), hint=hint)


def refuse_exchangeable(folder: Path, hint: str) -> None:
    """Refuse a folder that another user could rename and replace.

    Raises:
        Unavailable: one above it belongs to another user, or others may write it and it has not
            the sticky bit.
    """
    # in a container where users have other numbers, who owns the root of the tree is root
    trusted = {0, os.getuid(), os.stat("/").st_uid}
    for above in folder.resolve().parents:
        if not above.exists():
            continue  # it is still to be made
        status = above.stat()
        open_to_others = status.st_mode & _OTHERS and not status.st_mode & stat.S_ISVTX
        if status.st_uid not in trusted or open_to_others:
            what = f"other users may put another folder in the place of {folder.name}"
            raise Unavailable(what, where=str(above), hint=hint)


def of_host(name: str) -> Path:
    """Return a folder for what this host derives: in ``$XDG_CACHE_HOME`` if local, else TMPDIR.

    Raises:
        Unavailable: the folder belongs to another user or others may write it.
        OSError: it cannot be made.
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    mount = mounts.of(Path(cache)) if cache else None
    here = cache and not (mount and mount.shared)
    root = Path(cache) / "hpcdet" if cache and here else temporary()
    for path in (root, root / name):
        files.make_folder(path)
        refuse_foreign(path, _HINT)
    return root / name


def temporary() -> Path:
    """Return the user's own folder below ``$TMPDIR``. Raises OSError as ``below``."""
    return below(Path(tempfile.gettempdir()))


def below(root: Path) -> Path:
    """Return the user's own folder below one of all users, by another name if its own is taken.

    Raises:
        OSError: none can be made.
    """
    with contextlib.suppress(OSError):  # a file, or a link that leads nowhere
        files.make_folder(root / _name())
    return next(own(root), None) or Path(tempfile.mkdtemp(prefix=f"{_name()}-", dir=root))


def own(root: Path) -> Iterator[Path]:
    """Yield the user's own folders that ``below`` has made."""
    for path in (root / _name(), *sorted(root.glob(f"{_name()}-*"))):
        with contextlib.suppress(FileNotFoundError):
            if is_private(path):
                yield path


def _name() -> str:
    return f"hpcdet-{os.getuid()}"


def of_sockets() -> Path:
    """Make a new folder, mode 0700, on this host's own disk, for sockets.

    Raises:
        Unavailable: there is no place for one whose path is short enough.
    """
    for base in (tempfile.gettempdir(), "/tmp", "/dev/shm"):
        if len(base.encode()) + len("/hpcdet-00000000") + _ROOM > LONGEST_SOCKET:
            continue
        with contextlib.suppress(OSError, Unavailable):
            refuse_exchangeable(Path(base, "hpcdet-0"), "")
            return Path(tempfile.mkdtemp(prefix="hpcdet-", dir=base))  # 0700, whatever the umask
    raise Unavailable(
        "there is no place for a socket on this host",
        where=tempfile.gettempdir(),
        hint="let TMPDIR name a folder on the host's own disk, with a short path",
    )
