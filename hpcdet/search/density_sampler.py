"""Suggestions for searches by rungs: of a few random draws the one likeliest to be good.

Two densities are estimated by kernels, as in TPE (Bergstra et al., NeurIPS 2011) and BOHB (Falkner
et al., ICML 2018): of the best trials, and of the others. The suggestion is the draw with the
highest ratio of the two.

* Draws are those of random search, so that conditions and ``forbid`` hold. As they are few,
  suggestions stay spread out, also where many places become free before anybody has reported.
* The highest rung with enough finite results is looked at, as in BOHB. Who has not come so far says
  nothing: neither trials that were held back below, nor those that are open.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcdet.search.sampling import View
from hpcdet.space.domains import Categorical, Domain, uniform
from hpcdet.space.places import index_of, place_of
from hpcdet.space.space import Space, bits

Array = NDArray[np.float64]

DRAWS = 8
GOOD = 0.15
"""The share of trials that are the best ones, as in BOHB."""
NARROWEST = 0.1
"""The least standard deviation of a kernel, where the bounds of a number are 1 apart."""
BEST, RECENT = 128, 192
"""Trials that are looked at: the best, and those of the others that were made last."""


@dataclass(frozen=True)
class DensitySampler:
    """Suggests at random until there is something to learn from, and now and then.

    Attributes:
        startup: finite results at one rung before densities are estimated; 0: two more than there
            are hyperparameters, at least 8.
        random_fraction: of suggestions that stay random (BOHB's rho).
    """

    space: Space
    seed: int
    startup: int = 0
    random_fraction: float = 1 / 3
    name: str = field(default="tpe", init=False)
    learns: bool = field(default=True, init=False)
    _rows: dict[int, Array] = field(default_factory=dict, init=False, compare=False)

    @property
    def constant(self) -> bool:
        return self.space.constant

    def suggest(self, view: View, number: int) -> dict[str, Any]:
        """Raises as ``Space.sample``."""
        first = self.space.sample(self.seed, number)
        if uniform(bits(self.seed, number, ("", "model"))) < self.random_fraction:
            return first
        ranked = self._ranked(view)
        if not ranked:
            return first
        good, others = self._parted(ranked, view.params())
        seeds = (bits(self.seed, number, ("", "draw"), n) for n in range(1, DRAWS))
        draws = [first, *(self.space.sample(seed, number) for seed in seeds)]
        rows = np.array([self._row(draw) for draw in draws])
        domains = [domain for _, domain in self.space.axes]
        ratios = log_density(rows, good, domains) - log_density(rows, others, domains)
        return draws[int(ratios.argmax())]

    def _ranked(self, view: View) -> list[int]:
        """The trials at the rung that is looked at, best first; none while no rung has enough."""
        enough = max(self.startup or max(self.space.dimensions + 2, 8), 2)
        seen = view.observations(max(BEST + RECENT, enough))
        for _, rung in itertools.groupby(seen, lambda one: one.length):
            ranked = [one.trial for one in rung if one.loss is not None]
            if len(ranked) >= enough:
                return ranked
        return []

    def _parted(
        self, ranked: Sequence[int], params: Mapping[int, Mapping[str, Any]]
    ) -> tuple[Array, Array]:
        """Rows of the best trials, and of others. ``ranked``: best first."""
        # enough of them for a density, and no more than half
        most = min(len(ranked) // 2, BEST)
        cut = min(max(math.ceil(GOOD * len(ranked)), self.space.dimensions + 1), most)
        good = ranked[:cut]
        others = sorted({*ranked[cut:BEST], *sorted(ranked[cut:])[-RECENT:]})
        if len(self._rows) > 4 * (BEST + RECENT):
            self._rows.clear()
        for trial in (*good, *others):
            if trial not in self._rows:
                self._rows[trial] = self._row(params[trial])
        found = [np.array([self._rows[trial] for trial in part]) for part in (good, others)]
        return found[0], found[1]

    def _row(self, params: Mapping[str, Any]) -> Array:
        """Of each axis the place of its number or the index of its choice; NaN where it has none.

        Those of ordered choices have places, too.
        """
        values = {axis.path: value for axis, _, value in self.space.drawn(params)}
        return np.array(
            [
                _coordinate(domain, values[axis.path]) if axis.path in values else math.nan
                for axis, domain in self.space.axes
            ]
        )


def _coordinate(domain: Domain, value: Any) -> float:
    if isinstance(domain, Categorical) and not domain.ordered:
        return index_of(domain, value)
    return place_of(domain, value)


def log_density(rows: Array, points: Array, domains: Sequence[Domain]) -> Array:
    """The logarithm of the density that ``points`` make at each of ``rows``.

    One kernel for each point, the product of those of its values; they get narrower with the
    number of points (Scott's rule). A uniform density counts as one point more. What a row or a
    point lacks says nothing: what its existence depends on has a kernel of its own.
    """
    count = len(points)
    narrowing = count ** (-1 / (4 + len(domains)))
    kernels = np.zeros((len(rows), count))
    for column, domain in enumerate(domains):
        mine, theirs = rows[:, column, None], points[None, :, column]
        if isinstance(domain, Categorical) and not domain.ordered:
            values = len(domain.vals)
            same = 1 - narrowing * (values - 1) / values
            # both sum up to 1 over the values; multiplied by their number they compare with 1
            kernel = np.where(mine == theirs, values * same, narrowing)
        else:
            known = theirs[~np.isnan(theirs)]
            width = max(1.06 * narrowing * (float(known.std()) if known.size else 0.0), NARROWEST)
            kernel = np.exp(-0.5 * ((mine - theirs) / width) ** 2) / (width * math.sqrt(math.tau))
        unknown = np.isnan(mine) | np.isnan(theirs)
        kernels += np.log(np.where(unknown, 1.0, np.maximum(kernel, 1e-300)))
    density: Array = np.log1p(np.exp(kernels).sum(axis=1)) - math.log(count + 1)
    return density
