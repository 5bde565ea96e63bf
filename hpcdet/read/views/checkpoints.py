"""Checkpoints of an experiment: the places of their copies, those that count, and losses."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hpcdet.errors import IntegrityError
from hpcdet.read.experiment.gather import Gathered, GatheredTrial, Line, gather
from hpcdet.store.folder import scratch
from hpcdet.store.folder.layout import CHECKPOINT_NAME, ExperimentPaths, TrialPaths
from hpcdet.store.fs import files
from hpcdet.store.objects.copy_records import CopyRecords
from hpcdet.store.trials import staged, standing
from hpcdet.store.trials.standing import MANIFEST, Lineage

CheckpointState = Literal["complete", "superseded", "partial", "damaged", "staged", "deleted"]
_STATES: tuple[CheckpointState, ...] = ("complete", "superseded", "partial", "damaged")


@dataclass(frozen=True)
class CheckpointView:
    """A checkpoint of a trial, with all its copies."""

    trial: int
    """The trial's number."""
    step: int | None
    """Batches the trial had trained."""
    attempt: int | None
    """The attempt that saved it."""
    name: str
    """The name of its folder."""
    path: str
    """The copy that lasts longest; "" of a staged one."""
    copies: list[str]
    """All folders in this state."""
    on: list[str]
    """For each copy ``scratch`` or ``project``, where there are both; of a staged one the node
    that alone has it."""
    bytes: int
    """Size of its files."""
    digest: str
    """Digest of the training state; "" if it is not known."""
    state: CheckpointState
    """``superseded``: whole, but a user let the trial begin again from an earlier one.
    ``partial``: without a commit, being written or cut off. ``damaged``: set aside by a reader.
    ``staged``: newer than all others, on the disk of a node only. ``deleted``: only if asked for.
    """
    metric: Any
    """The searcher's metric, as last reported before; null if it was not."""
    kept: list[str]
    """The rules of retention that keep it: ``latest``, ``best``, ``end``, ..."""
    time: str
    """When it was saved; "" if that is not known."""
    url: str
    """Its copy in the experiment's object store; "" if there is none."""


def checkpoints(
    source: ExperimentPaths | Gathered, trial: int = 0, deleted: bool = False
) -> list[CheckpointView]:
    """Return the checkpoints, by trial and step."""
    gathered = gather(source)
    stored = CopyRecords.of(gathered.paths).copied()
    rows = (
        replace(row, url=stored[row.trial, row.name].url)
        if (row.trial, row.name) in stored
        else row
        for each in gathered.chosen(trial)
        for row in each.derive("checkpoints", partial(_checkpoints, each))
    )
    return [row for row in rows if deleted or row.state != "deleted"]


def _checkpoints(trial: GatheredTrial) -> list[CheckpointView]:
    saved = {line["name"]: line for a in trial.attempts for line in a.of_kind("checkpoint")}
    there = _folders(trial.paths, trial.lineage)
    names = sorted(set(saved) | set(there))
    rows = [
        _checkpoint(trial.paths, name, saved.get(name, {}), there.get(name, [])) for name in names
    ]
    return [*rows, *_on_a_node(trial, names)]


def _on_a_node(trial: GatheredTrial, names: Sequence[str]) -> list[CheckpointView]:
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
    return [replace(row, state="staged", path="", on=[f"node {newest['host']}"])]


def _folders(trial: TrialPaths, line: Lineage) -> dict[str, list[tuple[CheckpointState, Path]]]:
    """Return state and folder of each checkpoint's copies, by its name."""
    found: dict[str, list[tuple[CheckpointState, Path]]] = {}
    for place in trial.checkpoint_places:
        try:
            entries = sorted(path.name for path in place.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            name = entry.removeprefix(".bad-")
            if CHECKPOINT_NAME.fullmatch(name):
                complete = (place / entry / MANIFEST).is_file()
                whole: CheckpointState = "complete" if name in line else "superseded"
                state = "damaged" if entry != name else whole if complete else "partial"
                found.setdefault(name, []).append((state, place / entry))
    return found


def _checkpoint(
    trial: TrialPaths, name: str, line: Line, there: Sequence[tuple[CheckpointState, Path]]
) -> CheckpointView:
    match = CHECKPOINT_NAME.fullmatch(name)
    step, attempt = (int(match[1]), int(match[2])) if match else (line.get("step"), None)
    state: CheckpointState = min((s for s, _ in there), key=_STATES.index, default="deleted")
    copies = [folder for found, folder in there if found == state]
    folder = copies[-1] if copies else trial.checkpoint_places[-1] / name
    on = ["project" if folder.parent == trial.kept else "scratch" for folder in copies]
    manifest = _manifest(folder) if not line.get("digest") else {}
    return CheckpointView(
        trial=trial.number,
        step=step,
        attempt=attempt,
        name=name,
        path=str(folder),
        copies=[str(copy) for copy in copies],
        on=on if trial.kept else [],
        bytes=line["bytes"] if "bytes" in line else _size(folder),
        digest=line.get("digest") or manifest.get("digest", ""),
        state=state,
        metric=line.get("metric"),
        kept=line.get("kept", []),
        time=line.get("t", ""),
        url="",
    )


def _manifest(folder: Path) -> Line:
    value = None
    with contextlib.suppress(OSError, IntegrityError):  # ``ckpt verify`` says what is wrong
        value = files.read_json(folder / MANIFEST)
    return value if isinstance(value, dict) else {}


def _size(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.iterdir())
    except OSError:
        return 0


def purged(gathered: Gathered) -> list[str]:
    """Return a sentence for each loss that matters for reading or resuming the experiment."""
    paths = gathered.paths
    if not paths.split:
        return []
    found = []
    if scratch.is_gone(paths):
        found.append(
            f"its folder on scratch is gone ({scratch.target(paths)}), and logs and checkpoints to "
            "go on from with it; what was kept is on project storage"
        )
    if gathered.closed is None:
        found += [line for trial in gathered.trials if (line := _behind(trial))]
    return found


def _behind(trial: GatheredTrial) -> str:
    """Describe a waiting trial that would go on from less than it had reached; "" if not so."""
    if trial.standing.state in ("running", "done", "stopped", "failed"):
        return ""
    saved = [line["name"] for a in trial.attempts for line in a.of_kind("checkpoint")]
    if not saved or saved[-1] in standing.checkpoints(trial.paths):
        return ""
    left = standing.latest_checkpoint(trial.paths)
    start = f"from {left}" if left else "from the beginning"
    return f"trial {trial.number}: {saved[-1]} is not there any more, it goes on {start}"
