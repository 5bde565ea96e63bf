"""The versions of torch over which ``distributed.backend: mpi`` works, for both towers.

torch is not imported for it.
"""

from __future__ import annotations

import importlib.metadata
import re

LEAST = (2, 13)
"""Tried. With 2.4.1 DDP's constructor hangs; those between have not been tried."""


def objection() -> str:
    """Why this interpreter's torch is refused; "" if it is new enough, or there is none."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) >= LEAST:
        return ""
    return f"torch {version} is too old for the backend mpi: with 2.4 DDP hangs over it"


def repair() -> str:
    """The remedy."""
    least = ".".join(map(str, LEAST))
    return f"install torch {least} or later (earlier ones were not found to work), or backend: gloo"
