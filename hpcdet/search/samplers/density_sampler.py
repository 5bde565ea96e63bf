"""Suggestions for searches by rungs: of a few random draws the one likeliest to be good.

Two densities are estimated by kernels, as in TPE (Bergstra et al., NeurIPS 2011) and BOHB (Falkner
et al., ICML 2018): of the best trials, and of the others. The suggestion is the draw with the
highest ratio of the two.

* Draws are those of random search, so that conditions and ``forbid`` hold. As they are few,
  suggestions stay spread out, also where many places become free before anybody has reported.
* The best are those at the highest rung with enough finite results, as in BOHB. All that have come
  there are among the best of the rungs below; so the others are not only the rest at that rung,
  but also who was held back below it. Without these a model takes what they have shown for
  unexplored, and proposes it again and again.
* Open trials that are still below that rung do not count.
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
from hpcdet.space.domains import Categorical, Domain, uniform
from hpcdet.space.space import Space, bits
from hpcdet.space.unit_scale import index_of, place_of

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
        ranked, held_back = self._ranked(view)
        if not ranked:
            return first
        good, others = self._parted(ranked, held_back, view.params())
        seeds = (bits(self.seed, number, ("", "draw"), n) for n in range(1, DRAWS))
        draws = [first, *(self.space.sample(seed, number) for seed in seeds)]
        rows = np.array([self._row(draw) for draw in draws])
        domains = [domain for _, domain in self.space.axes]
        share = 1 / (len(good) + 1)
        of_good, of_others = (log_density(rows, part, domains, share) for part in (good, others))
        ratios = of_good - of_others
        return draws[int(ratios.argmax())]

    def _ranked(self, view: View) -> tuple[list[int], list[int]]:
        """The trials at the rung that is looked at, best first, and those that did not come there.

        The latter are without a finite result, or not open any more. No rung is looked at, and both
        are empty, while none has enough.
        """
        enough = max(self.startup or max(self.space.dimensions + 2, 8), 2)
        seen = view.observations(max(BEST + RECENT, enough))
        ranked: list[int] = []
        held_back: list[int] = []
        known = set(view.open())
        for _, rung in itertools.groupby(seen, lambda one: one.length):
            shown = list(rung)
            if ranked:
                held_back += [one.trial for one in shown if one.trial not in known]
            else:
                finite = [one.trial for one in shown if one.loss is not None]
                if len(finite) >= enough:
                    ranked = finite
                    held_back = [one.trial for one in shown if one.loss is None]
            known.update(one.trial for one in shown)
        return ranked, held_back

    def _parted(
        self,
        ranked: Sequence[int],
        held_back: Sequence[int],
        params: Mapping[int, Mapping[str, Any]],
    ) -> tuple[Array, Array]:
        """Rows of the best trials, and of others. ``ranked``: best first."""
        # enough of them for a density, and no more than half
        most = min(len(ranked) // 2, BEST)
        cut = min(max(math.ceil(GOOD * len(ranked)), self.space.dimensions + 1), most)
        good = ranked[:cut]
        rest = [*ranked[cut:], *held_back]
        others = sorted({*rest[: BEST - cut], *sorted(rest)[-RECENT:]})
        if len(self._rows) > 4 * (BEST + RECENT):
            self._rows.clear()
        for trial in (*good, *others):
            if trial not in self._rows:
                self._rows[trial] = self._row(params[trial])
        found = [np.array([self._rows[trial] for trial in part]) for part in (good, others)]
        return found[0], found[1]

    def _row(self, params: Mapping[str, Any]) -> Array:
        """Return each axis' place of its number or index of its choice; NaN without a value.

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


def log_density(rows: Array, points: Array, domains: Sequence[Domain], share: float) -> Array:
    """The logarithm of the density that ``points`` make at each of ``rows``.

    One kernel for each point, the product of those of its values; they get narrower with the
    number of points (Scott's rule). What a row or a point lacks says nothing: what its existence
    depends on has a kernel of its own.

    Args:
        share: of a uniform density; equal ones make unexplored ground neither good nor bad.
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
    density: Array = np.log(share + (1 - share) * np.exp(kernels).mean(axis=1))
    return density
