"""Part f: samplers on simulated clusters, where hyperparameters say how a trial learns.

The curves are those of part c, but a trial's belongs to the point that its six hyperparameters
are, not to its number. Time is in R, the training of one full-length trial.
"""

from __future__ import annotations

import importlib.util
import math
import multiprocessing
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optuna

from benchmarks.search.clusters import Outcome, Run, outcome_of, summaries
from benchmarks.search.rules import Ladder, ours
from benchmarks.search.sampled import sampled, tpe
from hpcdet.search.api import events
from hpcdet.sim.cluster import Cluster
from hpcdet.sim.engine import Simulation
from hpcdet.sim.surrogate import DIMENSIONS, Curves, curves
from hpcdet.sim.turns import Reports
from hpcdet.sim.waits import QueueWait

FULL, ETA, RUNGS = 81, 3, 4
HORIZON = {4: 8.0, 25: 3.0}
NAMES = tuple(f"x{place}" for place in range(DIMENSIONS))
SPACE = {name: {"type": "double", "minval": 0.0, "maxval": 1.0} for name in NAMES}
SEEDS = 10
SCENARIOS: dict[str, dict[str, Any]] = {
    "ideal": {},
    "cluster": {
        "stragglers": 0.5,
        "fail_per_h": 3600 * 0.001,
        "queue_wait": QueueWait("exp", FULL / 8),
        "walltime_s": FULL,
        "restore_s": 0.15,
        "save_s": 0.08,
    },
}


@dataclass
class Landscape(Curves):
    """Curves by hyperparameters; the noise is the trial number's."""

    _points: dict[int, list[float]] = field(default_factory=dict, repr=False)

    def begin(self, trial: int, params: Mapping[str, Any]) -> None:
        point = np.array([[params[name] for name in NAMES]])
        self._points[trial] = curves(point)[0].tolist()

    def _curve(self, trial: int) -> list[float]:
        return self._points[trial]


def suggested(trial: optuna.Trial) -> dict[str, Any]:
    return {name: trial.suggest_float(name, 0.0, 1.0) for name in NAMES}


def ladder_of(workers: int) -> Ladder:
    return Ladder(FULL, ETA, workers, rung_count=RUNGS)


Make = Callable[[Ladder, int], events.Searcher]


def _ours(name: str, **asked: Any) -> Make:
    def make(ladder: Ladder, seed: int) -> events.Searcher:
        return ours(ladder, name, SPACE, seed, **asked)

    return make


def _hybrid(sampler: str) -> Make:
    return _ours("async_halving", num_rungs=RUNGS, divisor=ETA, sampler={"name": sampler})


def _theirs(name: str, stops: str) -> Make:
    return lambda ladder, seed: sampled(ladder, name, suggested, tpe(seed), stops)


def _random(ladder: Ladder, seed: int) -> events.Searcher:
    name = "Optuna random, halving"
    return sampled(ladder, name, suggested, optuna.samplers.RandomSampler(seed), "halving")


def _gp(ladder: Ladder, seed: int) -> events.Searcher:
    return sampled(ladder, "Optuna GP", suggested, optuna.samplers.GPSampler(seed=seed))


SAMPLERS: dict[str, Make] = {
    "hpcdet random, hybrid": _hybrid("random"),
    "hpcdet TPE, hybrid": _hybrid("tpe"),
    "hpcdet bohb": _ours("bohb", max_rungs=RUNGS, divisor=ETA),
    "hpcdet bayesian (TPE)": _ours("bayesian", sampler={"name": "tpe"}),
    "Optuna random, halving": _random,
    "Optuna TPE, halving": _theirs("Optuna TPE, halving", "halving"),
    "Optuna TPE, Hyperband": _theirs("Optuna TPE, Hyperband", "hyperband"),
    "Optuna TPE": _theirs("Optuna TPE", ""),
    "random": _ours("random"),
}
if importlib.util.find_spec("torch"):
    SAMPLERS["Optuna GP"] = _gp


def perform(run: Run) -> Outcome:
    ladder = ladder_of(run.workers)
    cluster = Cluster(
        workers=run.workers,
        checkpoint_every_s=2,
        idle_s=math.inf,
        **SCENARIOS[run.scenario],
    )
    landscape = Landscape(run.seed, FULL)
    course = Simulation(
        SAMPLERS[run.rule](ladder, run.seed),
        cluster,
        landscape,
        Reports(ladder.rungs),
        seed=run.seed,
        horizon_s=run.horizon * FULL,
    ).run()
    return outcome_of(run, course, landscape, FULL, run.horizon)


def measure(quick: bool) -> list[dict[str, Any]]:
    seeds, workers = (2, (4,)) if quick else (SEEDS, tuple(HORIZON))
    runs = [
        Run(name, True, scenario, count, seed, 2.0 if quick else HORIZON[count])
        for seed in range(seeds)
        for count in sorted(workers, reverse=True)
        for scenario in SCENARIOS
        for name in SAMPLERS
    ]
    outcomes: list[Outcome] = []
    with multiprocessing.Pool(2) as pool:
        for outcome in pool.imap(perform, runs):
            outcomes.append(outcome)
            if len(outcomes) % 50 == 0:
                print(f"part f: {len(outcomes)} of {len(runs)}", file=sys.stderr, flush=True)
    return [{**row, "kind": "sampler"} for row in summaries(outcomes, HORIZON)]
