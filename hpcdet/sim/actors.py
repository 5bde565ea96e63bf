"""Actors of a simulated search, trials and workers, and their state."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

_BLOCK = 256  # trials whose luck is drawn together


@dataclass(slots=True)
class SimulatedTrial:
    """A trial and its state on the simulated cluster.

    Attributes:
        at: length trained at ``since``, on the way to ``goal`` at ``rate`` seconds per unit.
        origin: length of the checkpoint that it begins from; 0: from nothing.
        began: when the attempt began to train.
        saved: length that a restore brings back; ``leaves_with`` is being saved.
        most: greatest length ever trained; ``reported`` likewise.
        heard_at: when the last of its reports came or comes to the searcher.
        version: events that were meant for an earlier one are void.
    """

    number: int
    until: int
    state: Literal["runnable", "running", "leaving", "paused", "ended"] = "runnable"
    wanted: Literal["run", "pause", "stop", "lost"] = "run"
    why: str = ""
    origin: int = 0
    at: int = 0
    since: float = 0.0
    goal: int = 0
    rate: float = 1.0
    began: float = 0.0
    saved: int = 0
    leaves_with: int = 0
    most: int = 0
    reported: int = 0
    seconds: float = 0.0
    heard_at: float = 0.0
    worker: int = -1
    version: int = 0

    def inherit(self, at: int) -> None:
        """Begin from another trial's checkpoint, of this length."""
        self.origin = self.at = self.saved = self.most = self.reported = at

    def aim(self, lengths: Sequence[int]) -> int:
        """Go for the next length of a report or, if that is less, for ``until``; which stretch."""
        place = bisect_right(lengths, self.at)
        self.goal = min(lengths[place] if place < len(lengths) else self.until, self.until)
        return place

    def leave(self, length: int) -> None:
        """Leave the worker, with a checkpoint of this length."""
        self.state, self.leaves_with = "leaving", length
        self.version += 1

    def train(self, now: float, checkpoint_every_s: float) -> tuple[float, float]:
        """Bring its books up to now; seconds that it has trained, and those of them again."""
        spent = now - self.since
        if spent <= 0:
            return 0.0, 0.0
        before = self.at
        self.at = min(before + int(spent / self.rate + 1e-9), self.goal)
        again = max(0, min(self.most, self.at) - before) * self.rate
        saves = math.floor((now - self.began) / checkpoint_every_s)
        last = self.began + saves * checkpoint_every_s
        if last > self.since:
            units = int((last - self.since) / self.rate + 1e-9)
            self.saved = min(before + units, self.goal)
        self.seconds += spent
        self.most = max(self.most, self.at)
        self.since = now
        return spent, min(again, spent)


@dataclass(slots=True)
class SimulatedWorker:
    """A place in the job array.

    Attributes:
        state: ``eligible`` may run but for the throttle; ``out`` is not even submitted.
        ends: when its walltime is over.
        going: it takes no further trial.
        version: counts its incarnations; events that were meant for an earlier one are void.
    """

    number: int
    rng: np.random.Generator
    state: Literal["out", "queued", "eligible", "idle", "busy"] = "out"
    version: int = 0
    began: float = 0.0
    ends: float = math.inf
    idle_since: float = 0.0
    trial: int = 0
    submitted: float = 0.0
    going: bool = False


@dataclass
class Luck:
    """Slowness of each stretch of training: the same for every search method.

    Attributes:
        places: stretches that a trial has.
    """

    seed: int
    places: int
    _blocks: dict[int, list[list[float]]] = field(default_factory=dict)

    def of(self, trial: int, place: int) -> float:
        """A standard normal deviate."""
        number = trial // _BLOCK
        if number not in self._blocks:
            rng = np.random.default_rng((self.seed, 4, number))
            self._blocks[number] = rng.standard_normal((_BLOCK, self.places)).tolist()
        return self._blocks[number][trial % _BLOCK][place]
