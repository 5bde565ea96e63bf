"""A worker's cached view of the trials, which spares reading all files for each free lane."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from hpcdet.store.folder.layout import AttemptPaths, TrialPaths
from hpcdet.store.folder.records import Claim, End
from hpcdet.store.fs import files
from hpcdet.store.trials.standing import Standing, standing
from hpcdet.worker.claims.folder_cache import Glance

A_ROUND = 100
"""Trials that are over and are looked at in one round: only a user's wish can bring one back."""

_OVER = frozenset(("stopped", "failed"))
"""Not ``done``: a searcher may ask for more of a trial that has come as far as it was asked to."""


class Outlook:
    """The standings of an experiment's trials as one worker last read them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[int, Glance[Standing]] = {}
        self._over: set[int] = set()
        self._round = 0
        self._turns = 1
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
            self._perhaps.pop()
        self._round += 1
        self._turns = 1 + len(self._over) // A_ROUND

    def perhaps(self, attempt: AttemptPaths, claim: Claim) -> None:
        """Remember a claim that a storage error left uncertain, so that ``begin`` releases it."""
        self._perhaps.append((attempt, claim))

    def standing(self, trial: TrialPaths) -> Standing:
        """Return the standing of a trial; of one that is over, perhaps as of some passes ago.

        Raises:
            OSError: the storage is unavailable.
        """
        number = trial.number
        if number in self._over and (number + self._round) % self._turns:
            return self._seen[number].value
        return self.now(trial)

    def now(self, trial: TrialPaths) -> Standing:
        """Return the current standing of a trial, even of one that is over.

        Raises:
            OSError: the storage is unavailable.
        """
        number = trial.number
        if number not in self._seen:
            self._seen[number] = Glance(
                lambda: standing(trial), lambda stands: _folders(trial, stands), self._clock
            )
        stands = self._seen[number].look()
        (self._over.add if stands.state in _OVER else self._over.discard)(number)
        return stands


def _folders(trial: TrialPaths, stands: Standing) -> tuple[Path, ...]:
    """Return the folders in which a file appears when a trial's standing changes."""
    if stands.state == "runnable":
        return ()  # any worker may claim it at any time
    if stands.open_attempt:
        return (trial.attempt(stands.open_attempt).root,)  # its end, before any new claim
    if stands.state == "paused":
        return (trial.controls, trial.root)  # or its record has not been seen yet
    return (trial.controls,)
