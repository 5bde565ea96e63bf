"""Part g: what Hyperband's authors claim, where they claim it: one worker, cheap first looks.

Li et al. (JMLR 18, 2018) report the largest gains over random and Bayesian search where the
resource is the number of training samples and time grows faster than it: regularised least
squares with kernels (section 4.3.1). Here on the digits that come with scikit-learn, in measured
seconds. And where the resource is iterations, on the curves of part f. A method is as fast as it
comes to a model, trained in full, that is as good as the best few of random ones. Nobody can be
there before one full training: random search needs ``1 / share`` of these, which bounds the gain.
"""

from __future__ import annotations

import math
import multiprocessing
import random
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from sklearn import datasets, preprocessing
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.model_selection import train_test_split

from benchmarks.search import samplers
from benchmarks.search.clusters import bounds
from benchmarks.search.rules import Ladder, ours
from benchmarks.search.sampled import WORST, sampled, tpe
from hpcdet.search.api import events
from hpcdet.sim.cluster import Cluster
from hpcdet.sim.engine import Simulation
from hpcdet.sim.surrogate import Curves
from hpcdet.sim.turns import Reports
from hpcdet.space.space import Space

ETA = 4
SAMPLES = 1280
"""Of the training set: 20, 80, 320, 1280 at the rungs."""
POPULATION = 400
"""Random configurations, trained in full, that say what is good."""
SHARES = {"kernels": 0.01, "iterations": 0.001}
HORIZONS = {"kernels": 400.0, "iterations": 4000.0}
"""In full trainings, of random search; the others are given up after ``PATIENCE`` of them.

Who has found nothing by then counts as if it had then: gains over it are bounds from below.
"""
PATIENCE = 250.0
BAYESIAN = "Optuna TPE"

KERNELS = {
    "scaler": {"type": "categorical", "vals": ["minmax", "standard", "normalize"]},
    "kernel": {"type": "categorical", "vals": ["rbf", "polynomial", "sigmoid"]},
    "C": {"type": "loguniform", "low": 1e-3, "high": 1e5},
    "gamma": {"type": "loguniform", "low": 1e-5, "high": 10.0},
    "degree": {"type": "int", "minval": 2, "maxval": 5},
    "coef0": {"type": "double", "minval": -1.0, "maxval": 1.0},
}
"""The authors' space (their table 6)."""


def suggested_kernel(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "scaler": trial.suggest_categorical("scaler", KERNELS["scaler"]["vals"]),
        "kernel": trial.suggest_categorical("kernel", KERNELS["kernel"]["vals"]),
        "C": trial.suggest_float("C", 1e-3, 1e5, log=True),
        "gamma": trial.suggest_float("gamma", 1e-5, 10.0, log=True),
        "degree": trial.suggest_int("degree", 2, 5),
        "coef0": trial.suggest_float("coef0", -1.0, 1.0),
    }


class Kernels:
    """A workload: each rung trains anew, on more samples. Errors and seconds are measured once."""

    def __init__(self, seed: int) -> None:
        x, y = datasets.load_digits(return_X_y=True)
        parts = train_test_split(x, y, train_size=SAMPLES, random_state=seed, stratify=y)
        self.x, self.valid, self.y, self.truth = parts
        self.known: dict[tuple[str, int], tuple[float, float]] = {}
        self.mine: dict[int, Mapping[str, Any]] = {}

    def begin(self, trial: int, params: Mapping[str, Any]) -> None:
        self.mine[trial] = dict(params)

    def seconds(self, trial: int, begin: int, until: int) -> float:
        return self._trained(trial, until)[1]

    def metric(self, trial: int, length: int) -> float:
        return self._trained(trial, length)[0]

    def final(self, trial: int) -> float:
        return self.metric(trial, SAMPLES)

    def _trained(self, trial: int, samples: int) -> tuple[float, float]:
        key = (repr(self.mine[trial]), samples)
        if key not in self.known:
            begin = time.process_time()
            error = self._error(self.mine[trial], samples)
            self.known[key] = (error, time.process_time() - begin)
        return self.known[key]

    def _error(self, asked: Mapping[str, Any], samples: int) -> float:
        """Share of the validation set that one-against-all least squares gets wrong."""
        scaler = {
            "minmax": preprocessing.MinMaxScaler,
            "standard": preprocessing.StandardScaler,
            "normalize": preprocessing.Normalizer,
        }[asked["scaler"]]().fit(self.x[:samples])
        x, valid = scaler.transform(self.x[:samples]), scaler.transform(self.valid)
        shape: dict[str, Any] = {"gamma": asked["gamma"]}
        if asked["kernel"] != "rbf":
            shape["coef0"] = asked["coef0"]
        if asked["kernel"] == "polynomial":
            shape["degree"] = asked["degree"]
        gram = pairwise_kernels(x, metric=asked["kernel"], **shape)
        gram[np.diag_indices(samples)] += 1 / asked["C"]
        wanted = np.eye(10)[self.y[:samples]] * 2 - 1
        try:
            weights: NDArray[np.float64] = np.linalg.solve(gram, wanted)
        except np.linalg.LinAlgError:
            return WORST
        scores = pairwise_kernels(valid, x, metric=asked["kernel"], **shape) @ weights
        if not np.isfinite(scores).all():
            return WORST
        return float((scores.argmax(axis=1) != self.truth).mean())


@dataclass(frozen=True)
class Task:
    workload: str
    seed: int
    quick: bool


