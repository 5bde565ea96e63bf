"""Where the time of one process goes: every moment belongs to exactly one phase.

A phase ends where the next one begins, so that they add up to the time that has passed and none
is counted twice. Changing it costs 0.2 us: reading a clock, adding to a number.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

PHASES = (
    "data",
    "forward",
    "backward",
    "communication",
    "optimizer",
    "validation",
    "checkpoint",
    "waiting",
    "other",
)
"""What the trainer tells apart, in the order of a step. ``communication`` is waiting for other
ranks that nothing hides; ``waiting`` is that at a rung, for the search's decision; ``other`` is
everything that nobody named."""


class Phases:
    """The time of one process by phase, in seconds.

    Attributes:
        mark: also told of each change; for who times an accelerator (``device.DeviceTimes``).
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.mark: Callable[[str], None] | None = None
        self._clock = clock
        self._phase = "other"
        self._since = clock()
        self._spent: defaultdict[str, float] = defaultdict(float)

    def switch(self, phase: str) -> str:
        """Begin ``phase``; return the one before, to go back to."""
        now = self._clock()
        before = self._phase
        self._spent[before] += now - self._since
        self._phase, self._since = phase, now
        if self.mark is not None:
            self.mark(phase)
        return before

    def within(self, phase: str) -> Within:
        """A ``with`` block that belongs to ``phase``; behind it goes on what was before."""
        return Within(self, phase)

    def take(self) -> dict[str, float]:
        """The seconds of each phase since the last call."""
        self.switch(self._phase)
        spent, self._spent = self._spent, defaultdict(float)
        return dict(spent)


class Within:
    """One ``with`` block of a phase."""

    def __init__(self, phases: Phases, phase: str) -> None:
        self._phases = phases
        self._phase = phase
        self._before = ""

    def __enter__(self) -> None:
        self._before = self._phases.switch(self._phase)

    def __exit__(self, *_: object) -> None:
        self._phases.switch(self._before)
