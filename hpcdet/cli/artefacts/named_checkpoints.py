"""Checkpoints that people name: by an id of an experiment or a trial, or by their folder."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from hpcdet.cli.frame.settings import settings
from hpcdet.errors import NotFound
from hpcdet.read.experiment import gather
from hpcdet.read.lookup import find, source_checkpoint
from hpcdet.read.views import views
from hpcdet.store.folder.layout import CHECKPOINT_NAME, TrialPaths
from hpcdet.store.trials.standing import MANIFEST


def folders(what: Sequence[str]) -> list[Path]:
    """Return the requested checkpoint folders: paths as given, all complete ones of an id."""
    found: list[Path] = []
    for text in what:
        path = Path(text).expanduser().absolute()
        if (path / MANIFEST).exists() or (path.is_dir() and CHECKPOINT_NAME.search(path.name)):
            found.append(path)
            continue
        reference = find.reference(text, settings().root)
        rows = views.checkpoints(reference.paths, reference.trial)
        there = [row for row in rows if row.state in source_checkpoint.THERE]
        complete = [Path(copy) for row in there for copy in row.copies]
        if not complete:
            raise NotFound("the trial has no complete checkpoint", where=str(reference))
        found.extend(complete)
    return found


def one(what: str, step: str | None, which: str) -> Path:
    """Return the checkpoint named by ``ID[/T] [--best|--latest|STEP]`` or by its path."""
    path = Path(what).expanduser().absolute()
    if (path / MANIFEST).exists():
        return path
    reference = find.reference(what, settings().root)
    gathered = gather.gather(reference.paths)
    any_trial = which == "best" and step is None
    trial = reference.trial
    if not trial and not any_trial:
        trial = find.trial(what, settings().root).number
    listed = views.checkpoints(gathered, trial)
    rows = [row for row in listed if row.state in source_checkpoint.THERE]
    if not rows:
        raise NotFound("the trial has no complete checkpoint", where=str(reference))
    if any_trial:
        return Path(source_checkpoint.best(rows, gathered, str(reference)).path)
    name = source_checkpoint.checkpoint(gathered, trial, step) if step else rows[-1].name
    return next(Path(row.path) for row in rows if row.name == name)


def trial_of(folder: Path) -> TrialPaths:
    """Return the trial whose checkpoint lies in a folder. Raises NotFound: it is none's."""
    reference = find.reference(str(folder), settings().root)
    if not reference.trial:
        raise NotFound("the folder is not a checkpoint of an experiment", where=str(folder))
    return reference.paths.trial(reference.trial)


def with_copies(folders: Sequence[Path]) -> list[Path]:
    """Return the folders and, for checkpoints of an experiment, their copies in the other place."""
    found = {folder.resolve(): folder for folder in folders}
    for folder in folders:
        with contextlib.suppress(NotFound):
            reference = find.reference(str(folder), settings().root)
            if reference.trial:
                for place in reference.paths.trial(reference.trial).checkpoint_places:
                    if (place / folder.name).is_dir():
                        found.setdefault((place / folder.name).resolve(), place / folder.name)
    return list(found.values())
