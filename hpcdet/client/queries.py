"""Which experiments there are, how they compare, and a new one."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpcdet.client.handles import Experiment
from hpcdet.client.model_versions import ModelVersion, registry_folder
from hpcdet.client.run_verb import run, warn
from hpcdet.errors import NotFound, UsageError
from hpcdet.read.comparison.side_by_side import ComparedView
from hpcdet.read.listing import Filters, listed, used
from hpcdet.read.lookup import find
from hpcdet.read.usage.usage_table import UsageView
from hpcdet.registry import versions_beside_trials
from hpcdet.site_files import roots
from hpcdet.store.folder.layout import ExperimentPaths

Words = str | Collection[str]
Place = str | Path | None


def experiments(
    root: Place = None,
    *,
    state: Words = (),
    tag: Words = (),
    user: Words = (),
    project: Words = (),
    since: datetime | str = "",
    limit: int | None = None,
) -> list[Experiment]:
    """Return the experiments of a root, oldest first; of unreadable ones there is a warning.

    Args:
        root: the folder of experiments; None: ``$HPCDET_ROOT``, ``./hpcdet-experiments`` or the
            site's. It may be another user's.
        state, user, project: one of these.
        tag: all of these labels.
        since: made then or later; a text is ISO 8601, in UTC where it names no zone.
        limit: the newest so many.

    Raises:
        NotFound: there is no such folder.
    """
    filters = Filters(_words(state), _words(tag), _words(user), _words(project), _moment(since))
    rows, warnings = listed(_root(root), filters, limit=limit)
    for warning in warnings:
        warn(warning)
    return [Experiment(Path(row.path).name, Path(row.path)) for row in rows if hasattr(row, "path")]


def get(id: str, root: Place = None) -> Experiment:
    """Return an experiment by its id, a prefix of that, ``@last``, its path, or a job's id.

    Raises:
        NotFound: nothing matches, or more than one experiment does.
        UsageError: it is a trial.
    """
    found = find.reference(str(id), _root(root))
    if found.trial:
        hint = f"client.get({found.paths.id!r}) has trials(), metrics(trial={found.trial}), ..."
        raise UsageError("that is a trial", where=str(found), hint=hint)
    return _handle(found.paths)


def compare(*ids: str | Experiment | ModelVersion, root: Place = None) -> list[ComparedView]:
    """Return experiments, trials (``ID/3``) or registered versions (``model:NAME:3``) side by side.

    The rows are the items of ``hpcdet compare``.

    Raises:
        NotFound: one of them is not there.
        UsageError: they are not at least two different ones.
    """
    names = [
        str(one.path) if isinstance(one, Experiment) else one if isinstance(one, str) else one.id
        for one in ids
    ]
    place = _root(root)
    rows, warnings = versions_beside_trials.compare(
        names, lambda name: find.reference(name, place), registry_folder
    )
    for warning in warnings:
        warn(warning)
    return rows


def usage(
    by: Words = ("user", "project"), root: Place = None, *, since: datetime | str = ""
) -> list[UsageView]:
    """Return slot hours of all experiments of a root, and what became of them.

    Args:
        by: of ``user project account partition state month``.
        since: what was held before is left out.

    Raises:
        NotFound: there is no such folder.
        UsageError: there is no such key.
    """
    start = datetime.fromisoformat(_moment(since)).timestamp() if since else -math.inf
    rows, warnings = used(_root(root), [*_words(by)], start)
    for warning in warnings:
        warn(warning)
    return rows


def submit(
    config: str | Path | Mapping[str, Any],
    model_dir: str | Path | None = None,
    *,
    set: Mapping[str, Any] = {},
    site: str | None = None,
    root: Place = None,
    test: bool = True,
) -> Experiment:
    """Make an experiment and queue it, as ``hpcdet submit`` does.

    Args:
        config: a file, or its content, with which ``model_dir`` is needed.
        model_dir: the folder of the code; None: the config's.
        set: values of the config by key, as ``{"searcher.max_trials": 8}``.
        site: the site; None: ``$HPCDET_SITE``, else the one that fits.
        test: try one batch first.

    Raises:
        ConfigError: config, code or site are wrong.
        Unavailable: the scheduler does not answer.
        Unsuccessful: the batch has failed.
    """
    words: list[object] = []
    for key, value in set.items():
        words += ["--set", f"{key}={json.dumps(value)}"]
    words += ["--site", site] if site else []
    words += [] if test else ["--no-test"]
    place = Path(root).expanduser().absolute() if root is not None else None
    if not isinstance(config, Mapping):
        folder = [model_dir] if model_dir is not None else []
        [item] = run("submit", config, *folder, *words, root=place)
        return _handle(ExperimentPaths(Path(item["path"])))
    if model_dir is None:
        raise UsageError("the config is no file, so it has no folder", hint="give model_dir")
    with tempfile.TemporaryDirectory() as folder_of_it:
        file = Path(folder_of_it) / "config.yaml"
        file.write_text(json.dumps(config))  # which is YAML
        [item] = run("submit", file, model_dir, *words, root=place)
    return _handle(ExperimentPaths(Path(item["path"])))


def _handle(paths: ExperimentPaths) -> Experiment:
    return Experiment(paths.id, paths.root)


def _root(given: Place) -> Path:
    if given is None:
        return roots.experiments()
    root = Path(given).expanduser().absolute()
    if not root.is_dir():
        raise NotFound("no such folder", where=str(root), hint="root is the folder of experiments")
    return root


def _words(given: Words) -> Collection[str]:
    return (given,) if isinstance(given, str) else given


def _moment(since: datetime | str) -> str:
    """Return a time as records have it. Raises UsageError: it is none."""
    if not since:
        return ""
    try:
        at = datetime.fromisoformat(since) if isinstance(since, str) else since
    except ValueError as error:
        raise UsageError(f"{since!r} is no time", hint="write 2026-11-21") from error
    at = at if at.tzinfo is not None or not isinstance(since, str) else at.replace(tzinfo=UTC)
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
