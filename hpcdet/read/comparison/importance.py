"""The importance of hyperparameters in a search, by PED-ANOVA (Watanabe et al., IJCAI 2023).

Values are compared at one length of training: the longest rung that enough trials have reached,
without rungs the best value of each trial that has ended.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcdet.errors import ConfigError
from hpcdet.read.experiment import series, states
from hpcdet.read.experiment.gather import Gathered, gather
from hpcdet.search.samplers import optuna_samplers
from hpcdet.space.domains import Const, Domain
from hpcdet.space.errors import SpaceError, dotted
from hpcdet.space.expression import Inactive
from hpcdet.space.space import Space
from hpcdet.store.folder.layout import ExperimentPaths

LEAST, ENOUGH = 20, 50
"""Trials below which no importance is computed, and from which on it is reliable."""
BEST = 0.1
"""The part of the trials that are the best ones; at least ``_FEWEST``."""
_FEWEST = 5


@dataclass(frozen=True)
class HyperparameterView:
    """What a search has shown of a hyperparameter."""

    name: str
    """Its name; names of nested ones have dots."""
    importance: float | None
    """Its share of the importance of all, from 0 to 1; null below 20 trials."""
    n: int
    """Number of trials compared that have it."""
    method: str
    """How the importance was computed, and at which length; "" if it was not."""
    reliable: bool
    """True with at least 50 trials."""
    best: Any
    """Its value in the best trial; null if that one does not have it."""
    low: float | None
    """Its least value in the best tenth of the trials, at least 5; null if it is not a number."""
    high: float | None
    """Its greatest value in these."""


@dataclass(frozen=True)
class _Compared:
    """A trial with its value at the length of the comparison, smaller being better."""

    loss: float
    drawn: Mapping[str, tuple[Domain, Any]]


def hyperparameters(
    source: ExperimentPaths | Gathered,
) -> tuple[list[HyperparameterView], list[str]]:
    """Return the hyperparameters that were searched, the most important one first, and warnings."""
    gathered = gather(source)
    found, where = _trials(gathered)
    names = list(dict.fromkeys(name for trial in found for name in trial.drawn))
    shares, method, warned = _shares(found, names, where)
    best = found[: max(_FEWEST, math.ceil(BEST * len(found)))]
    rows = []
    for name in names:
        of = [trial.drawn[name][1] for trial in best if name in trial.drawn]
        numbers = [one for one in map(series.number, of) if one is not None]
        whole = bool(numbers) and len(numbers) == len(of)
        n = sum(name in trial.drawn for trial in found)
        rows.append(
            HyperparameterView(
                name=name,
                importance=shares.get(name),
                n=n,
                method=method if name in shares else "",
                reliable=name in shares and n >= ENOUGH,
                best=found[0].drawn[name][1] if name in found[0].drawn else None,
                low=min(numbers) if whole else None,
                high=max(numbers) if whole else None,
            )
        )
    rows.sort(key=lambda row: -1.0 if row.importance is None else -row.importance)
    return rows, warned


def _trials(gathered: Gathered) -> tuple[list[_Compared], str]:
    """Return the trials that can be compared, best first, and the length at which they are."""
    searcher = gathered.config.searcher
    sign = 1.0 if searcher.smaller_is_better else -1.0
    try:
        space = Space(gathered.config.hyperparameters)
    except SpaceError:  # of another version
        return [], ""
    values, where = _values(gathered)
    found = []
    for trial in gathered.trials:
        if trial.number not in values or trial.record is None:
            continue
        try:
            drawn = space.drawn(trial.record.params)
        except (Inactive, LookupError, SpaceError, TypeError):
            continue
        own = {dotted(axis.at): (of, value) for axis, of, value in drawn if _varies(of)}
        found.append(_Compared(sign * values[trial.number], own))
    return sorted(found, key=lambda one: one.loss), where


def _varies(domain: Domain) -> bool:
    return not isinstance(domain, Const)


def _values(gathered: Gathered) -> tuple[dict[int, float], str]:
    """Return the finite values that are compared, by trial, and at which length."""
    searcher = gathered.config.searcher
    metric = searcher.metric
    at_rung: dict[int, float] = {}
    for rung in sorted(searcher.rungs, key=lambda length: length.value, reverse=True):
        at_rung = {}
        for trial in gathered.trials:
            reports = trial.validations(metric)
            value = next((value for _, at, value in reports if at >= rung.value), None)
            amount = series.number(value)
            if amount is not None and math.isfinite(amount):
                at_rung[trial.number] = amount
        if len(at_rung) >= LEAST:
            return at_rung, f" at {rung}"
    if searcher.rungs:
        return at_rung, f" at {min(one.value for one in searcher.rungs)} {searcher.rungs[0].unit}"
    found = {}
    state, _ = states.experiment_state(gathered)
    over = state if state in states.ENDED else ""
    for trial in gathered.trials:
        best = series.best_validation(trial, metric, searcher.smaller_is_better)
        amount = series.number(best[1]) if best else None
        ended = states.trial_state(trial, over) in ("COMPLETED", "STOPPED")
        if ended and amount is not None and math.isfinite(amount):
            found[trial.number] = amount
    return found, ""


def _shares(
    found: list[_Compared], names: list[str], where: str
) -> tuple[dict[str, float], str, list[str]]:
    """Return the importance of each name, the method and warnings; none if it is not computed."""
    if not names:
        return {}, "", []
    if len(found) < LEAST:
        said = f"{len(found)} trials can be compared, and importance needs {LEAST}"
        return {}, "", [said]
    try:
        optuna = optuna_samplers.library()
    except ConfigError as error:
        return {}, "", [f"importance needs Optuna, which is not installed: {error.hint}"]
    study = optuna.create_study(direction="minimize")
    study.add_trials([
        optuna.trial.create_trial(
            value=trial.loss,
            params={
                name: optuna_samplers.to_value(domain, value)
                for name, (domain, value) in trial.drawn.items()
            },
            distributions={
                name: optuna_samplers.to_distribution(domain)
                for name, (domain, _) in trial.drawn.items()
            },
        )
        for trial in found
    ])  # fmt: skip
    ped_anova = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=BEST)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shares = optuna.importance.get_param_importances(study, evaluator=ped_anova)
    return dict(shares), f"PED-ANOVA, best {BEST:.0%}{where}", []
