"""Pinned checkpoints, which users keep regardless of the rules of retention.

One empty file per checkpoint, ``trials/T/pinned/NAME``, beside the checkpoints of both places.
"""

from __future__ import annotations

import contextlib
import os

from hpcdet.store.folder.layout import CHECKPOINT_NAME, TrialPaths
from hpcdet.store.fs import files


def pinned(trial: TrialPaths) -> frozenset[str]:
    """Return the names of a trial's pinned checkpoints."""
    try:
        found = os.listdir(trial.pins)
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    return frozenset(name for name in found if CHECKPOINT_NAME.fullmatch(name))


def pin(trial: TrialPaths, name: str) -> None:
    """Pin a checkpoint; durable when this returns."""
    files.make_folder(trial.pins)
    files.write_once(trial.pins / name, b"")
    files.sync_folder(trial.pins)


def unpin(trial: TrialPaths, name: str) -> bool:
    """Leave a checkpoint to the rules again; True if it was pinned."""
    there = name in pinned(trial)
    with contextlib.suppress(FileNotFoundError):
        (trial.pins / name).unlink()
        files.sync_folder(trial.pins)
    return there
