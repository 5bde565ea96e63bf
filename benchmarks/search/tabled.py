"""Part h: models of hyperparameters on tables of real learning curves (``tables``).

Ours with and without a model, beside the same of the peers, whose own code proposes and decides.
A method's result at a time is what its incumbent is worth when trained in full: the trial that is
best at the greatest length at which anybody has reported. Time is in average whole trainings.
Everybody is told ``WORST`` where training has diverged, for not all can be told NaN.
"""

from __future__ import annotations

import functools
import logging
import math
import multiprocessing
import os
import random
import statistics
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.search import tables
from benchmarks.search.driven_peers import Driven, RayOptuna, Syne
from benchmarks.search.rules import Ladder, ours
from hpcdet.search.api import events
from hpcdet.sim.cluster import Cluster
from hpcdet.sim.engine import Simulation
from hpcdet.sim.outcome import Course
from hpcdet.sim.turns import Reports

ETA, RUNGS = 3, 4
HORIZON = {4: 6.0, 25: 2.0}
"""In whole trainings, by workers: about 200 and 450 trials."""
SEEDS = 20
MOMENTS = 20
"""Ranks are means over so many times, evenly up to the horizon."""
WORST = 1e3


class Told(Course):
    """Keeps what every report said."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[float, int, int, float]] = []

    def learn(self, at_s: float, trial: int, length: int, loss: float, *more: Any) -> None:
        super().learn(at_s, trial, length, loss, *more)
        self.told.append((at_s, trial, length, loss))


@dataclass
class Rows:
    """A workload of ``hpcdet.sim``: each trial's curve is a table's."""

    table: tables.Table
    mine: dict[int, tuple[list[float], list[float]]] = field(default_factory=dict)

    def begin(self, trial: int, params: Mapping[str, Any]) -> None:
        losses, costs = self.table.curve(params)
        self.mine[trial] = losses.tolist(), costs.tolist()

    def inherit(self, trial: int, parent: int) -> None:
        """No method here copies trials."""

    def seconds(self, trial: int, begin: int, until: int) -> float:
        costs = self.mine[trial][1]
        return costs[until - 1] - (costs[begin - 1] if begin else 0.0)

    def metric(self, trial: int, length: int) -> float:
        loss = self.mine[trial][0][length - 1]
        return loss if math.isfinite(loss) else WORST

    def final(self, trial: int) -> float:
        return self.metric(trial, self.table.full)


Make = Callable[[Ladder, dict[str, Any], int], events.Searcher]


def _ours(name: str, **asked: Any) -> Make:
    return lambda ladder, space, seed: ours(ladder, name, space, seed, **asked)


def _rungs(sampler: str) -> Make:
    return _ours("async_halving", num_rungs=RUNGS, divisor=ETA, sampler={"name": sampler})


def _syne(model: bool) -> Make:
    return lambda ladder, space, seed: Driven(ladder, Syne(ladder, space, seed, model))


def _ray(ladder: Ladder, space: dict[str, Any], seed: int) -> events.Searcher:
    return Driven(ladder, RayOptuna(ladder, space, seed))


WITH, WITHOUT = "hpcdet TPE, hybrid", "hpcdet random, hybrid"
METHODS: dict[str, Make] = {
    WITH: _rungs("tpe"),
    WITHOUT: _rungs("random"),
    "hpcdet bohb": _ours("bohb", max_rungs=RUNGS, divisor=ETA),
    "hpcdet adaptive_asha": _ours("adaptive_asha", max_rungs=RUNGS, divisor=ETA),
    "hpcdet bayesian (TPE)": _ours("bayesian", sampler={"name": "tpe"}),
    "Syne Tune BOHB": _syne(True),
    "Syne Tune ASHA": _syne(False),
    "Ray ASHA, Optuna": _ray,
    "random": _ours("random"),
}


@dataclass(frozen=True)
class Run:
    table: str
    method: str
    workers: int
    seed: int
    rows: int = tables.ROWS
    horizon: float = 0.0


@functools.cache
def _table(name: str, rows: int) -> tables.Table:
    return tables.load(name, rows)


def perform(run: Run, make: Make | None = None) -> list[float]:
    """What the incumbent is worth at each moment; infinity before the first report."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    table = _table(run.table, run.rows)
    ladder = Ladder(table.full, ETA, run.workers, rung_count=RUNGS)
    horizon = run.horizon or HORIZON[run.workers]
    workload, told = Rows(table), Told()
    simulation = Simulation(
        (make or METHODS[run.method])(ladder, table.space, run.seed),
        Cluster(workers=run.workers, idle_s=math.inf),
        workload,
        Reports(ladder.rungs),
        seed=run.seed,
        horizon_s=horizon,
    )
    simulation.course = told
    simulation.run()
    moments = [horizon * (n + 1) / MOMENTS for n in range(MOMENTS)]
    values: list[float] = []
    best, reports = (0, math.inf, 0), iter([*told.told, (math.inf, 0, 0, 0.0)])
    at, trial, length, loss = next(reports)
    for moment in moments:
        while at <= moment:
            best = min(best, (-length, loss, trial))
            at, trial, length, loss = next(reports)
        values.append(workload.final(best[2]) if best[2] else math.inf)
    return values


