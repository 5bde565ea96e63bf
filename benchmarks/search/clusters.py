"""Part c: all scheduling rules on simulated clusters, over the same random configurations.

Trial k has the same learning curve and the same luck with stragglers whatever the rule, worker w
the same waits and failures. Time is in R, the training of one full-length trial.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.search.rules import RULES, Ladder
from hpcdet.sim.cluster import Cluster
from hpcdet.sim.engine import Simulation
from hpcdet.sim.outcome import Course
from hpcdet.sim.surrogate import Curves
from hpcdet.sim.turns import Reports
from hpcdet.sim.waits import QueueWait

R = 256
"""Seconds, and units: a unit trains a second."""
HORIZON = {4: 6.0, 25: 2.5, 100: 1.25}
"""In R, by workers."""
SCENARIOS: dict[str, dict[str, Any]] = {
    "ideal": {},
    "stragglers, drops": {"stragglers": 1.33, "fail_per_h": 3.6},
    "queue waits": {"queue_wait": QueueWait("exp", R / 8), "walltime_s": R, "restore_s": 0.5},
    "cluster": {
        "stragglers": 0.5,
        "fail_per_h": 3.6,
        "queue_wait": QueueWait("exp", R / 8),
        "walltime_s": R,
        "restore_s": 0.5,
        "save_s": 0.25,
    },
}
"""3.6 failures an hour are 0.001 a unit, as ASHA's authors count them."""
QUALITIES = (0.01, 0.001)
LONGER = 12
"""Random search goes on for so many horizons: its time to a quality is a figure, too."""


@dataclass(frozen=True)
class Run:
    """``resume``: a trial whose node failed goes on; otherwise it is lost, as peers lose it."""

    rule: str
    resume: bool
    scenario: str
    workers: int
    seed: int
    horizon: float


@dataclass(frozen=True)
class Outcome:
    """What became of a run, by the qualities asked for. Times in R.

    Attributes:
        to: until a model's loss was as low as that of the best 1 % (0.1 %) trained in full.
        guess: until the trial that looked best belonged to these, trained far or not.
    """

    run: Run
    to: tuple[float, ...]
    guess: tuple[float, ...]
    finished: int
    trials: int
    utilisation: float
    best: float


def perform(run: Run) -> Outcome:
    asked = SCENARIOS[run.scenario]
    cluster = Cluster(
        workers=run.workers,
        on_failure="checkpoint" if run.resume else "lost",
        checkpoint_every_s=4,
        idle_s=math.inf,
        **asked,
    )
    curves = Curves(run.seed, R)
    ladder = Ladder(R, 4, run.workers)
    course = Simulation(
        RULES[run.rule](ladder),
        cluster,
        curves,
        Reports(ladder.rungs),
        seed=run.seed,
        horizon_s=run.horizon * R,
    ).run()
    return outcome_of(run, course, curves, R, HORIZON.get(run.workers, run.horizon))


def outcome_of(run: Run, course: Course, curves: Curves, full: int, horizon: float) -> Outcome:
    """Trials in full count up to the ``horizon``, in R, which is ``full`` seconds."""
    within = [one for one in course.finished if one[0] <= horizon * full]
    goals = [curves.quantile(share) for share in QUALITIES]
    return Outcome(
        run,
        tuple(course.time_to(goal) / full for goal in goals),
        tuple(_guessed(course, curves, goal) / full for goal in goals),
        len(within),
        course.created,
        course.utilisation,
        course.best[-1][2] if course.best else math.inf,
    )


COMPARED = tuple(rule for rule in RULES if rule != "hpcdet hyperband")
"""Hyperband's brackets are adaptive ASHA's; its own golden vectors say the rest."""
LOSE_TRIALS = ("Ray ASHA", "Syne Tune ASHA", "Optuna halving", "Optuna Hyperband")
"""As they are, a trial whose node failed is over; they are run with resume added, too."""


def _horizon(rule: str, workers: int) -> float:
    return HORIZON[workers] * (LONGER if rule == "random" else 1)


def _guessed(course: Course, curves: Curves, goal: float) -> float:
    right = (at for at, trial, _ in course.best if curves.final(trial) <= goal)
    return next(right, math.inf)


def runs(seed: int, workers: Sequence[int]) -> list[Run]:
    """All rules on all clusters; the longest first, so that two processes end together."""
    found = []
    for count in sorted(workers, reverse=True):
        for scenario, asked in SCENARIOS.items():
            for rule in COMPARED:
                loses = "fail_per_h" in asked and rule in (*LOSE_TRIALS, "synchronous halving")
                found += [
                    Run(rule, resume, scenario, count, seed, _horizon(rule, count))
                    for resume in ((True, False) if loses else (True,))
                ]
    return found


