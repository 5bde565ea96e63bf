"""The trials as one holder of the lease sees them: looked at when a nudge tells of them.

All are looked at from time to time, as a nudge may be lost. Controls are not watched: the holder
writes them itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from hpcdet.store.decisions.wakeup import NOTHING, Told
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Claim
from hpcdet.store.trials import observer
from hpcdet.store.trials.standing import Standing, TrialFiles

ALL_S = 60.0
"""All trials are looked at so often. Of an attempt that has begun or ended, the trial is looked at
for so long: no cache of a file system shows a folder as it was for longer."""


@dataclass(frozen=True)
class TrialView:
    """A trial in one turn, by one reading of its files.

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

    @cached_property
    def open(self) -> list[tuple[AttemptPaths, Claim]]:
        """The attempts that were claimed and have not ended, newest first."""
        found = []
        for attempt in reversed(self.files.attempts) if self.standing.open_attempt else ():
            if attempt.claim is None or attempt.end is not None:
                break
            found.append((attempt.paths, attempt.claim))
        return found


class Sight:
    """The trials of one experiment as one holder of the lease sees them.

    Args:
        clock: real seconds, as the times of files are.
    """

    def __init__(self, paths: ExperimentPaths, clock: Callable[[], float] = time.monotonic) -> None:
        self._trials = observer.Observer(paths, TrialFiles, observer.attempts, clock)
        self._clock = clock
        self._all = True
        self._all_at = -math.inf
        self._changing: dict[int, float] = {}  # looked at until then
        self._reported: set[int] = set()
        self._fresh: set[int] = set()
        self._news: set[int] = set()  # views of this turn alone
        self._checked: dict[int, TrialView] = {}

    def begin(self, told: Told = NOTHING, *, everything: bool = True) -> None:
        """Begin a new turn, in which each trial that is asked for is checked once at most.

        Args:
            told: of what nudges have told since the last turn.
            everything: all trials are checked, else only those told of, and all once in ``ALL_S``.
        """
        now = self._clock()
        self._all = everything or now - self._all_at >= ALL_S
        if self._all:
            self._all_at = now
            self._trials.begin()
        self._changing = {n: until for n, until in self._changing.items() if until > now}
        self._changing |= dict.fromkeys(told.attempts, now + ALL_S)
        self._reported |= {number for number in told.reports if number in self._trials}
        if self._all:
            self._checked.clear()
        for number in (*self._news, *self._changing, *self._reported):
            self._checked.pop(number, None)
        self._news.clear()

    def forget(self, number: int) -> None:
        """Read a trial again when it is next asked for, as a file of it was just written."""
        self._trials.expire(number)
        self._changing[number] = self._clock() + ALL_S
        self._checked.pop(number, None)

    def learnt(self, number: int) -> None:
        """Note that all news of a trial's current view have been passed on.

        Until then it is ``fresh``, whoever asked for the trial first, and in whichever turn.
        """
        self._fresh.discard(number)
        self._reported.discard(number)

    def rest(self, number: int, *, at_rest: bool) -> None:
        """Check a trial less often while it is not to run: only a mistake can change it."""
        (self._trials.quiet.add if at_rest else self._trials.quiet.discard)(number)

    def trial(self, number: int) -> TrialView:
        """Return the current view of a trial."""
        if (checked := self._checked.get(number)) is not None:
            return checked
        if number in self._changing:
            self._trials.quiet.discard(number)
        looks = self._all or number in self._changing or number not in self._trials
        if looks and self._trials.look(number):
            self._fresh.add(number)
        watched = looks or number in self._reported
        seen = TrialView(self._trials[number], number in self._fresh, watched)
        if seen.news:
            self._news.add(number)
        self._checked[number] = seen
        return seen
