"""JSON that contains its own digest: the format of a checkpoint's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blake3 import blake3

from hpcdet.store.fs import files

ROOT = "root"
"""The key of the digest."""


def digest(plain: Mapping[str, Any]) -> str:
    """Return the BLAKE3 of the canonical JSON without the digest itself, as hex digits."""
    rest = {key: value for key, value in plain.items() if key != ROOT}
    return str(blake3(files.canonical(rest)).hexdigest())


def sealed(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same data with its digest."""
    return {**plain, ROOT: digest(plain)}


def text(plain: Mapping[str, Any]) -> bytes:
    """Return the contents of the file."""
    return files.canonical(plain) + b"\n"
