"""A folder of the user's on a disk of this host, for files that no network may come between."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from hpcdet.errors import Unavailable
from hpcdet.store import files, mounts


def folder(name: str) -> Path:
    """``NAME`` under ``$XDG_CACHE_HOME`` where that is a disk of this host, else under TMPDIR.

    Raises:
        Unavailable: the folder belongs to somebody else or others may write it.
        OSError: it cannot be made.
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    mount = mounts.of(Path(cache)) if cache else None
    if cache and not (mount and mount.shared):
        root = Path(cache) / "hpcdet"
    else:
        root = Path(tempfile.gettempdir()) / f"hpcdet-{os.getuid()}"
    for path in (root, root / name):
        files.make_folder(path)
        status = path.lstat()
        others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if status.st_uid != os.getuid() or others or not stat.S_ISDIR(status.st_mode):
            hint = "remove it, or let XDG_CACHE_HOME name a folder on a disk of this host"
            raise Unavailable("somebody else may write this folder", where=str(path), hint=hint)
    return root / name
