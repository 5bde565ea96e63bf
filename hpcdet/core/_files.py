"""Folders of files that are stored as checkpoints, as Determined has them, and their metadata.

A folder becomes a state of arrays of bytes by path; metadata of several ranks become one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from hpcdet.errors import IntegrityError, UsageError

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
                f"one rank says {values[0]!r:.80}, and another {value!r:.80}",
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
                f"it holds a file named {name!r}, which would lie outside of its folder",
                where="checkpoint",
                hint="it was not made by hpcdet; do not use it",
            )
    for name, data in packed.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(bytes(data))
