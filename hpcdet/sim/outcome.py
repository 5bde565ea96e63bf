"""Course of one simulated search: its counts, times and costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Moment:
    """One moment of the course. ``worker`` and ``length`` are -1 where there is none.

    ``what``: ``create begin restore report pause stop wait continue target finish lost`` of a
    trial, ``grant leave`` of a worker, ``shutdown`` of the search.
    """

    at_s: float
    what: str
    trial: int = 0
    worker: int = -1
    length: int = -1
    why: str = ""


@dataclass
class Course:
    """The course of one search. Times in seconds since its submission.

    Attributes:
        end_s: when the last worker was given back, or the horizon.
        over: the searcher ended the search; false at the horizon, or where it ``stalled``.
        stalled: the searcher waits for something that does not come: no trial runs and none
            may, or none gets on (a cluster that fails faster than it trains).
        created: trials that were made.
        at: trials that reported at a length, by length.
        finished: when a trial reached the full length, its number, and what it is worth.
        best: each time a report beat all before: when, the trial, its loss.
        allocated_s: worker-seconds that the cluster gave.
        trained_s: worker-seconds of training; ``redone_s`` of them had been trained before.
        waits_s: how long each worker waited in the queue.
        preempted: trials saved because their worker had to leave, also at its walltime.
        failures: trials whose node failed.
        facts: events that the searcher was told.
        moments: what happened, in order, where it was to be kept.
    """

    end_s: float = 0.0
    over: bool = False
    stalled: bool = False
    created: int = 0
    at: Counter[int] = field(default_factory=Counter)
    finished: list[tuple[float, int, float]] = field(default_factory=list)
    best: list[tuple[float, int, float]] = field(default_factory=list)
    allocated_s: float = 0.0
    trained_s: float = 0.0
    redone_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)
    preempted: int = 0
    failures: int = 0
    facts: int = 0
    moments: list[Moment] = field(default_factory=list)

    def learn(self, at_s: float, trial: int, length: int, loss: float, whole: float | None) -> None:
        """Count a trial's first report at a length; ``whole``: its final loss."""
        self.at[length] += 1
        if whole is not None:
            self.finished.append((at_s, trial, whole))
        if not self.best or loss < self.best[-1][2]:
            self.best.append((at_s, trial, loss))

    @property
    def utilisation(self) -> float:
        """Share of the allocated time in which a trial trained; 0 without any."""
        return self.trained_s / self.allocated_s if self.allocated_s else 0.0

    def time_to(self, quality: float) -> float:
        """Return when a trial first reported at most this loss; infinity if never."""
        return next((at for at, _, loss in self.best if loss <= quality), float("inf"))

    def time_to_finished(self, quality: float) -> float:
        """Return when a trial of at most this final loss was trained in full, or infinity."""
        return next((at for at, _, value in self.finished if value <= quality), float("inf"))
