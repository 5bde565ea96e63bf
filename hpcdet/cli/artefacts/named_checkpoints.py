"""Checkpoints that people name: by an id, their folder, or as the version of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from hpcdet.cli.frame.settings import settings
from hpcdet.errors import IntegrityError, NotFound, UsageError
from hpcdet.read.experiment import gather
from hpcdet.read.lookup import find, source_checkpoint
from hpcdet.read.views import views
from hpcdet.registry import model_names, registered_models
from hpcdet.store.folder import home
from hpcdet.store.folder.layout import CHECKPOINT_NAME, ExperimentPaths, TrialPaths
from hpcdet.store.fs import sealed_json
from hpcdet.store.trials import manifests
from hpcdet.store.trials.standing import MANIFEST

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def chosen_options(metavar: str = "ID[/T]|PATH|model:NAME") -> Decorator:
    """Add the arguments for one checkpoint: ``ID[/T]|PATH [STEP]``, ``--best`` or ``--latest``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name, text in (
            ("best", "The best one by the searcher's metric."),
            ("latest", "The newest one (the default)."),
        ):
            flag = click.option(
                f"--{name}", "which", flag_value=name, default=name == "latest", help=text
            )
            function = flag(function)
        function = click.argument("step", required=False)(function)
        return click.argument("what", metavar=metavar)(function)

    return decorate


def folders(what: Sequence[str]) -> list[Path]:
    """Return the requested checkpoint folders: paths as given, all complete ones of an id."""
    found: list[Path] = []
    for text in what:
        if model_names.is_reference(text):
            version = registered_models.version(settings().registry, text)
            found.append(version.unchanged_checkpoint())
            continue
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
    """Return the checkpoint named by ``ID[/T] [--best|--latest|STEP]``, its path or ``model:``."""
    if model_names.is_reference(what):
        if step is not None:
            raise UsageError("a version has one checkpoint", where=what, hint="leave STEP out")
        return registered_models.version(settings().registry, what).unchanged_checkpoint()
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
    refuse_registered(folder)
    return reference.paths.trial(reference.trial)


def own_name(text: str, paths: ExperimentPaths, trial: int) -> tuple[int, str]:
    """Return trial and name of an experiment's checkpoint that a ``model:`` names.

    Args:
        text: other texts are returned as they are, with ``trial``.
        trial: 0: any.

    Raises:
        UsageError: the version is of another trial.
        NotFound: the trial has the checkpoint no more, or there is no such version.
    """
    if not model_names.is_reference(text):
        return trial, text
    record = registered_models.version(settings().registry, text).record
    hint = f"to begin another experiment there: --set searcher.begin_from={text}"
    if record.source != str(paths.root.resolve()) or trial not in (0, record.trial):
        what = f"{text} is a checkpoint of {record.experiment}/{record.trial}"
        raise UsageError(what, where=paths.id, hint=hint)
    for place in paths.trial(record.trial).checkpoint_places:
        with contextlib.suppress(IntegrityError):
            if manifests.read(place / record.checkpoint)[sealed_json.ROOT] == record.root:
                return record.trial, record.checkpoint
    where = f"{paths.id}/{record.trial}"
    raise NotFound(f"the trial has {record.checkpoint} no more", where=where, hint=hint)


def refuse_registered(folder: Path) -> None:
    """Raise UsageError for the checkpoint of a registered version."""
    version = registered_models.of_path(folder)
    if version is not None:
        home.refuse_registered(ExperimentPaths(version))


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