def measure(quick: bool) -> list[dict[str, Any]]:
    """All methods on the tables that decide (``HPCDET_BENCH_TABLES=tuning``: on the others)."""
    chosen = tables.TUNING if os.environ.get("HPCDET_BENCH_TABLES") == "tuning" else tables.JUDGING
    names, seeds, workers, rows = list(chosen), SEEDS, tuple(HORIZON), tables.ROWS
    if quick:
        names, seeds, workers, rows = ["boosting, breast cancer"], 2, (4,), 40
    for name in names:
        tables.build(name, rows)
    runs = [
        Run(name, method, count, seed, rows, 1.0 if quick else HORIZON[count])
        for seed in range(seeds)
        for name in names
        for count in workers
        for method in METHODS
    ]
    found: dict[Run, list[float]] = {}
    with multiprocessing.Pool(int(os.environ.get("HPCDET_BENCH_PROCESSES", "2"))) as pool:
        for run, values in zip(runs, pool.imap(perform, runs), strict=True):
            found[run] = values
            if len(found) % 100 == 0:
                print(f"part h: {len(found)} of {len(runs)}", file=sys.stderr, flush=True)
    return summaries(found)


Ranks = dict[tuple[int, str, str], list[list[float]]]
"""By workers, table and method: for each seed the ranks at all moments."""


def ranked(found: Mapping[Run, Sequence[float]]) -> Ranks:
    """Equal values share a rank."""
    by_seed: dict[tuple[int, str, int], dict[str, Sequence[float]]] = {}
    for run, values in found.items():
        by_seed.setdefault((run.workers, run.table, run.seed), {})[run.method] = values
    ranks: Ranks = {}
    for (workers, table, _), rivals in by_seed.items():
        for method, mine in rivals.items():
            of_seed = [
                0.5
                + sum(other[n] < value for other in rivals.values())
                + sum(other[n] == value for other in rivals.values()) / 2
                for n, value in enumerate(mine)
            ]
            ranks.setdefault((workers, table, method), []).append(of_seed)
    return ranks


def summaries(found: Mapping[Run, Sequence[float]]) -> list[dict[str, Any]]:
    """Mean ranks by method, and differences of ranks that decide what is claimed."""
    ranks = ranked(found)
    names = list(dict.fromkeys(run.table for run in found))
    methods = list(dict.fromkeys(run.method for run in found))
    rows: list[dict[str, Any]] = []
    for workers in dict.fromkeys(run.workers for run in found):
        mean = {
            method: [_means(ranks[workers, table, method]) for table in names] for method in methods
        }
        for method in methods:
            all_of_it = [ranks[workers, table, method] for table in names]
            rows.append(
                {
                    "kind": "tabled",
                    "workers": workers,
                    "method": method,
                    "runs": len(mean[method][0]),
                    "rank": _drawn(mean[method]),
                    "by_table": {
                        table: statistics.fmean(seeds)
                        for table, seeds in zip(names, mean[method], strict=True)
                    },
                    "quarters": [
                        statistics.fmean(
                            statistics.fmean(seed[n : n + MOMENTS // 4])
                            for seeds in all_of_it
                            for seed in seeds
                        )
                        for n in range(0, MOMENTS, MOMENTS // 4)
                    ],
                }
            )
        peers = [name for name in methods if not name.startswith(("hpcdet", "random"))]
        pairs = [(WITH, WITHOUT)]
        if peers:
            rival = min(peers, key=lambda name: statistics.fmean(map(statistics.fmean, mean[name])))
            pairs += [(WITH, rival), (WITHOUT, rival)]
        for mine, other in pairs:
            apart = [
                [a - b for a, b in zip(one, two, strict=True)]
                for one, two in zip(mean[mine], mean[other], strict=True)
            ]
            rows.append(
                {
                    "kind": "apart",
                    "workers": workers,
                    "method": mine,
                    "other": other,
                    "runs": len(apart[0]),
                    "all": _drawn(apart),
                    "by_table": {
                        table: _drawn([one]) for table, one in zip(names, apart, strict=True)
                    },
                }
            )
    return rows


def _means(seeds: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.fmean(seed) for seed in seeds]


def _drawn(by_table: Sequence[Sequence[float]]) -> list[float]:
    """The mean over tables of means over seeds, and its 95 % bounds by bootstrap over seeds."""
    rng = random.Random(0)

    def mean(drawn: Sequence[Sequence[float]]) -> float:
        return statistics.fmean(statistics.fmean(one) for one in drawn)

    often = sorted(mean([rng.choices(one, k=len(one)) for one in by_table]) for _ in range(1000))
    return [mean(by_table), often[25], often[-26]]
