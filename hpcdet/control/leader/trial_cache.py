"""The cached standings of all trials, which spare reading every file in every turn.

A trial is read again when its folders' modification times change, as they do whenever a name is
added or removed. The folders of a trial whose journal grows are not checked, unless a nudge says
that something has ended. Two names may be added within one tick of a file system's clock, so a
trial that has changed is read once more some seconds later; and from time to time all trials are,
in case a file was written in place.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from hpcdet.store.folder.layout import AttemptPaths, ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Claim, End
from hpcdet.store.trials import standing as trials
from hpcdet.store.trials.standing import Standing

TICK_S = 3.0
"""Longer than the tick of any file system's clock."""

DORMANT_S = 60.0
"""Seconds between checks of a trial that is not to run: only a mistake can change it."""

AGAIN_S = 600.0
"""What looks as before is read again all the same after so long, or up to twice that: not all
trials in one turn."""


@dataclass
class TrialView:
    """A trial as it was last read.

    Attributes:
        open: the attempts that were claimed and have not ended, newest first.
        fresh: it was read in this turn, so that something may have changed.
        dormant: it is not to run, so that it is checked as seldom as possible.
    """

    paths: TrialPaths
    standing: Standing
    open: list[tuple[AttemptPaths, Claim]]
    fresh: bool
    turn: int
    folders: tuple[str, ...]
    looks: tuple[int, ...]
    changed: float
    read: float
    looked: float
    dormant: bool = False


class Sight:
    """The trials of one experiment as one holder of the lease sees them.

    Args:
        clock: real seconds, as the times of files are.
        grows: True if a running attempt has just written, and no record of its end.
    """

    def __init__(
        self,
        paths: ExperimentPaths,
        clock: Callable[[], float] = time.monotonic,
        grows: Callable[[TrialPaths, int], bool] = lambda *_: False,
    ) -> None:
        self._paths = paths
        self._clock = clock
        self._grows = grows
        self._seen: dict[int, TrialView] = {}
        self._turn = 0
        self._calm = False

    def begin(self, *, calm: bool = False) -> None:
        """Begin a new turn, in which each trial that is asked for is checked once.

        Args:
            calm: no nudge since the last turn has said that something ended.
        """
        self._turn += 1
        self._calm = calm

    def forget(self, number: int) -> None:
        """Read a trial again when it is next asked for, as a file of it was just written."""
        if (seen := self._seen.get(number)) is not None:
            seen.turn, seen.changed, seen.dormant = 0, self._clock(), False

    def trial(self, number: int) -> TrialView:
        """Return the current view of a trial."""
        seen = self._seen.get(number)
        if seen is not None and seen.turn == self._turn:
            return seen
        now = self._clock()
        if seen is None:
            paths = self._paths.trial(number)
        else:
            paths = seen.paths
            if self._is_as_before(seen, now):
                seen.turn, seen.fresh = self._turn, False
                return seen
        fresh = self._read(paths, now)
        if seen is not None and (fresh.folders, fresh.looks) == (seen.folders, seen.looks):
            fresh.changed = seen.changed
        self._seen[number] = fresh
        return fresh

    def _is_as_before(self, seen: TrialView, now: float) -> bool:
        again_s = AGAIN_S * (1 + seen.paths.number % 16 / 16)
        if seen.read - seen.changed < TICK_S or now - seen.read >= again_s:
            return False
        if seen.dormant and now - seen.looked < DORMANT_S:
            return True
        running = seen.standing.open_attempt
        if self._calm and running and self._grows(seen.paths, running):
            return True
        seen.looked = now
        return looks(seen.folders) == seen.looks

    def _read(self, paths: TrialPaths, now: float) -> TrialView:
        standing = trials.standing(paths)
        opened = []
        for attempt in reversed(trials.claimed(paths)) if standing.open_attempt else ():
            claim = Claim.read(attempt.claim)
            if claim is None or End.read(attempt.end) is not None:
                break
            opened.append((attempt, claim))
        attempts = os.path.join(paths.root, "attempts")
        # while one is open no other is claimed, and its end is written into its own folder
        folders: tuple[str, ...] = (
            os.path.join(attempts, str(standing.open_attempt or standing.next_attempt)),
        )
        if not standing.open_attempt:
            folders = (attempts, *folders)
        seen = looks(folders)
        return TrialView(paths, standing, opened, True, self._turn, folders, seen, now, now, now)


def looks(folders: tuple[str, ...]) -> tuple[int, ...]:
    """Return folders' times; opening them asks the server, where a lookup may be cached."""
    found = []
    for folder in folders:
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            found.append(0)
            continue
        try:
            found.append(os.fstat(fd).st_mtime_ns)
        finally:
            os.close(fd)
    return tuple(found)
