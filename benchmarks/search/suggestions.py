"""Part b: what the next configuration costs when so many have been tried. Ten hyperparameters.

Ours by a model is timed through the searcher: a whole decision that makes a trial, the verdict on
the report that came and the records besides. Of Optuna's samplers ``ask`` is timed, alone.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

import optuna

from benchmarks.search.rules import METRIC
from hpcdet.search.api import events
from hpcdet.search.halving.halving import NEWEST
from hpcdet.search.searcher_factory import searcher
from hpcdet.sim.cluster import Cluster
from hpcdet.sim.engine import Simulation
from hpcdet.sim.surrogate import Curves
from hpcdet.sim.turns import Reports
from hpcdet.space.space import Space
from hpcdet.store.config.resolved_config import resolve

SPACE = {
    "lr": {"type": "loguniform", "low": 1e-6, "high": 1e-1},
    "decay": {"type": "loguniform", "low": 1e-6, "high": 1.0},
    "momentum": {"type": "double", "minval": 0.5, "maxval": 0.999},
    "batch": {"type": "int", "minval": 8, "maxval": 512},
    "layers": {"type": "int", "minval": 1, "maxval": 32},
    "act": {"type": "categorical", "vals": ["a", "b", "c", "d"]},
    "drop": {"type": "double", "minval": 0.0, "maxval": 0.5},
    "warm": {"type": "double", "minval": 0.0, "maxval": 0.3},
    "optimizer": {"type": "categorical", "vals": ["sgd", "adam", "lion"]},
    "ema": {"type": "double", "minval": 0.9, "maxval": 0.9999},
}


def ours_random(trials: int, times: int) -> list[float]:
    space, took = Space(SPACE), []
    for number in range(trials, trials + times):
        begin = time.perf_counter()
        space.sample(0, number)
        took.append(time.perf_counter() - begin)
    return took


class Suggesting:
    """A searcher of which the decisions that make trials from the ``first`` on are timed."""

    def __init__(self, method: events.Searcher, first: int) -> None:
        self.method, self.first = method, first
        self.name, self.version = method.name, method.version
        self.took: list[float] = []

    def initial(self) -> events.State:
        return self.method.initial()

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        begin = time.perf_counter()
        state, actions = self.method.on_event(state, event)
        took = time.perf_counter() - begin
        made = [a.trial for a in actions if isinstance(a, events.Create)]
        if made and max(made) >= self.first:
            self.took.append(took / len(made))
        return state, actions


def ours_model(trials: int, times: int) -> list[float]:
    """Seconds of decisions that ask the model; earlier trials have random hyperparameters."""
    space, warm = Space(SPACE), 2
    asked = {
        "name": "async_halving",
        "metric": METRIC,
        "max_length": {"batches": 256},
        "num_rungs": 5,
        "divisor": 4,
        "max_trials": trials + warm + times,
        "max_concurrent_trials": 25,
        "rule_version": NEWEST,
        "sampler": {"name": "tpe", "random_fraction": 0.0},
    }
    resolved = resolve({"hyperparameters": SPACE, "searcher": asked})
    known = {number: space.sample(0, number) for number in range(1, trials + 1)}
    method = Suggesting(searcher(resolved, known=known), trials + warm + 1)
    lengths = [rung.value for rung in resolved.searcher.rungs]
    Simulation(method, Cluster(workers=25), Curves(0, 256), Reports(lengths)).run()
    return method.took


def optuna_sampler(sampler: optuna.samplers.BaseSampler, trials: int, times: int) -> list[float]:
    """Seconds of ``ask``, each told before the next."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    float_, int_ = optuna.distributions.FloatDistribution, optuna.distributions.IntDistribution
    choice = optuna.distributions.CategoricalDistribution
    space: dict[str, optuna.distributions.BaseDistribution] = {
        "lr": float_(1e-6, 1e-1, log=True),
        "decay": float_(1e-6, 1.0, log=True),
        "momentum": float_(0.5, 0.999),
        "batch": int_(8, 512),
        "layers": int_(1, 32),
        "act": choice(["a", "b", "c", "d"]),
        "drop": float_(0.0, 0.5),
        "warm": float_(0.0, 0.3),
        "optimizer": choice(["sgd", "adam", "lion"]),
        "ema": float_(0.9, 0.9999),
    }
    drawn, rng = Space(SPACE), random.Random(0)
    study = optuna.create_study(sampler=sampler)
    study.add_trials(
        [
            optuna.trial.create_trial(
                params=drawn.sample(0, number), distributions=space, value=rng.random()
            )
            for number in range(trials)
        ]
    )
    took = []
    for _ in range(times + 1):
        begin = time.perf_counter()
        trial = study.ask(space)
        took.append(time.perf_counter() - begin)
        study.tell(trial, rng.random())
    return took[1:]  # the first one warms up


def measure(quick: bool) -> list[dict[str, Any]]:
    rows = []
    for trials in (1_000,) if quick else (1_000, 10_000):
        times = 10 if quick else 50
        tpe = optuna.samplers.TPESampler(seed=0, multivariate=True, constant_liar=True)
        for name, took in (
            ("hpcdet random", ours_random(trials, times)),
            ("hpcdet TPE", ours_model(trials, times)),
            ("Optuna random", optuna_sampler(optuna.samplers.RandomSampler(0), trials, times)),
            ("Optuna TPE", optuna_sampler(tpe, trials, times)),
        ):
            took = sorted(took)
            rows.append(
                {
                    "kind": "suggestion",
                    "sampler": name,
                    "trials": trials,
                    "median_ms": statistics.median(took) * 1e3,
                    "p95_ms": took[int(0.95 * (len(took) - 1))] * 1e3,
                    "runs": len(took),
                }
            )
    return rows
