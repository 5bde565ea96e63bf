"""The time that an accelerator spends on each phase, sampled without waiting for it.

The host runs ahead of an accelerator: its clock says when work was asked for, not when it was
done. So one step in so many is marked by events in the accelerator's own stream, which are read
some steps later, once they have passed.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

EVERY = 50
"""Steps per sampled one: sixteen events among thousands of kernels cannot be seen."""
_MOST_WAITING = 8

Marks = list[tuple[str, Any]]


class DeviceTimes:
    """Seconds of each phase, by the accelerator's events.

    Args:
        event: makes one that keeps time, as ``torch.cuda.Event`` does.
    """

    def __init__(self, event: Callable[[], Any], every: int = EVERY) -> None:
        self._event = event
        self._every = every
        self._count = 0
        self._marks: Marks = []
        self._waiting: deque[Marks] = deque()
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._steps = 0

    def begin(self) -> Callable[[str], None] | None:
        """A step begins: what to tell its phases to, if it is to be sampled."""
        self._count += 1
        if self._count % self._every or len(self._waiting) >= _MOST_WAITING:
            return None
        self._marks = []
        return self._mark

    def _mark(self, phase: str) -> None:
        event = self._event()
        event.record()
        self._marks.append((phase, event))

    def end(self) -> None:
        """The step is over, for the host."""
        if self._marks:
            self._mark("")
            self._waiting.append(self._marks)
            self._marks = []

    def take(self) -> tuple[int, dict[str, float]]:
        """Sampled steps that have passed since the last call, and seconds of each phase in them."""
        while self._waiting and self._waiting[0][-1][1].query():
            marks = self._waiting.popleft()
            for (phase, begin), (_, end) in itertools.pairwise(marks):
                self._spent[phase] += begin.elapsed_time(end) / 1000
            self._steps += 1
        found = self._steps, dict(self._spent)
        self._steps = 0
        self._spent.clear()
        return found


def corrected(
    spent: dict[str, float], steps: int, sampled: int, device: dict[str, float]
) -> dict[str, float]:
    """The host's phases with the accelerator's shares of the time it was waited for.

    The total stays the host's, which is right over many steps. What the accelerator was measured
    at replaces the host's figure, phase by phase; the difference goes to or comes from ``other``,
    as far as that reaches, and what is still too much is scaled down.
    """
    kept = ("data", "validation", "checkpoint", "other")
    busy = {name: s / sampled * steps for name, s in device.items() if name not in kept}
    if not sampled or not busy:
        return spent
    found = {name: seconds for name, seconds in spent.items() if name not in busy}
    room = sum(spent.values()) - sum(found.values()) + found.get("other", 0.0)
    wanted = sum(busy.values())
    scale = min(1.0, room / wanted) if wanted else 1.0
    found |= {name: seconds * scale for name, seconds in busy.items()}
    found["other"] = room - wanted * scale
    return found
