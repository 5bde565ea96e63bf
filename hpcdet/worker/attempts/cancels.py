"""Cancellations of the trials that run in this worker, checked at most every few seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs.freshness import Watched
from hpcdet.store.trials.controls import in_force
from hpcdet.worker.attempts import exit_reason

EVERY_S = 5.0
"""Seconds between two looks at a trial: a worker runs for weeks, and there are hundreds."""


class Cancels:
    """One worker's view of which of its trials are canceled.

    Args:
        every_s: seconds between two looks at a trial.
    """

    def __init__(
        self,
        paths: ExperimentPaths,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = paths
        self._every_s = every_s
        self._clock = clock
        self._seen: dict[int, Watched[bool]] = {}
        self._look_at: dict[int, float] = {}

    def has(self, number: int) -> bool:
        """True if a trial is to end without a save; False while the storage is unavailable."""
        if self._clock() < self._look_at.get(number, 0.0):
            return False
        self._look_at[number] = self._clock() + self._every_s
        if number not in self._seen:
            trial = self._paths.trial(number)
            self._seen[number] = Watched(
                lambda: exit_reason.is_unwanted(in_force(trial)),
                lambda _: (str(trial.controls),),
                self._clock,
            )
        with contextlib.suppress(OSError):
            self._seen[number].refresh()
            return self._seen[number].value
        return False
