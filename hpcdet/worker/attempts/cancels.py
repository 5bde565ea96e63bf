"""Cancellations of the trials that run in this worker, checked at most every few seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.trials.controls import in_force
from hpcdet.worker.attempts import exit_reason
from hpcdet.worker.claims.folder_cache import Glance

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
        self._seen: dict[int, Glance[bool]] = {}
        self._look_at: dict[int, float] = {}

    def has(self, number: int) -> bool:
        """True if a trial is to end without a save; False while the storage is unavailable."""
        if self._clock() < self._look_at.get(number, 0.0):
            return False
        self._look_at[number] = self._clock() + self._every_s
        if number not in self._seen:
            trial = self._paths.trial(number)
            self._seen[number] = Glance(
                lambda: exit_reason.is_unwanted(in_force(trial)),
                lambda _: (trial.controls,),
                self._clock,
            )
        with contextlib.suppress(OSError):
            return self._seen[number].look()
        return False
