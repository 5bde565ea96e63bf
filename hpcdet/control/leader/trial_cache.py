"""The trials as one holder of the lease sees them: each is checked once in a turn.

The folders of a trial whose journal grows are not checked, unless a nudge says that something has
ended. Controls are not watched: the holder writes them itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Claim
from hpcdet.store.trials import observer
from hpcdet.store.trials.standing import Standing, TrialFiles


@dataclass(frozen=True)
class TrialView:
    """A trial in one turn, by one reading of its files.

    Attributes:
        fresh: it was read since ``Sight.learnt``, so that it may have changed.
    """

    files: TrialFiles
    fresh: bool

    @property
    def paths(self) -> TrialPaths:
        return self.files.paths

    @property
    def standing(self) -> Standing:
        return self.files.standing

    @property
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
        grows: True if a running attempt has just written, and no record of its end.
    """

    def __init__(
        self,
        paths: ExperimentPaths,
        clock: Callable[[], float] = time.monotonic,
        grows: Callable[[TrialPaths, int], bool] = lambda *_: False,
    ) -> None:
        self._trials = observer.Observer(paths, TrialFiles, observer.attempts, clock)
        self._grows = grows
        self._calm = False
        self._fresh: set[int] = set()
        self._checked: dict[int, TrialView] = {}

    def begin(self, *, calm: bool = False) -> None:
        """Begin a new turn, in which each trial that is asked for is checked once.

        Args:
            calm: no nudge since the last turn has said that something ended.
        """
        self._trials.begin()
        self._calm = calm
        self._checked.clear()

    def forget(self, number: int) -> None:
        """Read a trial again when it is next asked for, as a file of it was just written."""
        self._trials.expire(number)
        self._checked.pop(number, None)

    def learnt(self, number: int) -> None:
        """Note that all news of a trial's current view have been passed on.

        Until then it is ``fresh``, whoever asked for the trial first, and in whichever turn.
        """
        self._fresh.discard(number)

    def rest(self, number: int, *, at_rest: bool) -> None:
        """Check a trial less often while it is not to run: only a mistake can change it."""
        (self._trials.quiet.add if at_rest else self._trials.quiet.discard)(number)

    def trial(self, number: int) -> TrialView:
        """Return the current view of a trial."""
        if (checked := self._checked.get(number)) is not None:
            return checked
        if self._trials.look(number, lambda: self._still_runs(number)):
            self._fresh.add(number)
        self._checked[number] = seen = TrialView(self._trials[number], number in self._fresh)
        return seen

    def _still_runs(self, number: int) -> bool:
        trial = self._trials[number]
        running = trial.standing.open_attempt
        return self._calm and bool(running) and self._grows(trial.paths, running)
