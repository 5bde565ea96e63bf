"""Files that several ranks have written into one folder, which may be on several nodes."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from hpcdet.errors import Unavailable
from hpcdet.train.comm.collectives import Peers

PATIENCE_S = 120.0
_LOOK_S = 0.05


def seen_by_all(folder: Path, peers: Peers) -> None:
    """Wait until every rank sees the same files, of the same sizes; all call together.

    A node's network file system may remember for a while what was there before. The node on
    which a file was written knows better, so what all see alike is true.

    Raises:
        Unavailable: they do not within ``PATIENCE_S``; on all ranks.
    """
    limit = time.monotonic() + PATIENCE_S
    while True:
        everyone = peers.allgather((_sizes(folder), time.monotonic() >= limit))
        seen = [sizes for sizes, _ in everyone]
        names = sorted(set().union(*seen))
        differ = [name for name in names if len({one.get(name) for one in seen}) > 1]
        if not differ:
            return
        if any(over for _, over in everyone):
            raise Unavailable(
                f"after {PATIENCE_S:.0f} s the ranks still do not see the same {differ[0]}",
                where=str(folder),
                hint="is it on a file system that all nodes share?",
            )
        time.sleep(_LOOK_S)
        for place, _, _ in os.walk(folder):
            with contextlib.suppress(OSError):  # NFS: asks the server, which forgets no name
                os.utime(place)


def _sizes(folder: Path) -> dict[str, int]:
    """In bytes, by path. A network file system asks its server when a file is opened.

    A folder that cannot be read has nothing in it, yet: a rank that raised would leave the others
    waiting for what it sees.
    """
    found: dict[str, int] = {}
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            with contextlib.suppress(OSError):
                if path.is_file():
                    with path.open("rb") as file:
                        found[str(path.relative_to(folder))] = os.fstat(file.fileno()).st_size
    return found
