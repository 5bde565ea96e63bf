"""The packages that this process can import, with their versions.

Each has a file of its own to be read, hundreds in all. So they are read once for each folder, and
again when something was installed there: a rank that is forked finds what its parent has read.
"""

from __future__ import annotations

import functools
import os
import sys
from importlib import metadata


def installed() -> list[tuple[str, str]]:
    """Return names and versions in the order of the module path."""
    return [each for folder in sys.path for each in _of(folder, _changed(folder))]


def _changed(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


@functools.cache
def _of(folder: str, changed: int) -> tuple[tuple[str, str], ...]:  # noqa: ARG001 - of the key
    found = (one.metadata for one in metadata.distributions(path=[folder]))
    return tuple((each["Name"], each["Version"]) for each in found)
