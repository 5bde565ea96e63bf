"""The mounted file systems of this host."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TABLE = Path("/proc/self/mounts")

_SHARED = re.compile(
    r"nfs4?|lustre|gpfs|beegfs|ceph|fuse\.ceph|cifs|smb3?|fuse\.sshfs|pvfs2|orangefs|afs|9p|panfs"
    r"|wekafs|glusterfs|fuse\.glusterfs|virtiofs"
)


@dataclass(frozen=True)
class Mount:
    """One mounted file system: its device or server, where it is, its type."""

    device: str
    at: Path
    kind: str

    @property
    def shared(self) -> bool:
        """True for a network file system."""
        return _SHARED.fullmatch(self.kind) is not None


def of(path: Path, table: Path = TABLE) -> Mount | None:
    """Return the file system that a path lies on; None if the host has no mount table."""
    try:
        lines = table.read_text(errors="replace").splitlines()
    except OSError:
        return None
    found, best = path.absolute(), None
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        at = Path(re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), fields[1]))
        # of two in one place the later one covers the other
        if found.is_relative_to(at) and (best is None or len(at.parts) >= len(best.at.parts)):
            best = Mount(fields[0], at, fields[2])
    return best
