"""The searcher of a resolved config."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcdet.errors import ConfigError
from hpcdet.search.api.events import Limits, Method
from hpcdet.search.api.sampling import Independent, Recorded, Sampler
from hpcdet.search.halving.halving import Halving
from hpcdet.search.halving.pasha import Pasha
from hpcdet.search.halving.rung_rules import RULES
from hpcdet.search.methods.program import Program, Search, command
from hpcdet.search.methods.random import Points, Random
from hpcdet.search.methods.warm_start import First, Heirs, Informed
from hpcdet.search.population.explore import Explorer, Perturb
from hpcdet.search.population.pbt import Pbt
from hpcdet.search.population.schedule import ScheduleSearch
from hpcdet.search.samplers import optuna_samplers
from hpcdet.search.samplers.optuna_samplers import ModelBased
from hpcdet.search.samplers.subprocess_sampler import Elsewhere, still
from hpcdet.search.stopping import rules_from_config
from hpcdet.search.stopping.supervised import Supervised
from hpcdet.space.errors import SpaceError, dotted
from hpcdet.space.space import Space, trial_seed
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.config.sections.searcher_keys import COPYING, HALVING, MODELLED, WHOLE
from hpcdet.store.trials.history import History
from hpcdet.units import Length

NAMES = ("single", "random", "grid", *HALVING, *COPYING, "schedule", "custom")


def searcher(
    resolved: Resolved,
    code: Path = Path(),
    known: dict[int, Mapping[str, Any]] | None = None,
    patience_s: float = math.inf,
    history: History | None = None,
    beat: Callable[[], object] = still,
) -> Method[Any]:
    """The search method that the config names, under its stopping policies.

    Args:
        code: folder of the user's code, where a custom searcher runs.
        patience_s: the most that an answer of a custom searcher may take, whatever the config says.
        known: hyperparameters that are recorded of trials which are about to be made again.
        history: what ``searcher.warm_start`` found when the experiment was made.
        beat: called every second while a suggestion is made in another process.

    Raises:
        ConfigError: there is no such searcher, the search space is wrong, a package is missing, or
            the history is.
    """
    asked = resolved.searcher
    if asked.name not in NAMES:
        raise ConfigError(
            f"there is no searcher {asked.name!r}",
            where="searcher.name",
            hint=f"searchers: {', '.join(NAMES)}",
        )
    if asked.warm_start is not None and history is None:
        what = "what the former experiments have shown is not there"
        raise ConfigError(what, where="searcher.warm_start", hint="history.json of the experiment")
    try:
        known = {} if known is None else known
        method = _method(resolved, code, known, patience_s, history, beat)
    except SpaceError as error:
        where = f"hyperparameters.{dotted(error.path)}".rstrip(".")
        raise ConfigError(error.what, where=where, hint=error.hint) from error
    if asked.begin_from is not None:
        method = Heirs(method)
    goals = asked.goals
    if not (asked.stopping or goals.acts):
        return method
    if "wilcoxon" in asked.stopping and importlib.util.find_spec("scipy") is None:
        raise ConfigError(
            "the policy 'wilcoxon' lacks a package: scipy",
            where="searcher.stopping.wilcoxon",
            hint="pip install 'hpcdet[search]', where the searcher runs",
        )
    rules = asked.stopping_version
    chosen = rules_from_config.chosen(asked.stopping, asked.smaller_is_better, rules)
    slots = resolved.resources.slots_per_trial
    watched = None if goals.plain else goals
    limits = Limits(asked.max_trials, asked.max_concurrent_trials, asked.max_length)
    better = asked.smaller_is_better
    at = asked.begin_at
    return Supervised(method, chosen, asked.metric, better, slots, watched, limits, rules, at)


def _method(
    resolved: Resolved,
    code: Path,
    known: dict[int, Mapping[str, Any]],
    patience_s: float,
    history: History | None,
    beat: Callable[[], object],
) -> Method[Any]:
    asked = resolved.searcher
    seed = resolved.reproducibility.experiment_seed
    space = Space(resolved.hyperparameters)
    concurrent, length = asked.max_concurrent_trials, asked.max_length
    match asked.name:
        case "grid":
            points = space.grid()
            grid, most = Points(points), len(points)
            return Random(grid, seed, length, most, concurrent, "grid", False, asked.metric)
        case "single":
            return Random(Independent(space, seed), seed, length, 1, 1, name="single")
        case "custom":
            return _program(resolved, code, patience_s)
        case "random":
            sampler = _warmed(Independent(space, seed), resolved, space, history)
            most = asked.max_trials
            return Random(sampler, seed, length, most, concurrent, metric=asked.metric)
        case "pbt" | "pb2":
            return _population(resolved, space, known, history)
        case "schedule":
            steps = [
                (Length.decode(step["until"]), step["hyperparameters"])
                for step in asked.schedule.steps
            ]
            first = asked.schedule.seed
            return ScheduleSearch(steps, trial_seed(seed, 1) if first is None else first)
    return (Pasha if asked.name == "pasha" else Halving)(
        name=asked.name,
        rule=RULES[asked.rule],
        brackets=asked.brackets,
        divisor=asked.divisor,
        sampler=_sampler(resolved, space, known, history, beat),
        seed=seed,
        until=length,
        max_concurrent=concurrent,
        metric=asked.metric,
        smaller_is_better=asked.smaller_is_better,
        time_metric=asked.time_metric or "",
        promotion_share=asked.promotion_share if asked.rule == "hybrid" else None,
        goals=None if asked.goals.plain else asked.goals,
        version=asked.rule_version,
    )


def _population(
    resolved: Resolved,
    space: Space,
    known: dict[int, Mapping[str, Any]],
    history: History | None,
) -> Pbt:
    """Return the PBT searcher. Raises ConfigError without ``max_length``."""
    asked, seed = resolved.searcher, resolved.reproducibility.experiment_seed
    if asked.max_length is None:
        raise ConfigError("'max_length' is missing", where="searcher.max_length")
    perturb = Perturb(space, seed, asked.resample_probability, tuple(asked.factors))
    explorer: Explorer = perturb
    if asked.name == "pb2":
        from hpcdet.search.population.pb2 import (  # numpy: not for every verb
            Bandit,
            RecordedExplorer,
        )

        explorer = RecordedExplorer(Bandit(space, seed, perturb), known)
    return Pbt(
        sampler=_warmed(Independent(space, seed), resolved, space, history),
        explorer=explorer,
        seed=seed,
        until=asked.max_length,
        population=asked.population_size or asked.max_trials,
        interval=asked.interval,
        quantile=asked.quantile,
        max_concurrent=asked.max_concurrent_trials,
        metric=asked.metric,
        smaller_is_better=asked.smaller_is_better,
        synchronous=asked.synchronous,
        goals=None if asked.goals.plain else asked.goals,
        name=asked.name,
    )


def _warmed(sampler: Sampler, resolved: Resolved, space: Space, history: History | None) -> Sampler:
    """After the points that are to be tried first: the user's, then the best of the past."""
    asked, seed = resolved.searcher, resolved.reproducibility.experiment_seed
    points = list(asked.initial)
    if history is not None and asked.warm_start is not None:
        best: list[dict[str, Any]] = []
        for past in history.trials:
            if len(best) < asked.warm_start.best and past.params not in best:
                best.append(past.params)
        points += best
    return First(sampler, points, space, seed) if points else sampler


