"""A worker's view of the trials that it may claim, and of the claims that it is unsure of."""

from __future__ import annotations

import time
from collections.abc import Callable

from hpcdet.store.decisions import wakeup
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Claim, End
from hpcdet.store.fs import files
from hpcdet.store.trials import observer
from hpcdet.store.trials.standing import Standing, TrialFiles

_OVER = frozenset(("stopped", "failed"))
"""Not ``done``: a searcher may ask for more of a trial that has come as far as it was asked to."""


class Outlook:
    """The trials of an experiment as one worker last read them."""

    def __init__(self, paths: ExperimentPaths, clock: Callable[[], float] = time.monotonic) -> None:
        self._paths = paths
        self._trials = observer.standings(paths, clock)
        self._perhaps: list[tuple[AttemptPaths, Claim]] = []

    def begin(self) -> None:
        """Begin a new pass over the trials, after releasing uncertain claims.

        Raises:
            OSError: the storage is unavailable; the claims to release are remembered.
        """
        while self._perhaps:
            attempt, claim = self._perhaps[-1]
            if Claim.read(attempt.claim) == claim:
                why = "the storage failed while it was claimed"
                End("released", error=why, closed_by=claim.worker, at=files.now()).write_once(
                    attempt.end
                )
                wakeup.tell(self._paths, attempt.trial, "attempt")
            self._perhaps.pop()
        self._trials.begin()

    def perhaps(self, attempt: AttemptPaths, claim: Claim) -> None:
        """Remember a claim that a storage error left uncertain, so that ``begin`` releases it."""
        self._perhaps.append((attempt, claim))

    def trial(self, number: int) -> TrialFiles:
        """Return a trial by one reading of its files; if it is over, perhaps of some passes ago.

        Only a user's command can bring one back that is over.

        Raises:
            OSError: the storage is unavailable.
        """
        self._trials.look(number)
        found, quiet = self._trials[number], self._trials.quiet
        (quiet.add if found.standing.state in _OVER else quiet.discard)(number)
        return found

    def now(self, number: int) -> Standing:
        """Return the current standing of a trial, even of one that is over.

        Raises:
            OSError: the storage is unavailable.
        """
        self._trials.quiet.discard(number)
        return self.trial(number).standing
