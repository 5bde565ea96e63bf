"""A folder of the user's on a disk of this host, for files that no network may come between."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from pathlib import Path

from hpcdet.errors import Unavailable
from hpcdet.store import files

_SHARED = re.compile(
    r"nfs4?|lustre|gpfs|beegfs|ceph|fuse\.ceph|cifs|smb3?|fuse\.sshfs|pvfs2|orangefs|afs|9p|panfs"
    r"|wekafs|glusterfs|fuse\.glusterfs|virtiofs"
)


def folder(name: str) -> Path:
    """``NAME`` under ``$XDG_CACHE_HOME`` where that is a disk of this host, else under TMPDIR.

    Raises:
        Unavailable: the folder belongs to somebody else or others may write it.
        OSError: it cannot be made.
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    if cache and not is_shared(Path(cache)):
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


def is_shared(path: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Whether a path lies on a network file system, as far as this host tells."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return False
    found = path.absolute()
    best, kind = -1, ""
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        at = Path(re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), fields[1]))
        if found.is_relative_to(at) and len(at.parts) >= best:
            best, kind = len(at.parts), fields[2]
    return _SHARED.fullmatch(kind) is not None
