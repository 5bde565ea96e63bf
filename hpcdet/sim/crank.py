"""Simulated controller turns: when reports reach the searcher, and its answers."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from hpcdet.search.api import events
from hpcdet.sim.actors import SimulatedTrial
from hpcdet.sim.cluster import Cluster


class SimulatedCrank:
    """A searcher and the events that have not reached it yet.

    Attributes:
        told: the number of events that reached it.
    """

    def __init__(
        self, searcher: events.Method[Any], cluster: Cluster, rng: np.random.Generator
    ) -> None:
        self.searcher, self.cluster, self.rng = searcher, cluster, rng
        self.told = 0
        self._state = searcher.initial()
        self._facts: deque[events.Event] = deque()
        self._lengths: dict[int, int] = {}  # up to which each trial's reports were told

    def write(self, trial: SimulatedTrial, event: events.Event, now: float) -> float | None:
        """Record an event of a trial; events reach the searcher in the order of writing.

        Returns:
            When ``bring`` has to be called with it; None where it is in sight at once.
        """
        if self.cluster.instant:
            self.bring(event)
            return None
        seen = now + self.cluster.visible.draw(self.rng)
        trial.heard_at = max(trial.heard_at, self.cluster.turn(seen))
        return trial.heard_at

    def bring(self, event: events.Event) -> None:
        """Make an event visible to the searcher."""
        self._facts.append(event)

    def next(self) -> events.Event | None:
        """Return the next visible event; None without one."""
        return self._facts.popleft() if self._facts else None

    def tell(self, event: events.Event) -> list[events.Action]:
        """Deliver an event as the controller does: each length of a trial once, in order."""
        if isinstance(event, events.Report):
            if event.length.value <= self._lengths.get(event.trial, 0):
                return []
            self._lengths[event.trial] = event.length.value
        return self.ask(event)

    def ask(self, event: events.Event) -> list[events.Action]:
        """Return the searcher's actions for an event. Raises what the searcher raises."""
        self._state, actions = self.searcher.on_event(self._state, event)
        self.told += 1
        return actions
