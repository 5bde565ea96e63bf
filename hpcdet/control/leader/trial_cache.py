"""The trials as one holder of the lease sees them: looked at when a nudge tells of them.

All are looked at from time to time, as a nudge may be lost. Controls are not watched: the holder
writes them itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

from hpcdet.store.decisions.wakeup import NOTHING, Told
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Claim
from hpcdet.store.trials import observer
from hpcdet.store.trials.standing import Standing, TrialFiles

ALL_S = 60.0
"""All trials are looked at so often. Of an attempt that has begun or ended, the trial is looked at
for so long: no cache of a file system shows a folder as it was for longer."""


OpenAttempts = list[tuple[AttemptPaths, Claim]]


@dataclass(frozen=True)
class TrialView:
    """A trial as it was last looked at.

    Attributes:
        fresh: it was read since ``Sight.learnt``, so that it may have changed.
        watched: a running attempt may have reported.
    """

    files: TrialFiles
    fresh: bool
    watched: bool

    @property
    def paths(self) -> TrialPaths:
        return self.files.paths

    @property
    def standing(self) -> Standing:
        return self.files.standing

    @property
    def news(self) -> bool:
        """True if there may be something to pass on of a trial that runs."""
        return self.fresh or self.watched


class Sight:
    """The trials of one experiment as one holder of the lease sees them.

    What follows from a trial's files is kept until these are read again.

    Args:
        clock: real seconds, as the times of files are.

    Attributes:
        settled: trials that were learnt, and of which nothing is new since.
        standings: of each trial as it was learnt; ``running``: those with an open attempt.
    """

    def __init__(self, paths: ExperimentPaths, clock: Callable[[], float] = time.monotonic) -> None:
        self.settled: set[int] = set()
        self.standings: dict[int, Standing] = {}
        self.running: set[int] = set()
        self._trials = observer.Observer(paths, TrialFiles, observer.attempts, clock)
        self._clock = clock
        self._all = True
        self._all_at = -math.inf
        self._changing: dict[int, float] = {}  # looked at until then
        self._looked: set[int] = set()  # not to be looked at now
        self._fresh: set[int] = set()
        self._watched: set[int] = set()
        self._open: dict[int, OpenAttempts] = {}

    def begin(self, told: Told = NOTHING, *, everything: bool = True) -> None:
        """Begin a new turn, in which each trial that is asked for is looked at once at most.

        Args:
            told: of what nudges have told since the last turn.
            everything: all trials are looked at, else those told of, and all once in ``ALL_S``.
        """
        now = self._clock()
        self._all = everything or now - self._all_at >= ALL_S
        if self._all:
            self._all_at = now
            self._trials.begin()
            self._looked.clear()
        self._changing = {n: until for n, until in self._changing.items() if until > now}
        self._changing |= dict.fromkeys(told.attempts, now + ALL_S)
        self._looked.difference_update(self._changing)
        reported = {number for number in told.reports if number in self._trials}
        self._watched |= reported
        self.settled -= reported

    def forget(self, number: int) -> None:
        """Read a trial again when it is next asked for, as a file of it was just written."""
        self._trials.expire(number)
        self._changing[number] = self._clock() + ALL_S
        self._looked.discard(number)
        self.settled.discard(number)

    def learnt(self, number: int) -> None:
        """Note that all news of a trial have been passed on.

        Until then it is ``fresh``, whoever asked for the trial first, and in whichever turn.
        """
        self._fresh.discard(number)
        self._watched.discard(number)
        self.standings[number] = standing = self._trials[number].standing
        (self.running.add if standing.open_attempt else self.running.discard)(number)
        if number in self._looked:  # it was not forgotten meanwhile
            self.settled.add(number)

    def leave_out(self, numbers: Iterable[int]) -> None:
        """Drop the standings of trials that have ended."""
        for number in numbers:
            del self.standings[number]
            self.running.discard(number)

    def rest(self, number: int, *, at_rest: bool) -> None:
        """Look at a trial less often while it is not to run: only a mistake can change it."""
        (self._trials.quiet.add if at_rest else self._trials.quiet.discard)(number)

    def trial(self, number: int) -> TrialView:
        """Return the current view of a trial."""
        if number not in self._looked:
            self._look(number)
        return TrialView(self._trials[number], number in self._fresh, number in self._watched)

    def open(self, numbers: Set[int], stay: Callable[[], None]) -> OpenAttempts:
        """Return the attempts of trials that were claimed and have not ended, by trial.

        Args:
            stay: called for each trial that is looked at.
        """
        for number in sorted(numbers - self._looked):
            stay()
            self._look(number)
        return [one for number in sorted(numbers & self._open.keys()) for one in self._open[number]]

    def _look(self, number: int) -> None:
        if number in self._changing:
            self._trials.quiet.discard(number)
        if self._all or number in self._changing or number not in self._trials:
            if self._trials.look(number):
                self._fresh.add(number)
                self._note_open(number)
            self._watched.add(number)
            self.settled.discard(number)
        self._looked.add(number)

    def _note_open(self, number: int) -> None:
        """Keep a trial's open attempts, newest first."""
        files, found = self._trials[number], []
        for attempt in reversed(files.attempts) if files.standing.open_attempt else ():
            if attempt.claim is None or attempt.end is not None:
                break
            found.append((attempt.paths, attempt.claim))
        self._open.pop(number, None)
        if found:
            self._open[number] = found
