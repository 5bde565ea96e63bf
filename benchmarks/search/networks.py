"""Part d: real networks on scikit-learn's bundled data; the same seconds of two cores for all.

Each configuration is trained once, as far as any rule wants it, and its losses and seconds are
kept; each rule then spends the same budget of these measured seconds on two simulated workers.
So every rule sees the same losses and costs, and none pays for the noise of the machine.
"""

from __future__ import annotations

import math
import multiprocessing
import random
import statistics
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optuna
from sklearn import datasets
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from benchmarks.search.rules import RULES, Ladder
from benchmarks.search.sampled import WORST, sampled, tpe
from hpcdet.sim.cluster import Cluster
from hpcdet.sim.engine import Simulation
from hpcdet.sim.turns import Reports

warnings.filterwarnings("ignore")
EPOCHS, ETA = 27, 3
BUDGET = 10
"""Full trainings of average cost, for each of the two workers."""
DATA = {
    "digits": datasets.load_digits,
    "breast cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
}
TPE = "Optuna TPE + halving"


def configuration(seed: int, trial: int) -> dict[str, Any]:
    rng = random.Random(seed * 1_000_003 + trial)
    return {
        "lr": 10 ** rng.uniform(-5, -0.5),
        "alpha": 10 ** rng.uniform(-7, 1),
        "width": int(2 ** rng.uniform(2, 7)),
        "depth": rng.randint(1, 3),
        "batch": int(2 ** rng.uniform(5, 8)),
        "momentum": rng.uniform(0, 0.99),
        "solver": rng.choice(["sgd", "adam"]),
    }


def suggested(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "lr": trial.suggest_float("lr", 10**-5, 10**-0.5, log=True),
        "alpha": trial.suggest_float("alpha", 1e-7, 10, log=True),
        "width": trial.suggest_int("width", 4, 128, log=True),
        "depth": trial.suggest_int("depth", 1, 3),
        "batch": trial.suggest_int("batch", 32, 256, log=True),
        "momentum": trial.suggest_float("momentum", 0, 0.99),
        "solver": trial.suggest_categorical("solver", ["sgd", "adam"]),
    }


@dataclass
class Network:
    """A configuration in training: loss after, and seconds up to, each epoch."""

    model: MLPClassifier
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=lambda: [0.0])


class Networks:
    """A workload of ``hpcdet.sim``: trains when somebody asks what training gave."""

    def __init__(self, data: str, seed: int) -> None:
        self.seed = seed
        x, y = DATA[data](return_X_y=True)
        parts = train_test_split(x, y, test_size=0.3, random_state=seed, stratify=y)
        scaler = StandardScaler().fit(parts[0])
        self.x, self.valid = scaler.transform(parts[0]), scaler.transform(parts[1])
        self.y, self.truth = parts[2], parts[3]
        self.classes = np.unique(y)
        self.made: dict[str, Network] = {}
        self.mine: dict[int, Network] = {}

    def restart(self) -> None:
        """Another search begins; what was trained is kept."""
        self.mine = {}

    def begin(self, trial: int, params: Mapping[str, Any]) -> None:
        asked = dict(params) if "lr" in params else configuration(self.seed, trial)
        self.mine[trial] = self.made.setdefault(repr(asked), self._network(asked))

    def seconds(self, trial: int, begin: int, until: int) -> float:
        self._train(trial, until)
        took = self.mine[trial].seconds
        return took[until] - took[begin]

    def metric(self, trial: int, length: int) -> float:
        self._train(trial, length)
        return self.mine[trial].losses[length - 1]

    def final(self, trial: int) -> float:
        """The best of all its epochs: that checkpoint is the one that is kept."""
        self._train(trial, EPOCHS)
        return min(self.mine[trial].losses[:EPOCHS])

    def _network(self, asked: dict[str, Any]) -> Network:
        return Network(
            MLPClassifier(
                (asked["width"],) * asked["depth"],
                solver=asked["solver"],
                alpha=asked["alpha"],
                batch_size=min(asked["batch"], len(self.x)),
                learning_rate_init=asked["lr"],
                momentum=asked["momentum"],
                random_state=self.seed,
            )
        )

    def _train(self, trial: int, epochs: int) -> None:
        network = self.mine[trial]
        while len(network.losses) < epochs:
            begin = time.process_time()
            network.losses.append(self._epoch(network.model))
            network.seconds.append(network.seconds[-1] + time.process_time() - begin)

    def _epoch(self, model: MLPClassifier) -> float:
        try:
            model.partial_fit(self.x, self.y, classes=self.classes)
            chances = model.predict_proba(self.valid)
        except ValueError:  # weights have become infinite
            return WORST
        right = chances[np.arange(len(self.truth)), np.searchsorted(self.classes, self.truth)]
        loss = float(-np.log(np.clip(right, 1e-12, 1)).mean())
        return loss if math.isfinite(loss) else WORST


