"""A folder of the user's on a local disk, for files that must not lie on a network."""

from __future__ import annotations

import os
from pathlib import Path

from hpcdet.store.folder import private_folders
from hpcdet.store.fs import files, mounts

_HINT = "remove it, or let XDG_CACHE_HOME name a folder on a disk of this host"


def folder(name: str) -> Path:
    """Return ``NAME`` under ``$XDG_CACHE_HOME`` if that is a local disk, else under TMPDIR.

    Raises:
        Unavailable: the folder belongs to another user or others may write it.
        OSError: it cannot be made.
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    mount = mounts.of(Path(cache)) if cache else None
    here = cache and not (mount and mount.shared)
    root = Path(cache) / "hpcdet" if cache and here else private_folders.temporary()
    for path in (root, root / name):
        files.make_folder(path)
        private_folders.refuse_foreign(path, _HINT)
    return root / name
