"""Part b: what the next configuration costs when so many have been tried. Ten hyperparameters.

Each of ours takes turns with Optuna's in one process, and each group of turns is a process of its
own. Times are of the processor, as other processes are about. Ours is a whole decision of the
searcher, with one place: it hears a report, and makes a trial. Of Optuna's that is ``tell`` and
``ask``, in a storage in memory, after the same trials with the same losses.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
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


Row = dict[str, Any]

LENGTH = 256
WARM = 2
"""Suggestions that are made first, and not timed."""


@dataclass(frozen=True)
class Job:
    """One of ours is timed so many times, after so many trials; all chance comes from a seed."""

    name: str
    trials: int
    times: int
    seed: int


def ours_random(job: Job, between: Callable[[], None]) -> list[float]:
    space, took = Space(SPACE), []
    for number in range(job.trials, job.trials + job.times):
        begin = time.process_time()
        space.sample(job.seed, number)
        took.append(time.process_time() - begin)
        between()
    return took


class Suggesting:
    """A searcher of which the decisions that make trials from the ``first`` on are timed."""

    def __init__(self, method: events.Searcher, first: int, between: Callable[[], None]) -> None:
        self.method, self.first, self.between = method, first, between
        self.name, self.version = method.name, method.version
        self.took: list[float] = []

    def initial(self) -> events.State:
        return self.method.initial()

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        begin = time.process_time()
        state, actions = self.method.on_event(state, event)
        took = time.process_time() - begin
        made = [a.trial for a in actions if isinstance(a, events.Create)]
        if made and max(made) >= self.first:
            self.took.append(took / len(made))
            self.between()
        return state, actions


def ours_model(
    name: str, rungs: dict[str, int], job: Job, between: Callable[[], None]
) -> list[float]:
    """Seconds of decisions that ask the model; earlier trials have random hyperparameters."""
    space = Space(SPACE)
    asked = {
        "name": name,
        "metric": METRIC,
        "max_length": {"batches": LENGTH},
        **rungs,
        "max_trials": job.trials + WARM + job.times,
        "max_concurrent_trials": 1,
        "rule_version": NEWEST,
        "sampler": {"name": "tpe", "random_fraction": 0.0},
    }
    chance = {"experiment_seed": job.seed}
    resolved = resolve({"hyperparameters": SPACE, "searcher": asked, "reproducibility": chance})
    known = {number: space.sample(job.seed, number) for number in range(1, job.trials + 1)}
    method = Suggesting(searcher(resolved, known=known), job.trials + WARM + 1, between)
    lengths = [rung.value for rung in resolved.searcher.rungs]
    Simulation(method, Cluster(workers=1), Curves(job.seed, LENGTH), Reports(lengths)).run()
    return method.took


def optunas(sampler: optuna.samplers.BaseSampler, job: Job) -> Iterator[float]:
    """Seconds of ``tell`` and the next ``ask``, without end."""
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
    drawn, curves = Space(SPACE), Curves(job.seed, LENGTH)
    study = optuna.create_study(sampler=sampler)
    study.add_trials(
        [
            optuna.trial.create_trial(
                params=drawn.sample(job.seed, number),
                distributions=space,
                value=curves.metric(number, LENGTH),
            )
            for number in range(1, job.trials + 1)
        ]
    )
    trial = study.ask(space)
    for number in itertools.count(job.trials + 1):
        loss = curves.metric(number, LENGTH)
        begin = time.process_time()
        study.tell(trial, loss)
        trial = study.ask(space)
        yield time.process_time() - begin


OURS: dict[str, tuple[Callable[[Job, Callable[[], None]], list[float]], str]] = {
    "hpcdet random": (ours_random, "Optuna random"),
    "hpcdet TPE with rungs": (
        functools.partial(ours_model, "async_halving", {"num_rungs": 5, "divisor": 4}),
        "Optuna TPE",
    ),
    "hpcdet TPE, bayesian": (functools.partial(ours_model, "bayesian", {}), "Optuna TPE"),
}


def turns(job: Job) -> tuple[list[float], list[float]]:
    """Seconds of ours and of Optuna's, that took turns."""
    ours, peer = OURS[job.name]
    sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(job.seed)
    if peer == "Optuna TPE":
        sampler = optuna.samplers.TPESampler(seed=job.seed, multivariate=True, constant_liar=True)
    other = optunas(sampler, job)
    for _ in range(WARM):
        next(other)
    theirs: list[float] = []
    took = ours(job, lambda: theirs.append(next(other)))
    return took, theirs


def row_of(name: str, trials: int, groups: Sequence[tuple[list[float], list[float]]]) -> Row:
    """One row of what groups of turns took."""
    row: Row = {"kind": "suggestion", "sampler": name, "peer": OURS[name][1], "trials": trials}
    for side, own in enumerate(("", "peer_")):
        took = sorted(one for group in groups for one in group[side])
        row[f"{own}median_ms"] = statistics.median(took) * 1e3
        row[f"{own}p95_ms"] = took[int(0.95 * (len(took) - 1))] * 1e3
    ratios = [statistics.median(ours) / statistics.median(peer) for ours, peer in groups]
    return {**row, "ratios": ratios, "runs": sum(len(ours) for ours, _ in groups)}


def measure(quick: bool) -> list[Row]:
    groups, times = (4, 5) if quick else (8, 30)
    rows = []
    context = multiprocessing.get_context("spawn")
    for trials in (200,) if quick else (200, 1_000, 10_000):
        for name in OURS:
            jobs = [Job(name, trials, times, seed) for seed in range(groups)]
            with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
                rows.append(row_of(name, trials, list(pool.map(turns, jobs))))
    return rows