def measure(quick: bool) -> list[dict[str, Any]]:
    """In turn: each seed goes through all rules before the next begins, while there is time."""
    seeds = 2 if quick else int(os.environ.get("HPCDET_BENCH_SEEDS", "50"))
    workers = (4,) if quick else tuple(HORIZON)
    end = time.monotonic() + 60 * float(os.environ.get("HPCDET_BENCH_MINUTES", "inf"))
    rows = _wide(quick)
    outcomes: list[Outcome] = []
    with multiprocessing.Pool(2) as pool:
        for seed in range(seeds):
            outcomes += pool.map(perform, runs(seed, workers), chunksize=1)
            print(f"part c: {seed + 1} of {seeds} seeds", file=sys.stderr, flush=True)
            if time.monotonic() > end:
                break
    return summaries(outcomes, HORIZON) + rows


def _wide(quick: bool) -> list[dict[str, Any]]:
    """Ours alone, on many workers: utilisation, and trials per worker against 25 workers."""
    rows = []
    counts = (25, 100) if quick else (25, 500, 2000)
    for count in counts:
        outcome = perform(Run("hpcdet hybrid", True, "ideal", count, 0, 0.5 if quick else 1.05))
        rows.append(
            {
                "kind": "wide",
                "rule": "hpcdet hybrid",
                "workers": count,
                "utilisation": outcome.utilisation,
                "trials": outcome.trials,
                "finished": outcome.finished,
                "trials_per_worker": outcome.trials / count,
            }
        )
    return rows


def name_of(run: Run) -> str:
    return run.rule if run.resume else f"{run.rule}, no resume"


def summaries(outcomes: Sequence[Outcome], horizons: Mapping[int, float]) -> list[dict[str, Any]]:
    """A row for each rule in each cluster; ``horizons``, by workers, bound what is ranked."""
    rows = []
    groups: dict[tuple[str, int], dict[str, list[Outcome]]] = {}
    for outcome in outcomes:
        run = outcome.run
        group = groups.setdefault((run.scenario, run.workers), {})
        group.setdefault(name_of(run), []).append(outcome)
    for (scenario, workers), by_rule in groups.items():
        ranks = _ranks(by_rule, horizons[workers])
        for name, found in by_rule.items():
            rows.append(
                {
                    "kind": "cluster",
                    "scenario": scenario,
                    "workers": workers,
                    "rule": name,
                    "runs": len(found),
                    "horizon": found[0].run.horizon,
                    "time_to_1pct": _median(found, lambda one: one.to[0]),
                    "time_to_01pct": _median(found, lambda one: one.to[1]),
                    "guess_of_1pct": _median(found, lambda one: one.guess[0]),
                    "guess_of_01pct": _median(found, lambda one: one.guess[1]),
                    "finished": _median(found, lambda one: one.finished),
                    "trials": _median(found, lambda one: one.trials),
                    "utilisation": _median(found, lambda one: one.utilisation),
                    "best": _median(found, lambda one: one.best),
                    "rank": ranks[name],
                }
            )
    return rows


def _ranks(by_rule: dict[str, list[Outcome]], end: float) -> dict[str, list[float]]:
    """Mean rank of each rule over the seeds, with bounds.

    Who is sooner at 1 % is better, then at 0.1 %, then who trained more in full.
    """
    names = list(by_rule)
    ranks: dict[str, list[float]] = {name: [] for name in names}
    for of_seed in zip(*by_rule.values(), strict=True):
        keys = [_key(one, end) for one in of_seed]
        for name, key in zip(names, keys, strict=True):
            below, same = sum(other < key for other in keys), keys.count(key)
            ranks[name].append(below + (same + 1) / 2)
    return {name: bounds(values, statistics.fmean) for name, values in ranks.items()}


def _key(one: Outcome, end: float) -> tuple[float, ...]:
    """Nobody is ranked by what came after the common horizon."""
    return (*(at if at <= end else math.inf for at in one.to), -one.finished)


def _median(found: Sequence[Outcome], figure: Callable[[Outcome], float]) -> list[float]:
    return bounds([figure(one) for one in found], statistics.median)


def bounds(values: Sequence[float], middle: Callable[[Sequence[float]], float]) -> list[float]:
    """The figure, and its 95 % bounds by bootstrap over seeds."""
    rng = random.Random(0)
    drawn = sorted(middle(rng.choices(values, k=len(values))) for _ in range(400))
    return [middle(values), drawn[10], drawn[-11]]
