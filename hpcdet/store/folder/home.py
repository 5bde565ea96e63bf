"""The home of an experiment, recorded so that a copy of its folder never acts for it.

``homes/0001.json`` is made with the experiment, a further one by each ``hpcdet move``. A folder
whose newest record names another place that holds the same record is a copy: its jobs, workers and
searcher are the original's. Experiments without such a record were made by an older version.
"""

from __future__ import annotations

import os
import secrets
import shlex
from dataclasses import dataclass
from pathlib import Path

from hpcdet.errors import UsageError
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.names import EXPERIMENTS, REGISTERED
from hpcdet.store.fs import files, packed
from hpcdet.store.fs.json_record import JsonRecord


@dataclass(frozen=True)
class Home(JsonRecord):
    """A place where the experiment's folder lies.

    Attributes:
        path: the experiment's folder, absolute, without links.
        nonce: drawn for this record; only a copy of the folder has the same.
        submissions: number of the last submission that was made elsewhere; its jobs know another
            folder than this one, or belong to the experiment that this one was copied from.
        at: when it came here, ISO 8601 UTC.
    """

    path: str
    nonce: str
    submissions: int = 0
    at: str = ""


def root() -> Path:
    """Return the folder that holds experiments: ``$HPCDET_ROOT``, or ``./hpcdet-experiments``."""
    return Path(os.environ.get("HPCDET_ROOT") or EXPERIMENTS).expanduser().absolute()


def called(
    paths: ExperimentPaths, trial: int = 0, attempt: int = 0, among: Path | None = None
) -> str:
    """Return the words for an experiment, trial or attempt in a command printed for people.

    Args:
        among: the folder whose experiments are found by their ids; else ``root()``.

    Returns:
        ``ID``, ``ID/3`` or ``ID/3.2``; for an experiment elsewhere the folder's path, quoted for
        a shell.
    """
    if paths.root.parent == (among or root()):
        return paths.id + (f"/{trial}" if trial else "") + (f".{attempt}" if attempt else "")
    of = paths.trial(trial) if trial else paths
    return shlex.quote(str((paths.trial(trial).attempt(attempt) if attempt else of).root))


def settle(paths: ExperimentPaths) -> Home:
    """Record the folder's current place as home; earlier submissions belong to the former one.

    Raises:
        UsageError: another process has recorded something else at the same moment.
    """
    number = max(packed.numbers(paths.homes, ".json"), default=0) + 1
    last = max(paths.submissions(), default=0)
    home = Home(str(paths.root.resolve()), secrets.token_hex(16), last, files.now())
    files.make_folder(paths.homes)
    if not home.write_once(paths.home(number)):
        raise UsageError(
            "another process is moving this experiment",
            where=str(paths.root),
            hint="try again once it has ended",
        )
    return home


def newest(paths: ExperimentPaths) -> Home | None:
    """Return the newest record; None for an experiment of an older version."""
    numbers = packed.numbers(paths.homes, ".json")
    return Home.read(paths.home(numbers[-1])) if numbers else None


def first_name(paths: ExperimentPaths) -> str:
    """Return the name of the folder that it was made in; "" for an experiment of an older version.

    One that was renamed or moved keeps it, a fork has its own.
    """
    numbers = packed.numbers(paths.homes, ".json")
    home = Home.read(paths.home(numbers[0])) if numbers else None
    return "" if home is None else Path(home.path).name


def is_here(paths: ExperimentPaths) -> bool:
    """True if the newest record names this place."""
    home = newest(paths)
    return home is not None and Path(home.path) == paths.root.resolve()


def left_behind(paths: ExperimentPaths) -> int:
    """Return the number of the last submission made for another place; 0 if there is none."""
    home = newest(paths)
    return home.submissions if home is not None else 0


def original(paths: ExperimentPaths) -> Path | None:
    """Return the folder that this one is a copy of; None if none is visible here.

    A place that does not exist any more, or that holds something else, has moved or was removed.
    """
    home = newest(paths)
    if home is None or (there := Path(home.path)) == paths.root.resolve():
        return None
    try:
        if there.samefile(paths.root):  # the same folder by another mount
            return None
        other = newest(ExperimentPaths(there))
    except OSError:
        return None
    return there if other is not None and other.nonce == home.nonce else None


def refuse_registered(paths: ExperimentPaths) -> None:
    """Raise UsageError for the version of a registered model, which nothing changes."""
    if (paths.root / REGISTERED).exists():
        raise UsageError(
            "this is a version of a registered model",
            where=str(paths.root),
            hint="hpcdet registry --help lists what may be done with it",
        )


def refuse_copy(paths: ExperimentPaths) -> None:
    """Raise UsageError for a copy: its jobs and processes belong to the original."""
    refuse_registered(paths)
    there = original(paths)
    if there is not None:
        raise UsageError(
            f"this is a copy of {there}, to which its jobs belong",
            where=str(paths.root),
            hint=f"use that one, or make this one an experiment of its own: "
            f"hpcdet move {paths.root} --here",
        )
