"""PB2: a population whose new hyperparameters come from a model of what has helped, and when.

(Parker-Holder et al., Provably Efficient Online Hyperparameter Optimization with Population-Based
Bandits, NeurIPS 2020.) A Gaussian process learns how much a loss falls per length of training,
from how far a model is, its loss, and its hyperparameters; what was long ago counts less. An heir
gets the numbers whose upper confidence bound is the highest for its parent, given what others
train with at the moment. All else, and the first numbers of all, are as in ``explore.Perturb``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcdet.search.api.sampling import View
from hpcdet.search.population.explore import Explorer, Perturb
from hpcdet.space.domains import Domain, Double, Int, Log, LogInt, LogUniform, uniform
from hpcdet.space.errors import Path
from hpcdet.space.space import Space, bits
from hpcdet.space.space_tree import Axis
from hpcdet.space.unit_scale import at, place_of

Array = NDArray[np.float64]

ENOUGH = 4
"""Rows of data before the model is asked."""
MOST = 300
"""Rows that it sees, the last ones."""
CANDIDATES = 1000
_SCALES, _DRIFTS, _NOISES = (0.1, 0.2, 0.4, 0.8), (0.01, 0.1, 0.3), (1e-3, 1e-2, 1e-1)
"""What is chosen among by the likelihood of the data."""


@dataclass(frozen=True)
class Bandit:
    """Explores by the model; ``otherwise`` where that has no say."""

    space: Space
    seed: int
    otherwise: Perturb
    learns: bool = field(default=True, init=False)

    def explore(
        self, view: View, donor: int, params: Mapping[str, Any], number: int
    ) -> dict[str, Any]:
        """Raises as ``otherwise``."""
        moved = self.otherwise.explore(view, donor, params, number)
        drawn = {axis.path: value for axis, _, value in self.space.drawn(moved)}
        numbers = [
            (axis.path, domain)
            for axis, domain, _ in self.space.drawn(moved)
            if axis.mutable and isinstance(domain, Double | Int | Log | LogUniform | LogInt)
        ]
        data = _Data.of(view, self.space, numbers, donor)
        if not numbers or data is None or len(data.gains) < ENOUGH:
            return moved
        shift = [uniform(bits(self.seed, number, (*path, "", "pb2"))) for path, _ in numbers]
        for place in _best_places(data, _spread(shift)):
            values = {path: at(domain, u) for (path, domain), u in zip(numbers, place, strict=True)}

            def choose(axis: Axis, domain: Domain, values: dict[Path, Any] = values) -> Any:
                if axis.path in values:
                    return values[axis.path]
                known = axis.path in drawn
                return (
                    drawn[axis.path] if known else domain.draw(bits(self.seed, number, axis.path))
                )

            found = self.space.build(choose)
            if found is not None:
                return found
        return moved


@dataclass(frozen=True)
class RecordedExplorer:
    """An explorer that learns, while a search is decided again by its records: these stand.

    Attributes:
        known: hyperparameters by the trial's number; used up as they are asked.
    """

    explorer: Explorer
    known: dict[int, Mapping[str, Any]]
    learns: bool = field(default=True, init=False)

    def explore(
        self, view: View, donor: int, params: Mapping[str, Any], number: int
    ) -> dict[str, Any]:
        """Raises as the explorer does."""
        known = self.known.pop(number, None)
        if known is not None:
            return dict(known)
        return self.explorer.explore(view, donor, params, number)


def _spread(shift: Sequence[float]) -> Array:
    """Points that fill a cube evenly, moved by ``shift`` (Roberts' sequence)."""
    ratio = 2.0
    for _ in range(64):  # the root of x**(d + 1) = x + 1
        ratio = (1 + ratio) ** (1 / (len(shift) + 1))
    steps = np.array([ratio ** -(n + 1) for n in range(len(shift))])
    points: Array = (np.arange(CANDIDATES)[:, None] * steps + np.array(shift)) % 1.0
    return points


# -- what was seen -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Data:
    """Rows of (loss, places of numbers), each in [0, 1], and when, in intervals.

    Attributes:
        gains: how much the loss fell from there, per length; standardised.
        pending: rows of those that train now, of which that is not known.
        now: the row of the parent, without numbers.
    """

    rows: Array
    times: Array
    gains: Array
    pending: Array
    pending_times: Array
    now: tuple[float, float]

    @classmethod
    def of(
        cls, view: View, space: Space, numbers: Sequence[tuple[Path, Domain]], donor: int
    ) -> _Data | None:
        """None where there is nothing to learn from, or of the parent nothing is known."""
        seen: dict[int, list[tuple[int, float]]] = {}
        for one in view.observations():
            if one.loss is not None:
                seen.setdefault(one.trial, []).append((one.length, one.loss))
        places = {}
        for trial, params in view.params().items():
            known = {axis.path: value for axis, _, value in space.drawn(params)}
            if trial in seen and all(path in known for path, _ in numbers):
                places[trial] = [place_of(domain, known[path]) for path, domain in numbers]
        steps = []
        for trial in sorted(places):
            for (t0, s0), (t1, s1) in itertools.pairwise(sorted(seen[trial])):
                steps.append((t1, trial, t0, s0, (s0 - s1) / (t1 - t0)))
        if not steps or donor not in seen:
            return None
        steps = sorted(steps)[-MOST:]
        interval = min(t1 - t0 for t1, _, t0, _, _ in steps)
        here = max(seen[donor])
        waiting = [(max(seen[trial]), trial) for trial in view.open() if trial in places]
        losses = [here[1], *(s0 for _, _, _, s0, _ in steps), *(s for (_, s), _ in waiting)]
        low, span = min(losses), (max(losses) - min(losses)) or 1.0

        def row(loss: float, trial: int) -> list[float]:
            return [(loss - low) / span, *places[trial]]

        gains = np.array([gain for *_, gain in steps])
        width = 1 + len(numbers)
        return cls(
            np.array([row(s0, trial) for _, trial, _, s0, _ in steps]),
            np.array([t0 / interval for _, _, t0, _, _ in steps]),
            (gains - gains.mean()) / (gains.std() or 1.0),
            np.array([row(s, trial) for (_, s), trial in waiting]).reshape(-1, width),
            np.array([t / interval for (t, _), _ in waiting]),
            (here[0] / interval, (here[1] - low) / span),
        )


# -- the model -----------------------------------------------------------------------------


def _kernel(
    one: Array, then: Array, other: Array, when: Array, scale: float, drift: float
) -> Array:
    """Squared exponential of the distance, less for every interval between them."""
    apart = ((one[:, None, :] - other[None, :, :]) ** 2).sum(axis=2)
    ago = np.abs(then[:, None] - when[None, :])
    found: Array = np.exp(-0.5 * apart / scale**2) * (1 - drift) ** (ago / 2)
    return found


def _likelihood(data: _Data, scale: float, drift: float, noise: float) -> float:
    """The logarithm of it, but for a constant."""
    n = len(data.gains)
    kernel = _kernel(data.rows, data.times, data.rows, data.times, scale, drift)
    lower = np.linalg.cholesky(kernel + noise * np.eye(n))
    white = np.linalg.solve(lower, data.gains)
    return float(-0.5 * white @ white - np.log(np.diag(lower)).sum())


def _best_places(data: _Data, candidates: Array) -> list[list[float]]:
    """Places of the numbers with the highest upper bounds, the best first.

    The mean is by what is known; the deviation also by what others train with now, so that heirs
    made together differ.
    """
    settings = itertools.product(_SCALES, _DRIFTS, _NOISES)
    scale, drift, noise = max(settings, key=lambda each: _likelihood(data, *each))
    n = len(data.gains)
    every = np.concatenate([data.rows, data.pending])
    times = np.concatenate([data.times, data.pending_times])
    kernel = _kernel(every, times, every, times, scale, drift)
    whole = np.linalg.cholesky(kernel + noise * np.eye(len(every)))
    known = whole[:n, :n]  # the factor of a corner is the corner of the factor
    weights = np.linalg.solve(known.T, np.linalg.solve(known, data.gains))
    width = math.sqrt(max(0.2 * math.log(0.4 * n), 0.0))

    def bound(points: Array) -> Array:
        rows = np.column_stack([np.full(len(points), data.now[1]), points])
        cross = _kernel(rows, np.full(len(points), data.now[0]), every, times, scale, drift)
        explained = np.linalg.solve(whole, cross.T)
        spread = np.sqrt(np.maximum(1.0 - (explained**2).sum(axis=0), 1e-12))
        found: Array = cross[:, :n] @ weights + width * spread
        return found

    best = candidates[np.argsort(-bound(candidates), kind="stable")[:8]]
    for step in (0.05, 0.02, 0.005):
        moves = np.concatenate([np.zeros((1, best.shape[1])), step * np.eye(best.shape[1])])
        around = np.concatenate([best + move for move in (*moves, *(-moves[1:]))])
        around = np.clip(around, 0.0, 1.0)
        best = around[np.argsort(-bound(around), kind="stable")[:8]]
    return [[float(u) for u in point] for point in best]
