"""Staged checkpoints, on the local disk of a node (``checkpoint_storage.local_staging``).

    LOCAL/hpcdet-UID/ID-IDENTITY/TRIAL/checkpoints/

They are committed there first and then copied to the checkpoints' folder. Each node has its own;
nothing else of an experiment is ever kept there, and they may be gone at any time. The folder has
another name where a user has taken that of another one (``private_folders``).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hpcdet.errors import ConfigError
from hpcdet.store.folder import private_folders
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import CHECKPOINT_NAME, ExperimentPaths, TrialPaths
from hpcdet.store.folder.scratch import identity
from hpcdet.store.fs import files, journal
from hpcdet.store.trials.standing import MANIFEST, lineage

STAGED = "checkpoint_staged"
"""The kind of a journal's line on a checkpoint that is on a node only."""
_OF_LINE = ("n", "t", "kind", "crc", "host")

COPIED = ".copied"
"""An empty file beside the manifest of what has been copied: retention may remove the copy."""


def folder(where: str, paths: ExperimentPaths, trial: int) -> Path | None:
    """Return the folder of a trial's checkpoints on this node; None if there is none.

    What another user has put in its place is not looked at.

    Args:
        where: as configured; ``$TMPDIR`` and the like are this process's.

    Raises:
        ConfigError: a variable is not set here, or it is no absolute path.
        Unavailable: other users may put another folder in the place of this one.
        OSError: the disk cannot be read.
    """
    root, inner = _root(where), _inner(paths, trial)
    for base in private_folders.own(root):
        if (base / inner).is_dir():
            private_folders.refuse_exchangeable(base, _hint(root))
            return base / inner
    return None


def prepare(where: str, paths: ExperimentPaths, trial: int) -> Path:
    """Return the folder of a trial's checkpoints on this node, made if there is none.

    Raises:
        ConfigError, Unavailable: as ``folder``.
        OSError: it cannot be made.
    """
    if (found := folder(where, paths, trial)) is not None:
        return found
    root = _root(where)
    files.make_folder(root)
    base = private_folders.below(root)
    private_folders.refuse_exchangeable(base, _hint(root))
    place = base / _inner(paths, trial)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return place


def _root(where: str) -> Path:
    root = Path(os.path.expandvars(where))
    if not root.is_absolute() or "$" in str(root):
        raise ConfigError(
            f"{where} is {root} on this node, which is no folder",
            where="checkpoint_storage.local_staging",
        )
    return root


def _inner(paths: ExperimentPaths, trial: int) -> Path:
    return Path(f"{paths.id}-{identity(paths)[:12]}", f"{trial:04d}", "checkpoints")


def _hint(root: Path) -> str:
    return f"chmod +t {root}, or another local_staging"


def waiting(place: Path, trial: TrialPaths) -> list[str]:
    """Return the names of this node's checkpoints to be copied, the most urgent first.

    The newest comes first, then those made to be kept. Not copied are a resume checkpoint with a
    newer one beside it or at the destination, one that a user's rewind superseded, and one that
    has been copied once.
    """
    line = lineage(trial)
    names = [name for name in _committed(place) if name in line]
    there = [name for name in _committed(trial.checkpoints) if name in line]
    behind = max(map(position, there), default=(-1, -1))
    newest = [name for name in names[-1:] if position(name) > behind]
    rest = [name for name in names if name not in (*there, *newest)]
    kept = [n for n in rest if not (place / n / COPIED).exists() and _is_kept(place / n)]
    return [*newest, *kept]


def tell(attempt: AttemptPaths, trial: TrialPaths) -> None:
    """Journal, for an ended attempt, which of its checkpoints have been copied to scratch.

    Its ranks may have died between copy and record, and so may the process that drained them.
    """
    lines = journal.read(attempt.journal)
    told = {line["name"] for line in lines if line["kind"] == "checkpoint"}
    waits = {line["name"]: line for line in lines if line["kind"] == STAGED}
    there = [name for name in _committed(trial.checkpoints) if name in waits and name not in told]
    if not there:
        return
    with journal.Writer(attempt.journal) as writer:
        for name in there:
            writer.append("checkpoint", sync=True, **record(waits[name]))


def record(line: journal.Line) -> dict[str, Any]:
    """Return the fields of a journal line on a staged checkpoint that hold for its copy, too."""
    return {key: value for key, value in line.items() if key not in _OF_LINE}


def position(name: str) -> tuple[int, int]:
    """Return the step and attempt of a checkpoint's name; (-1, -1) for any other name."""
    match = CHECKPOINT_NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else (-1, -1)


def _committed(place: Path) -> list[str]:
    try:
        found = os.listdir(place)
    except (FileNotFoundError, NotADirectoryError):
        return []
    whole = [n for n in found if position(n)[0] >= 0 and (place / n / MANIFEST).exists()]
    return sorted(whole, key=position)


def _is_kept(checkpoint: Path) -> bool:
    about: Any = files.read_json(checkpoint / MANIFEST) or {}
    return isinstance(about, dict) and about.get("meta", {}).get("kind") != "resume"