def _sampler(
    resolved: Resolved,
    space: Space,
    known: dict[int, Mapping[str, Any]],
    history: History | None,
    beat: Callable[[], object],
) -> Sampler:
    """Raises ConfigError where the library of a model is missing."""
    asked, searcher = resolved.searcher.sampler, resolved.searcher
    seed = resolved.reproducibility.experiment_seed
    name = asked.name or MODELLED.get(searcher.name)
    if name is None or name == "random":
        return _warmed(Independent(space, seed), resolved, space, history)
    at_rungs = searcher.name not in WHOLE
    startup, fraction = asked.startup or 0, asked.random_fraction
    if fraction is None:
        fraction = 1 / 3 if at_rungs else 0.0
    sampler: Sampler
    if name == "tpe" and at_rungs:
        from hpcdet.search.samplers.density_sampler import (
            DensitySampler,  # numpy: not for every verb
        )

        sampler = DensitySampler(space, seed, startup, fraction)
    else:
        optuna_samplers.library()
        parents = asked.population_size or optuna_samplers.population(searcher.max_trials)
        objectives = len(searcher.goals.objectives)
        model = ModelBased(space, seed, name, startup, fraction, objectives, parents)
        sampler = Elsewhere(model, resolved.hyperparameters, beat) if name == "gp" else model
    if history is not None and name != "nsga2":
        sampler = Informed.by(sampler, history)
    return Recorded(_warmed(sampler, resolved, space, history), known)


def _program(resolved: Resolved, code: Path, patience_s: float) -> Program:
    asked = resolved.searcher
    search = Search(
        resolved.hyperparameters,
        resolved.reproducibility.experiment_seed,
        asked.metric,
        asked.smaller_is_better,
        asked.max_length,
        asked.max_trials,
        asked.max_concurrent_trials,
        asked.options,
        asked.objectives,
        asked.constraints,
    )
    within_s = min(asked.answer_within_s, patience_s)
    return Program(command(asked.program or []), code, search, within_s)
