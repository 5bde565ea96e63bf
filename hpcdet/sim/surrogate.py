"""Learning curves that stand in for training: power laws that cross each other.

Short training says something about long training, but not all: a configuration that is ahead
at the first rung need not be at the last. A trial's curve belongs to (seed, number of the
trial) alone, so two search methods that make trials 1, 2, 3 ... compare the same ones.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcdet.goals import Goals

_BLOCK = 256  # trials whose curves are drawn together
DIMENSIONS = 6
_LANDSCAPE = 1234
_SHAPE = 256.0  # the full length in the curves' own units
_POPULATION = 100_000
_APART = 1_000_003  # seeds of the curves of further objectives

Array = NDArray[np.float64]


class Workload(Protocol):
    """Model of training: its metrics and times. Metrics are losses: smaller is better."""

    def begin(self, trial: int, params: Mapping[str, Any]) -> None:
        """Register a trial; called once, before any other method is called for it."""

    def inherit(self, trial: int, parent: int) -> None:
        """Let a trial begin from a checkpoint of ``parent``; called before ``begin``."""

    def seconds(self, trial: int, begin: int, until: int) -> float:
        """Seconds of training between two lengths, on a node of normal speed."""

    def metric(self, trial: int, length: int) -> float:
        """Metric that a trial reports at a length."""

    def final(self, trial: int) -> float:
        """Metric of a trial trained in full, without noise."""


@dataclass
class Curves:
    """``loss(u) = a + b * (1 + u)**-c``, with ``u`` scaled so that the full length is 256.

    Attributes:
        full: the full length, in units of the search.
        unit_s: seconds of training per unit, of a trial of average cost.
        noise: standard deviation of what a report adds.
        costs: spread of trials' costs: standard deviation of the logarithm, about.
    """

    seed: int
    full: int
    unit_s: float = 1.0
    noise: float = 0.003
    costs: float = 0.0
    _parents: dict[int, int] = field(default_factory=dict, repr=False)
    _blocks: dict[int, tuple[list[list[float]], Array]] = field(default_factory=dict, repr=False)

    def begin(self, trial: int, params: Mapping[str, Any]) -> None:
        """Draw the curve by the trial's number: hyperparameters have no effect here."""

    def inherit(self, trial: int, parent: int) -> None:
        """Continue along the parent's curve: the effect of new hyperparameters is unknown here."""
        self._parents[trial] = self._parents.get(parent, parent)

    def seconds(self, trial: int, begin: int, until: int) -> float:
        return (until - begin) * self.unit_s * self._curve(trial)[3]

    def metric(self, trial: int, length: int) -> float:
        return self._at(trial, length) + self.noise * self._deviation(trial, length)

    def final(self, trial: int) -> float:
        return self._at(trial, self.full)

    def quantile(self, share: float) -> float:
        """Return the final loss that this share of all configurations reaches or beats."""
        finals = _finals()
        return float(finals[min(int(share * len(finals)), len(finals) - 1)])

    def _at(self, trial: int, length: int) -> float:
        a, b, c, _ = self._curve(trial)
        return float(a + b * (1 + _SHAPE * length / self.full) ** -c)

    def _deviation(self, trial: int, length: int) -> float:
        """Standard normal: of this trial at about this length (lengths of one octave share it)."""
        octave = (_SHAPE * length / self.full * 16 + 1).__trunc__().bit_length()
        return float(self._block(trial)[1][trial % _BLOCK, min(octave, 15)])

    def _curve(self, trial: int) -> list[float]:
        trial = self._parents.get(trial, trial)
        return self._block(trial)[0][trial % _BLOCK]

    def _block(self, trial: int) -> tuple[list[list[float]], Array]:
        number = trial // _BLOCK
        if number not in self._blocks:
            rng = np.random.default_rng((self.seed, 1, number))
            rows = curves(rng.random((_BLOCK, DIMENSIONS)), self.costs)
            self._blocks[number] = (rows.tolist(), rng.standard_normal((_BLOCK, 16)))
        return self._blocks[number]


@dataclass(frozen=True)
class Besides:
    """Metrics besides the first objective, each with curves of its own.

    They are independent of each other, so fronts are large.
    """

    goals: Goals
    seed: int
    full: int

    def __call__(self, trial: int, length: int) -> dict[str, float]:
        found = {}
        for further, one in zip(self._curves, self.goals.objectives[1:], strict=True):
            loss = further.metric(trial, length)
            found[one.metric] = loss if one.smaller_is_better else -loss
        return found

    @functools.cached_property
    def _curves(self) -> list[Curves]:
        others = range(1, len(self.goals.objectives))
        return [Curves(_APART * n + self.seed, self.full) for n in others]


def curves(x: Array, costs: float = 0.0) -> Array:
    """Rows ``a, b, c, cost`` for points of the unit cube of ``DIMENSIONS``."""
    rng = np.random.default_rng(_LANDSCAPE)
    inward, shift = rng.standard_normal((DIMENSIONS, 24)), rng.standard_normal(24)
    outward = rng.standard_normal((24, 4)) / np.sqrt(24)
    latent = np.tanh((x - 0.5) * 2 @ inward + shift) @ outward
    bowl = ((x - 0.37) ** 2).sum(-1) * 0.6 + 0.25 * np.abs(np.sin(9 * x).sum(-1)) / DIMENSIONS
    floor = 0.05 + bowl + 0.15 * latent[:, 0] ** 2
    height = 0.8 + 0.6 * np.tanh(latent[:, 1])
    speed = 0.25 + 0.5 / (1 + np.exp(-latent[:, 2]))
    cost = np.exp(costs * latent[:, 3])
    return np.stack([floor, height, speed, cost], axis=1)


@functools.cache
def _finals() -> Array:
    """Final losses of the whole population, sorted."""
    x = np.random.default_rng(99).random((_POPULATION, DIMENSIONS))
    a, b, c, _ = curves(x).T
    finals: Array = np.sort(a + b * (1 + _SHAPE) ** -c)
    return finals
