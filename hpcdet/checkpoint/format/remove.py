"""Removing a checkpoint so that a crash at any point leaves it whole or not a checkpoint."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from hpcdet.checkpoint.format.manifest import is_committed, position
from hpcdet.store.folder.layout import INHERITED
from hpcdet.store.fs import files
from hpcdet.store.trials.hard_links import DRAFT
from hpcdet.store.trials.standing import MANIFEST

BAD = ".bad-"
STAGING = ".staging-"
"""Before the name of a checkpoint: the folder in which code collects its files."""


def folder(path: Path) -> None:
    """Un-commit first, durably, then take the files away. What resists is for a later sweep."""
    with contextlib.suppress(OSError):
        os.unlink(path / MANIFEST)
        files.sync_folder(path)
    if not is_committed(path):
        shutil.rmtree(path, ignore_errors=True)


def leftovers(checkpoints: Path, attempt: int) -> None:
    """Take away folders without a manifest that were made by this attempt or those before.

    Those that code collects files in, of those before only: in its own it may be at work.
    """
    for entry in _entries(checkpoints):
        folder = checkpoints / entry
        maker = position(entry.removeprefix(STAGING))[1]
        if 0 <= maker <= attempt and not (
            maker == attempt if entry.startswith(STAGING) else is_committed(folder)
        ):
            shutil.rmtree(folder, ignore_errors=True)


def strays(checkpoints: Path, origin: str) -> None:
    """Take away what was given to a trial to begin from but ``origin``, which its record names.

    A holder of the lease whose term had ended without its knowing may have given it another one;
    that may even have come later than those of the trial itself.
    """
    for entry in _entries(checkpoints):
        if entry.startswith(DRAFT):
            shutil.rmtree(checkpoints / entry, ignore_errors=True)
        elif position(entry)[1] == INHERITED and entry != origin:
            folder(checkpoints / entry)


def _entries(checkpoints: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(os.listdir(checkpoints))
    return []


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint: no reader takes it, and a person can look at it.

    Returns:
        Where it is now; ``path`` itself where the folder above is read-only.
    """
    for n in range(1000):
        target = path.with_name(f"{BAD}{path.name}" + (f".{n}" if n else ""))
        if target.exists():
            continue
        with contextlib.suppress(OSError):
            path.rename(target)
            files.sync_folder(path.parent)
            return target
        break
    return path


def aside(checkpoints: Path) -> list[Path]:
    """The damaged checkpoints of a folder that were set aside."""
    return sorted(checkpoints.glob(f"{BAD}*"))
