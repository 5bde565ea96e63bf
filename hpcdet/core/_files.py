"""Folders of files that are stored as checkpoints, as Determined has them, and their metadata.

A folder becomes a state of arrays of bytes by path; metadata of several ranks become one. Several
ranks, which may be on several nodes, may have written into it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from hpcdet.errors import IntegrityError, Unavailable, UsageError
from hpcdet.train.comm.collectives import Peers

PATIENCE_S = 120.0
_LOOK_S = 0.05

Selector = Callable[[str], bool]
"""True for the files that are meant, by their paths in the folder."""


def merged(everyone: Sequence[Mapping[str, Any]], within: str = "") -> dict[str, Any]:
    """Merge the metadata of all ranks; dicts of the same key are merged, too.

    Args:
        within: the key, with dots, under which all of it lies.

    Raises:
        UsageError: two say different things of one key.
    """
    keys = dict.fromkeys(key for said in everyone for key in said)
    return {
        key: _one([said[key] for said in everyone if key in said], f"{within}{key}") for key in keys
    }


def _one(values: Sequence[Any], where: str) -> Any:
    if all(isinstance(value, Mapping) for value in values):
        return merged(values, f"{where}.")
    for value in values:
        if value != values[0]:
            raise UsageError(
                f"one rank gives {values[0]!r:.80}, and another {value!r:.80}",
                where=f"metadata {where}",
                hint="give it on one rank, or alike on all",
            )
    return values[0]


def pack(folder: Path) -> dict[str, Any]:
    """Files as arrays of bytes, mapped rather than read."""
    return {
        str(path.relative_to(folder)): np.memmap(path, np.uint8, mode="r").view(np.ndarray)
        if path.stat().st_size
        else b""
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def copy(source: Path, target: Path, selector: Selector | None) -> None:
    """Copy the chosen files of a folder into another."""
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if path.is_file() and (selector is None or selector(str(name))):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target / name)


def unpack(packed: Mapping[str, Any], folder: Path) -> None:
    """Write packed files into a folder.

    Raises:
        IntegrityError: a path in it leads out of the folder.
    """
    for name in packed:  # before the first is written
        path = PurePath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise IntegrityError(
                f"the checkpoint has a file named {name!r}, which would lie outside its folder",
                where="checkpoint",
                hint="it was not made by hpcdet; do not use it",
            )
    for name, data in packed.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(bytes(data))


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
