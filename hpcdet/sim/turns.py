"""Simulated controller turns: reports of trials, their delays, and the searcher's answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdet.search.api import events
from hpcdet.sim.actors import SimulatedTrial
from hpcdet.sim.cluster import Cluster
from hpcdet.units import Length, Unit


@dataclass
class Reports:
    """The reports of trials.

    Attributes:
        lengths: at which a trial validates and reports, in ``unit``; the last is the full one.
        metric: the name under which the searcher looks for the loss.
        smaller_is_better: otherwise the searcher is told the loss with its sign changed.
        time_metric: of searches whose lengths are a metric: its name.
        slots: of one trial; a report says how many slot-seconds it took so far.
        besides: what else a trial reports at a length, by its number; as the searcher hears it.
    """

    lengths: Sequence[int]
    unit: Unit = "batches"
    metric: str = "validation_loss"
    smaller_is_better: bool = True
    time_metric: str = ""
    slots: int = 1
    besides: Callable[[int, int], Mapping[str, float]] | None = None

    def __post_init__(self) -> None:
        self.lengths = sorted(set(self.lengths))
        if not self.lengths or self.lengths[0] < 1:
            raise ValueError("a trial reports at one length at least, and no length is below 1")
        self.full = self.lengths[-1]

    def of(self, trial: SimulatedTrial, loss: float) -> events.Report:
        """Return a trial's report at the length that it is at."""
        metrics = {self.metric: loss if self.smaller_is_better else -loss}
        if self.time_metric:
            metrics[self.time_metric] = trial.at
        if self.besides is not None:
            metrics.update(self.besides(trial.number, trial.at))
        length = Length(self.unit, trial.at)
        return events.Report(trial.number, length, metrics, trial.seconds * self.slots)


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

    def repeats(self, now: float) -> float | None:
        """Return the time at which the present report is repeated; None if it is not."""
        if self.cluster.repeats and self.rng.random() < self.cluster.repeats:
            return now + float(self.rng.exponential(60.0 + self.cluster.poll_s))
        return None

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
