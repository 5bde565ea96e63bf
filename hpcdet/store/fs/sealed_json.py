"""JSON that carries the digest of itself: the form of a checkpoint's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blake3 import blake3

from hpcdet.store.fs import files

ROOT = "root"
"""The key of the digest."""


def digest(plain: Mapping[str, Any]) -> str:
    """BLAKE3 of the canonical JSON of everything but the digest itself, as hex digits."""
    rest = {key: value for key, value in plain.items() if key != ROOT}
    return str(blake3(files.canonical(rest)).hexdigest())


def sealed(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The same with its digest."""
    return {**plain, ROOT: digest(plain)}


def text(plain: Mapping[str, Any]) -> bytes:
    """What stands in the file."""
    return files.canonical(plain) + b"\n"
