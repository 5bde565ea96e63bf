"""The one reader of how trials stand, which reads a trial again only when its files change.

Controller, worker, budget, index and reports look through it; what it returns is what
``standing.TrialFiles`` would read from nothing (``store.fs.freshness``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.fs.freshness import Watched
from hpcdet.store.trials.standing import TrialFiles

Files = TypeVar("Files", bound=TrialFiles)

A_ROUND = 100
"""Quiet trials that are checked in one pass over all trials."""


class Observer(Generic[Files]):
    """The trials of one experiment as one process has read them.

    Args:
        read: reads a trial from nothing.
        watched: the files and folders that look different once the trial stands differently.
        clock: real seconds, as the times of files are.
        may_rest: see ``freshness.Seen.now``.

    Attributes:
        quiet: trials in which hardly anything can change: they are checked in turns.
    """

    def __init__(
        self,
        paths: ExperimentPaths,
        read: Callable[[TrialPaths], Files],
        watched: Callable[[Files], Sequence[str]],
        clock: Callable[[], float] = time.monotonic,
        *,
        may_rest: bool = False,
    ) -> None:
        self._may_rest = may_rest
        self.quiet: set[int] = set()
        self._paths = paths
        self._read = read
        self._watched = watched
        self._clock = clock
        self._seen: dict[int, Watched[Files]] = {}
        self._pass = 0
        self._turns = 1

    def begin(self) -> None:
        """Begin a pass over the trials."""
        self._pass += 1
        self._turns = 1 + len(self.quiet) // A_ROUND

    def look(self, number: int) -> bool:
        """Bring a trial up to date; return True if it was read again.

        Raises:
            OSError: the storage is unavailable.
        """
        seen = self._seen.get(number)
        if seen is None:
            trial = self._paths.trial(number)
            read = lambda: self._read(trial)  # noqa: E731 - one line is enough for it
            seen = Watched(read, self._watched, self._clock, may_rest=self._may_rest)
            seen.refresh()
            self._seen[number] = seen
            return True
        if number in self.quiet and (number + self._pass) % self._turns:
            return False
        return seen.refresh()

    def __contains__(self, number: int) -> bool:
        """True if a trial was looked at before."""
        return number in self._seen

    def __getitem__(self, number: int) -> Files:
        """The trial at the last look."""
        return self._seen[number].value

    def __iter__(self) -> Iterator[Files]:
        """Yield the trials at their last looks."""
        return (seen.value for seen in self._seen.values())

    def expire(self, number: int) -> None:
        """Read a trial again at the next look, as a file of it was just written."""
        self.quiet.discard(number)
        if (seen := self._seen.get(number)) is not None:
            seen.expire()


def standings(
    paths: ExperimentPaths, clock: Callable[[], float] = time.monotonic
) -> Observer[TrialFiles]:
    """Return an observer of how trials stand."""
    return Observer(paths, TrialFiles, lambda trial: (*attempts(trial), *controls(trial)), clock)


def attempts(trial: TrialFiles) -> tuple[str, ...]:
    """Return the folders in which a file appears when an attempt begins or ends.

    The trial's own gets archives of attempts that are packed.
    """
    folder, stands = os.path.join(trial.paths.root, "attempts"), trial.standing
    unended = [str(one.number) for one in trial.attempts if one.end is None]
    watched = [os.path.join(folder, number) for number in unended]
    if stands.open_attempt:  # no other is claimed before its end, which is written into its folder
        return tuple(watched)
    next_one = os.path.join(folder, str(stands.next_attempt))
    return (str(trial.paths.root), folder, next_one, *watched)


def controls(trial: TrialFiles) -> tuple[str, ...]:
    """Return the folders in which a file appears when a trial is asked for something else."""
    known = (str(trial.paths.controls),)
    return known if trial.record is not None else (str(trial.paths.root), *known)
