"""Checkpoints of an experiment: the places of their copies, and those that count."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcdet.errors import IntegrityError
from hpcdet.read.experiment.gather import Gathered, GatheredTrial, gather
from hpcdet.store.folder.layout import CHECKPOINT_NAME, ExperimentPaths, TrialPaths
from hpcdet.store.fs import files
from hpcdet.store.trials import staged
from hpcdet.store.trials.standing import MANIFEST, lineage

View = dict[str, Any]
_STATES = ("complete", "superseded", "partial", "damaged")


def checkpoints(
    source: ExperimentPaths | Gathered, trial: int = 0, deleted: bool = False
) -> list[View]:
    """Return the checkpoints, by trial and step.

    Returns:
        ``trial, step, attempt, name, path, copies, on, bytes, digest, state, metric, kept, time``;
        ``state`` is ``complete``, ``superseded`` (whole, but a user let the trial begin again from
        an earlier one), ``partial`` (without a commit: being written, or cut off), ``damaged``
        (set aside by a reader that found it so), ``staged`` (newer than all others, on the disk
        of a node only, which ``on`` names), or ``deleted`` (only if asked for). ``copies``
        are all folders in this state, ``path`` the one that lasts longest; ``on`` says for each
        whether it is on ``scratch`` or ``project`` storage, where there are both.
    """
    gathered = gather(source)
    rows: list[View] = []
    for each in gathered.trials:
        if trial in (0, each.number):
            rows.extend(_checkpoints(each))
    return [row for row in rows if deleted or row["state"] != "deleted"]


def _checkpoints(trial: GatheredTrial) -> list[View]:
    saved = {line["name"]: line for a in trial.attempts for line in a.of_kind("checkpoint")}
    there = _folders(trial.paths)
    names = sorted(set(saved) | set(there))
    rows = [
        _checkpoint(trial.paths, name, saved.get(name, {}), there.get(name, [])) for name in names
    ]
    return [*rows, *_on_a_node(trial, names)]


def _on_a_node(trial: GatheredTrial, names: Sequence[str]) -> list[View]:
    """Return the newest checkpoint as a list if, by the journals, only a node has it; else []."""
    told = [
        line
        for attempt in trial.attempts
        for line in attempt.of_kind("checkpoint_staged")
        if line["name"] in trial.lineage
    ]
    newest = max(told, key=lambda line: staged.position(line["name"]), default=None)
    behind = max(map(staged.position, names), default=(-1, -1))
    if newest is None or staged.position(newest["name"]) <= behind:
        return []
    row = _checkpoint(trial.paths, newest["name"], newest, [])
    return [{**row, "state": "staged", "path": "", "on": [f"node {newest['host']}"]}]


def _folders(trial: TrialPaths) -> dict[str, list[tuple[str, Path]]]:
    """Return state and folder of each checkpoint's copies, by its name."""
    found: dict[str, list[tuple[str, Path]]] = {}
    line = lineage(trial)
    for place in trial.checkpoint_places:
        try:
            entries = sorted(path.name for path in place.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            name = entry.removeprefix(".bad-")
            if CHECKPOINT_NAME.fullmatch(name):
                complete = (place / entry / MANIFEST).is_file()
                whole = "complete" if name in line else "superseded"
                state = "damaged" if entry != name else whole if complete else "partial"
                found.setdefault(name, []).append((state, place / entry))
    return found


def _checkpoint(
    trial: TrialPaths, name: str, line: View, there: Sequence[tuple[str, Path]]
) -> View:
    match = CHECKPOINT_NAME.fullmatch(name)
    step, attempt = (int(match[1]), int(match[2])) if match else (line.get("step"), None)
    state = min((state for state, _ in there), key=_STATES.index, default="deleted")
    copies = [folder for found, folder in there if found == state]
    folder = copies[-1] if copies else trial.checkpoint_places[-1] / name
    on = ["project" if folder.parent == trial.kept else "scratch" for folder in copies]
    manifest = _manifest(folder) if not line.get("digest") else {}
    return {
        "trial": trial.number,
        "step": step,
        "attempt": attempt,
        "name": name,
        "path": str(folder),
        "copies": [str(copy) for copy in copies],
        "on": on if trial.kept else [],
        "bytes": line["bytes"] if "bytes" in line else _size(folder),
        "digest": line.get("digest") or manifest.get("digest", ""),
        "state": state,
        "metric": line.get("metric"),
        "kept": line.get("kept", []),
        "time": line.get("t", ""),
    }


def _manifest(folder: Path) -> View:
    value = None
    with contextlib.suppress(OSError, IntegrityError):  # ``ckpt verify`` says what is wrong
        value = files.read_json(folder / MANIFEST)
    return value if isinstance(value, dict) else {}


def _size(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.iterdir())
    except OSError:
        return 0
