"""Nudges to the holder of the lease: names in one folder, which it lists instead of every trial's.

Two kinds. *Turn now*: a worker whose trial has ended, and that may not decide itself, leaves its
name, and a trial that waits for a decision leaves its own; turns are some seconds apart otherwise,
to spare a shared file system. *Look here*: whoever begins or ends an attempt, or reports a
validation, leaves the trial's number once that is on the disk; the next turn looks at these trials.

A nudge is a hint and carries no facts: one that is lost costs some seconds, or for a trial the
minute until all are looked at (``control.leader.trial_cache``); one too many costs a look.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Literal

from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files

EVERY_S = 1.0
"""Seconds between two looks of a holder."""

What = Literal["attempt", "report"]

_LOOK = re.compile(r"(attempt|report)-([1-9][0-9]{0,8})")


@dataclass(frozen=True)
class Told:
    """The trials that nudges tell of: their ``attempts`` begin or end; they have new ``reports``.

    The numbers may come from any writer, and such a trial need not exist.
    """

    attempts: Set[int] = frozenset()
    reports: Set[int] = frozenset()


NOTHING = Told()


def give(paths: ExperimentPaths, who: str) -> None:
    """Leave a nudge to turn now. ``who``: a worker, or a trial that waits."""
    with contextlib.suppress(OSError):
        path = paths.nudges / who
        try:
            _make(path)
        except FileNotFoundError:
            paths.nudges.mkdir(files.FOLDER_MODE, exist_ok=True)
            _make(path)


def tell(paths: ExperimentPaths, trial: int, what: What) -> None:
    """Leave a nudge to look at a trial, of which something has just been written durably."""
    give(paths, f"{what}-{trial}")


def take(paths: ExperimentPaths) -> bool:
    """Remove the nudges to turn now; True if there was one, so that a turn is due.

    One that may not be removed counts for nothing: it would be there at every look.
    """
    now = [name for name in _names(paths) if not _LOOK.fullmatch(name)]
    return sum(_remove(paths, name) for name in now) > 0


def told(paths: ExperimentPaths) -> Told:
    """Remove the nudges to look at trials and return these. Look at them after, not before.

    One that may not be removed is told each time.
    """
    found: dict[str, set[int]] = {"attempt": set(), "report": set()}
    for name in _names(paths):
        if match := _LOOK.fullmatch(name):
            _remove(paths, name)
            found[match[1]].add(int(match[2]))
    return Told(found["attempt"], found["report"])


def _make(path: os.PathLike[str]) -> None:
    """Make a name; what is there already may be anything, and is not opened."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, files.FILE_MODE))


def _names(paths: ExperimentPaths) -> Iterable[str]:
    try:
        return os.listdir(paths.nudges)
    except OSError:
        return ()


def _remove(paths: ExperimentPaths, name: str) -> bool:
    try:
        os.unlink(paths.nudges / name)
    except OSError:
        return False
    return True
