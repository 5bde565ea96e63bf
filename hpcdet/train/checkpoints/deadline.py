"""The time that is left, and whether it is still enough."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

_MARGIN_S = 2.0
_SAFETY = 1.5
_GRACE_S = 30.0
"""Slurm's KillWait, where nothing else is known."""


class Deadline:
    """The end of the allocation, and how long before it saving must begin.

    Needed are the slowest recent save and step, with a margin: walltime is heard of here even
    where the scheduler sends no signal.

    Args:
        end: seconds since the epoch; None if nobody knows.
        wall: the clock that ``end`` refers to.
        grace_s: from a TERM that nobody announced to the end.
    """

    def __init__(
        self,
        end: float | None,
        wall: Callable[[], float] = time.time,
        grace_s: float = _GRACE_S,
    ) -> None:
        self._end = end
        self._killed_at: float | None = None
        self._grace_s = grace_s
        self._wall = wall
        self._save_s = 0.0
        self._step_s = 0.0

    @staticmethod
    def from_environment(env: Mapping[str, str] = os.environ) -> Deadline:
        """From ``HPCDET_DEADLINE`` and ``HPCDET_GRACE``, which the worker sets."""
        text = env.get("HPCDET_DEADLINE", "")
        grace_s = float(env.get("HPCDET_GRACE") or _GRACE_S)
        return Deadline(float(text) if text else None, grace_s=grace_s)

    def hear(self, signal: str, at: float | None = None) -> None:
        """A notice came. After a TERM a scheduler kills, as a rule, whatever time was left.

        Args:
            at: when it came, epoch seconds; None: now.
        """
        if signal == "SIGTERM" and self._killed_at is None:
            self._killed_at = (self._wall() if at is None else at) + self._grace_s

    def learn_save(self, seconds: float) -> None:
        """A checkpoint took so long; the slowest is remembered."""
        self._save_s = max(self._save_s, seconds)

    def learn_step(self, seconds: float) -> None:
        """A step took so long; remembered, and slowly forgotten."""
        self._step_s = max(seconds, 0.99 * self._step_s)

    @property
    def save_s(self) -> float:
        """The slowest save so far, in seconds."""
        return self._save_s

    @property
    def needed_s(self) -> float:
        """How long before the end the last save must begin, in seconds."""
        return self._needed(saves=1)

    def over(self, busy: bool = False) -> bool:
        """Time to save and leave.

        Args:
            busy: a checkpoint is being written, which the last one will have to wait for.
        """
        left = self.left_s
        return left is not None and left <= self._needed(saves=2 if busy else 1)

    def _needed(self, saves: int) -> float:
        return _MARGIN_S + _SAFETY * (saves * self._save_s + 2 * self._step_s)

    @property
    def left_s(self) -> float | None:
        """Seconds until the end; None if it is unknown."""
        return None if self._end is None else self._end - self._wall()

    @property
    def left_to_save_s(self) -> float | None:
        """Seconds until the end as far as it can be guessed, or is known; None if not at all."""
        ends = [end for end in (self._end, self._killed_at) if end is not None]
        return min(ends) - self._wall() if ends else None

    def fits(self, saves: int) -> bool:
        """Whether so many saves, one after the other, will be through before the end.

        As far as can be told from those before: not if each takes what the slowest did.
        """
        left = self.left_to_save_s
        return left is None or saves * self._save_s <= left


class StepTimer:
    """Measures steps for a deadline; the first of each kind, which compiles, is left out."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._measured: set[bool] = set()
        self._since = time.monotonic()

    def restart(self) -> None:
        """A step begins now: what came before is part of none."""
        self._since = time.monotonic()

    def lap(self, trained: bool) -> bool:
        """A step has ended, of training or of validation; return True for the first of its kind."""
        now = time.monotonic()
        first = trained not in self._measured
        self._measured.add(trained)
        if not first:
            self._deadline.learn_step(now - self._since)
        self._since = now
        return first


class Every:
    """True once per period, the first time after one period has passed."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last = clock()

    def due(self) -> bool:
        return self._clock() - self._last >= self._seconds

    def restart(self) -> None:
        self._last = self._clock()

    def take(self) -> bool:
        """``due``, and begin the next period if so."""
        now = self._clock()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True