@dataclass(frozen=True)
class Task:
    data: str
    seed: int
    tpe: bool
    quick: bool


def perform(task: Task) -> list[dict[str, Any]]:
    """All rules on one data set and one split of it."""
    networks, ladder = Networks(task.data, task.seed), Ladder(EPOCHS, ETA, 2)
    few = range(1, 4 if task.quick else 13)
    for trial in few:
        networks.begin(trial, {})
    full = statistics.fmean(networks.seconds(trial, 0, EPOCHS) for trial in few)
    horizon = (2 if task.quick else BUDGET) * full
    rules = {name: make(ladder) for name, make in RULES.items()}
    if task.tpe:
        rules[TPE] = sampled(ladder, TPE, suggested, tpe(task.seed), "halving")
    found = []
    for name, rule in rules.items():
        networks.restart()
        course = Simulation(
            rule,
            Cluster(workers=2, idle_s=math.inf),
            networks,
            Reports(ladder.rungs),
            horizon_s=horizon,
        ).run()
        finished = [value for _, _, value in course.finished]
        found.append(
            {
                "data": task.data,
                "seed": task.seed,
                "rule": name,
                "best": course.best[-1][2],
                "best_finished": min(finished, default=WORST),
                "trials": course.created,
                "finished": len(finished),
                "course": [(at / full, value) for at, _, value in course.best],
            }
        )
    return found


def measure(quick: bool) -> list[dict[str, Any]]:
    seeds, with_tpe = (1, 1) if quick else (5, 3)
    sets = ("wine",) if quick else tuple(DATA)
    tasks = [Task(data, seed, seed < with_tpe, quick) for data in sets for seed in range(seeds)]
    with multiprocessing.Pool(2) as pool:
        found = [one for each in pool.map(perform, tasks, chunksize=1) for one in each]
    return _summaries(found)


def _summaries(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over seeds, and the mean rank among rules that ran on all seeds."""
    by_split: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for one in found:
        by_split.setdefault((one["data"], one["seed"]), []).append(one)
    for rivals in by_split.values():
        common = [one for one in rivals if one["rule"] != TPE]
        random_best = next(one["best"] for one in rivals if one["rule"] == "random")
        for one in rivals:
            others = [other["best"] for other in common if other is not one]
            one["rank"] = 1 + sum(value < one["best"] for value in others)
            one["to_random"] = next(
                (at for at, value in one["course"] if value <= random_best), math.inf
            )
    rows = []
    for data in dict.fromkeys(one["data"] for one in found):
        for rule in dict.fromkeys(one["rule"] for one in found):
            mine = [one for one in found if (one["data"], one["rule"]) == (data, rule)]
            if not mine:
                continue
            rows.append(
                {
                    "kind": "network",
                    "data": data,
                    "rule": rule,
                    "runs": len(mine),
                    "best": statistics.median(one["best"] for one in mine),
                    "best_finished": statistics.median(one["best_finished"] for one in mine),
                    "time_to_random": statistics.median(one["to_random"] for one in mine),
                    "trials": statistics.median(one["trials"] for one in mine),
                    "finished": statistics.median(one["finished"] for one in mine),
                    "rank": statistics.fmean(one["rank"] for one in mine),
                }
            )
    return rows
