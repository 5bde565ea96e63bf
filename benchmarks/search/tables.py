"""Tables of learning curves on scikit-learn's bundled data: ``make bench-search-tables``.

Each table has ``ROWS`` random points of a search space, trained in full: what validation showed at
each length, and what training up to there had cost. A search may ask for any point; it gets the
curve of the nearest row. Costs are counted, not measured, so that a table is the same on any
machine but for rounding. Tables lie under ``~/.cache/hpcdet-bench/tables``, outside of git.

Samplers may be tuned on the tables in ``TUNING``. Those in ``JUDGING`` decide what is claimed.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.search import learners
from benchmarks.search.learners import Curve, Data, Params, data
from hpcdet.space.space import Space

FORMAT = 1
ROWS = 600
TREES = 30
TINY = 1e-4
"""Added to losses before their logarithm: some are 0."""


@dataclass(frozen=True)
class Kind:
    train: Callable[[Params, Data, int], Curve]
    space: dict[str, Any]
    data: str
    full: int
    """The length of a whole training, in epochs, trees or parts of the training set."""


TUNING = {
    "network, digits": Kind(learners.network, learners.NETWORK, "digits", 27),
    "linear, breast cancer": Kind(learners.linear, learners.LINEAR, "breast_cancer", 27),
    "boosting, diabetes": Kind(learners.boosting, learners.BOOSTING, "diabetes", 81),
    "kernels, digits": Kind(learners.kernels, learners.KERNELS, "digits", 27),
    "forest, wine": Kind(learners.forest, learners.FOREST, "wine", 81),
}
JUDGING = {
    "network, diabetes": Kind(learners.network, learners.NETWORK, "diabetes", 81),
    "linear, digits": Kind(learners.linear, learners.LINEAR, "digits", 27),
    "boosting, breast cancer": Kind(learners.boosting, learners.BOOSTING, "breast_cancer", 81),
    "svm, digits": Kind(learners.svm, learners.SVM, "digits", 27),
    "forest, breast cancer": Kind(learners.forest, learners.FOREST, "breast_cancer", 81),
}
ALL = TUNING | JUDGING


def folder() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return home / "hpcdet-bench" / "tables"


@dataclass
class Table:
    """What every row has shown, and what points between them would.

    Between rows the logarithm of a loss is that of extremely randomised trees (Geurts et al.,
    2006), grown on all rows until every leaf has one: on a row they say what it has shown. That
    foretells left-out rows far better than the nearest row does, which would also make a search
    near a good row find the same again and again.

    Attributes:
        losses, costs: (rows, lengths); costs of a whole training are 1 on average.
    """

    name: str
    space: dict[str, Any]
    rows: list[dict[str, Any]]
    losses: NDArray[np.float64]
    costs: NDArray[np.float64]

    def __post_init__(self) -> None:
        from sklearn.ensemble import ExtraTreesRegressor

        self._points = np.array([self._point(row) for row in self.rows])
        diverged = np.nanmax(self.losses, axis=0)
        logs = np.log(np.where(np.isnan(self.losses), diverged, self.losses) + TINY)
        shown = np.hstack([logs, np.log(self.costs[:, -1:])])
        model = ExtraTreesRegressor(TREES, random_state=0).fit(self._points, shown)
        self._trees = [
            (
                tree.tree_.feature.tolist(),
                tree.tree_.threshold.tolist(),
                tree.tree_.children_left.tolist(),
                tree.tree_.children_right.tolist(),
                tree.tree_.value[:, :, 0],
            )
            for tree in model.estimators_
        ]
        self._shape = self.costs[0] / self.costs[0, -1]

    @property
    def full(self) -> int:
        return int(self.losses.shape[1])

    def curve(self, params: Params) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Losses at all lengths, and costs up to there; NaN where the nearest row has diverged."""
        point = self._point(params)
        at, summed = point.tolist(), np.zeros(self.full + 1)
        for feature, threshold, left, right, value in self._trees:
            node = 0
            while feature[node] >= 0:
                node = (left if at[feature[node]] <= threshold[node] else right)[node]
            summed += value[node]
        said = np.exp(summed / TREES)
        nearest = int(((self._points - point) ** 2).sum(axis=1).argmin())
        losses = np.where(np.isnan(self.losses[nearest]), math.nan, said[:-1] - TINY)
        return losses, said[-1] * self._shape

    def _point(self, params: Params) -> NDArray[np.float64]:
        """Numbers scaled to 0 and 1, as they are drawn; other choices are 1 apart."""
        found: list[float] = []
        for name, domain in self.space.items():
            value = params[name]
            match domain["type"]:
                case "loguniform" | "log_int":
                    low, high = math.log(domain["low"]), math.log(domain["high"])
                    found.append((math.log(value) - low) / (high - low))
                case "int" | "double":
                    low, high = domain["minval"], domain["maxval"]
                    found.append((value - low) / (high - low))
                case "categorical":
                    found += [math.sqrt(0.5) * (value == other) for other in domain["vals"]]
        return np.array(found, dtype=np.float32).astype(np.float64)  # as the trees have seen them


def _row(asked: tuple[str, int]) -> Curve:
    warnings.filterwarnings("ignore")
    np.seterr(all="ignore")
    name, number = asked
    kind = ALL[name]
    params = Space(kind.space).sample(0, number)
    losses, costs = kind.train(params, data(kind.data), kind.full)
    return [float(f"{loss:.6g}") for loss in losses], costs


def build(name: str, rows: int = ROWS, processes: int = 2) -> Path:
    """Train every row of a table, unless it is there."""
    file = folder() / f"{name.replace(', ', '-').replace(' ', '-')}-{rows}.{FORMAT}.json"
    if file.exists():
        return file
    asked = [(name, number) for number in range(1, rows + 1)]
    if processes > 1:
        with multiprocessing.Pool(processes) as pool:
            curves = pool.map(_row, asked, chunksize=8)
    else:
        curves = [_row(one) for one in asked]
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(curves))
    temporary.replace(file)
    return file


def load(name: str, rows: int = ROWS, processes: int = 2) -> Table:
    """A table, which is built if it is not there."""
    kind = ALL[name]
    curves = json.loads(build(name, rows, processes).read_text())
    losses, costs = (np.array([curve[n] for curve in curves]) for n in (0, 1))
    sampled = [Space(kind.space).sample(0, number) for number in range(1, rows + 1)]
    return Table(name, kind.space, sampled, losses, costs / costs[:, -1].mean())


def main() -> int:
    begin = time.monotonic()
    for name in sys.argv[1:] or ALL:
        build(name)
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
