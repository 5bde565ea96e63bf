"""The packages that this process can import, with their versions.

Each has a file of its own to be read, hundreds in all. So they are read once for each folder, and
again when something was installed there: a rank that is forked finds what its parent has read.
"""

from __future__ import annotations

import functools
import os
import sys
from importlib import metadata
from pathlib import Path

_COPIES = "_vendor"
"""A folder of copies that a package has for itself: setuptools puts its own on the module path."""


def installed() -> dict[str, str]:
    """Return versions by name: of two, that which is imported, as it is first on the path."""
    folders = [one for one in reversed(sys.path) if Path(one).name != _COPIES]
    return dict(each for folder in folders for each in reversed(_of(folder, _changed(folder))))


def _changed(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


@functools.cache
def _of(folder: str, changed: int) -> tuple[tuple[str, str], ...]:  # noqa: ARG001 - of the key
    found = (one.metadata for one in metadata.distributions(path=[folder]))
    return tuple((each["Name"], each["Version"]) for each in found)
