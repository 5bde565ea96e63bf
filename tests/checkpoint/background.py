"""Saves in the background: written, held back, and in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hpcdet import checkpoint
from hpcdet.checkpoint import Image, Saved
from hpcdet.checkpoint.state import tree

GENEROUS_S = 120.0


def written(folder: Path, shared: Any, image: Image, **more: Any) -> Saved:
    saved = checkpoint.begin(folder, shared, image=image, **more).result()
    assert saved is not None
    return saved


WHOLE = {"plain": torch.ones(3), "w": torch.arange(30.0).reshape(10, 3), "few": torch.arange(2.0)}


def in_parts(rank: int, world: int) -> dict[str, Any]:
    """A rank's rows of two tensors, of one of which the last rank has none, and a whole one."""
    found: dict[str, Any] = {"plain": WHOLE["plain"].clone()}
    for name in ("w", "few"):
        first, last = tree.rows(len(WHOLE[name]), rank, world)
        mine = WHOLE[name][first:last].clone()
        found[name] = checkpoint.Sharded(mine, tuple(WHOLE[name].shape), first)
    return found