def _methods(ladder: Ladder, space: dict[str, Any], seed: int, draw: Any) -> dict[str, Any]:
    rungs = {"num_rungs": len(ladder.rungs), "divisor": ETA}
    brackets = {"max_rungs": len(ladder.rungs), "divisor": ETA}
    return {
        "hpcdet hyperband": ours(ladder, "hyperband", space, seed, **brackets),
        "hpcdet hybrid": ours(ladder, "async_halving", space, seed, **rungs),
        "hpcdet bohb": ours(ladder, "bohb", space, seed, **brackets),
        "Optuna TPE, Hyperband": sampled(
            ladder, "Optuna TPE, Hyperband", draw, tpe(seed), "hyperband"
        ),
        BAYESIAN: sampled(ladder, BAYESIAN, draw, tpe(seed)),
        "random": ours(ladder, "random", space, seed),
    }


def perform(task: Task) -> list[dict[str, Any]]:
    """All methods on one workload, and the time of each to its quality in full trainings."""
    if task.workload == "kernels":
        ladder, space = Ladder(SAMPLES, ETA, 1, rung_count=4), KERNELS
        draw: Any = suggested_kernel
        workload: Any = Kernels(task.seed)
        goal, full, looks = _standard(workload, task)
    else:
        ladder, space, draw = Ladder(256, ETA, 1), samplers.SPACE, samplers.suggested
        workload = samplers.Landscape(task.seed, 256)
        goal, full = Curves(task.seed, 256).quantile(SHARES[task.workload]), 256.0
        looks = {}
    horizon = HORIZONS[task.workload]
    rows = []
    for name, method in _methods(ladder, space, task.seed, draw).items():
        until = 5.0 if task.quick else horizon if name == "random" else PATIENCE
        searcher = Until(method)
        course = Simulation(
            searcher,
            Cluster(workers=1, idle_s=math.inf),
            Watched(workload, goal, searcher),
            Reports(ladder.rungs),
            seed=task.seed,
            horizon_s=full * until,
        ).run()
        rows.append(
            {
                "workload": task.workload,
                "seed": task.seed,
                "method": name,
                "to": min(course.time_to_finished(goal) / full, until),
                "until": until,
                "trials": course.created,
                "finished": len(course.finished),
                "looks": looks,
            }
        )
    return rows


class Until:
    """A searcher that is asked no more once somebody has what was looked for."""

    def __init__(self, method: events.Searcher) -> None:
        self.method, self.found = method, False
        self.name, self.version = method.name, method.version

    def initial(self) -> events.State:
        return self.method.initial()

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        if self.found:
            return state, [events.Shutdown()]
        return self.method.on_event(state, event)


class Watched:
    """A workload that tells the searcher when a model is good enough."""

    def __init__(self, workload: Any, goal: float, searcher: Until) -> None:
        self.workload, self.goal, self.searcher = workload, goal, searcher
        self.begin, self.seconds = workload.begin, workload.seconds
        self.metric = workload.metric

    def final(self, trial: int) -> float:
        value = float(self.workload.final(trial))
        self.searcher.found = self.searcher.found or value <= self.goal
        return value


def _standard(workload: Kernels, task: Task) -> tuple[float, float, dict[str, float]]:
    """What counts as good, the seconds of one full training on average, and what looks are worth.

    Looks: what one at the lowest rung costs in full trainings; how many of those that are good in
    the end are among the best ``1 / ETA`` there, ``1 / ETA**2`` at the next one, and so on.
    """
    space, number = Space(KERNELS), 20 if task.quick else POPULATION
    rng = random.Random(task.seed)
    errors, seconds = [], []
    looks: dict[int, list[tuple[float, float]]] = {
        SAMPLES // ETA**below: [] for below in range(3, 0, -1)
    }
    for place in range(number):
        workload.begin(0, space.sample(1_000_000 + task.seed, place + rng.randrange(10**6)))
        error, took = workload._trained(0, SAMPLES)
        errors.append(error)
        seconds.append(took)
        for samples, seen in looks.items():
            seen.append(workload._trained(0, samples))
    goal, full = sorted(errors)[int(SHARES["kernels"] * number)], statistics.fmean(seconds)
    good = [place for place, error in enumerate(errors) if error <= goal]
    worth = {
        "cost": statistics.fmean(took for _, took in looks[SAMPLES // ETA**3]) / full,
        "good": len(good) / number,
    }
    for rung, (samples, seen) in enumerate(looks.items(), 1):
        cut = sorted(error for error, _ in seen)[max(number // ETA**rung, 1) - 1]
        worth[f"kept at {samples}"] = statistics.fmean(seen[place][0] <= cut for place in good)
    return goal, full, worth


def measure(quick: bool) -> list[dict[str, Any]]:
    seeds = {"kernels": 1 if quick else 6, "iterations": 1 if quick else 12}
    tasks = [Task(name, seed, quick) for name, count in seeds.items() for seed in range(count)]
    with multiprocessing.Pool(2) as pool:
        found = [row for rows in pool.map(perform, tasks, chunksize=1) for row in rows]
    summary = []
    for workload in SHARES:
        same = [row for row in found if row["workload"] == workload]
        for method in dict.fromkeys(row["method"] for row in same):
            mine = [row for row in same if row["method"] == method]
            summary.append(
                {
                    "kind": "headline",
                    "workload": workload,
                    "method": method,
                    "runs": len(mine),
                    "to": bounds([row["to"] for row in mine], statistics.median),
                    "until": mine[0]["until"],
                    "found": sum(row["to"] < row["until"] for row in mine),
                    "trials": statistics.median(row["trials"] for row in mine),
                    "finished": statistics.median(row["finished"] for row in mine),
                    "looks": {
                        name: statistics.fmean(row["looks"][name] for row in mine)
                        for name in mine[0]["looks"]
                    },
                }
            )
    return summary
