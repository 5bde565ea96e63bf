"""The packages that this process can import, with their versions.

A folder's listing has both, but for how a package spells its name: that stands in a file of its
own, hundreds in all. Of what an experiment's record knows in the same version, none is read; any
other once in a process, so that a rank that is forked finds what its parent has read.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

_COPIES = "_vendor"
"""A folder of copies that a package has for itself: setuptools puts its own on the module path."""
_ENTRY = re.compile(r"(.+?)-(.+)\.dist-info")


def installed(known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return versions by name: of two, that which is imported, as it is first on the path.

    Args:
        known: what somebody has found before.
    """
    spelt = {(_plain(name), version): name for name, version in (known or {}).items()}
    folders = [one for one in reversed(sys.path) if Path(one).name != _COPIES]
    found = (each for folder in folders for each in reversed([*_of(folder, spelt)]))
    return {name: version for name, version in found if name}  # none: what a removal has left


def _of(folder: str, spelt: Mapping[tuple[str, str], str]) -> Iterator[tuple[str, str]]:
    try:
        entries = os.listdir(folder or ".")
    except NotADirectoryError:  # an archive
        yield from map(_told, metadata.distributions(path=[folder]))
        return
    except OSError:
        return
    for entry in entries:
        if entry.lower().endswith((".dist-info", "egg-info")):
            match = _ENTRY.fullmatch(entry)
            name = match and spelt.get((_plain(match[1]), match[2]))
            yield (name, match[2]) if match and name else _read(os.path.join(folder, entry))


def _plain(name: str) -> str:
    """Return a name as all its spellings have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.cache
def _read(path: str) -> tuple[str, str]:
    return _told(metadata.Distribution.at(path))


def _told(one: metadata.Distribution) -> tuple[str, str]:
    found = one.metadata
    return found["Name"], found["Version"]
