"""Importance of hyperparameters for a metric, by PED-ANOVA as Optuna computes it.

PED-ANOVA (Watanabe, Bansal and Hutter, IJCAI 2023) compares, for each hyperparameter, the density
of the best tenth of the trials with that of all: where both are alike, it did not matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hpcdet.errors import ConfigError
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.experiment.series import number
from hpcdet.read.views.list_rows import TrialStatusView
from hpcdet.search.samplers import optuna_samplers
from hpcdet.space.domains import Const
from hpcdet.space.errors import SpaceError, dotted
from hpcdet.space.expression import Inactive
from hpcdet.space.space import Space

LEAST = 20
"""Trials with a value below which nothing is computed."""
RELIABLE = 50
"""Trials from which the best tenth has the five trials that Optuna asks for."""
METHOD = "PED-ANOVA, best 10 %"
_EXTRA = "importance needs Optuna: pip install 'hpcdet[search]'"


@dataclass(frozen=True)
class ImportanceView:
    """The importance of one hyperparameter."""

    name: str
    """Its name, dotted where it is nested."""
    importance: float
    """Its share of the importance of all, 0 to 1."""
    n: int
    """Trials that it was computed from: those with the hyperparameter and a value."""
    method: str
    """How it was computed."""


@dataclass(frozen=True)
class Importances:
    """The importance of all hyperparameters for a metric, the greatest first."""

    metric: str
    """The metric."""
    n: int
    """Trials with a value of the metric."""
    method: str
    """How it was computed."""
    reliable: bool
    """True if there are trials enough for the best tenth to say something."""
    why_not: str
    """Why nothing was computed; "" if it was."""
    rows: list[ImportanceView] = field(default_factory=list)
    """One for each hyperparameter that varies."""


def importance(
    params: Mapping[int, Mapping[str, Any]],
    values: Mapping[int, float],
    space: Mapping[str, Any],
    metric: str,
    smaller_is_better: bool,
) -> Importances:
    """Return the importance of each hyperparameter for a metric.

    Args:
        params: hyperparameters by trial, nested as in the config.
        values: value of the metric by trial; trials without one are left out.
        space: ``hyperparameters`` of the config.
    """
    n = len(values)

    def none(why: str) -> Importances:
        return Importances(metric, n, METHOD, False, why)

    if n < LEAST:
        return none(f"importance needs {LEAST} trials with a value of {metric}; there are {n}")
    try:
        optuna = optuna_samplers.library()
    except ConfigError:
        return none(_EXTRA)
    study = optuna.create_study(direction="minimize")
    sign = 1 if smaller_is_better else -1
    counts: dict[str, int] = {}
    try:
        drawn = {trial: Space(space).drawn(params[trial]) for trial in values}
        for trial, found in sorted(drawn.items()):
            varied = {
                dotted(axis.at): (optuna_samplers.to_distribution(domain), domain, value)
                for axis, domain, value in found
                if not isinstance(domain, Const)
            }
            for name in varied:
                counts[name] = counts.get(name, 0) + 1
            study.add_trial(
                optuna.trial.create_trial(
                    value=sign * values[trial],
                    distributions={name: kind for name, (kind, _, _) in varied.items()},
                    params={
                        name: optuna_samplers.to_value(domain, value)
                        for name, (_, domain, value) in varied.items()
                    },
                )
            )
    except (SpaceError, Inactive, LookupError, TypeError, ValueError) as error:
        return none(f"the trials do not fit the search space: {error}")
    names = [name for name, count in counts.items() if count == n]
    if not names:
        return none("the search space has no hyperparameter that varies in all trials")
    shares = optuna.importance.get_param_importances(
        study, evaluator=optuna.importance.PedAnovaImportanceEvaluator(), params=names
    )
    rows = [ImportanceView(name, round(share, 6), n, METHOD) for name, share in shares.items()]
    rows.sort(key=lambda row: (-row.importance, row.name))
    return Importances(metric, n, METHOD, n >= RELIABLE, "", rows)


def compared(gathered: Gathered, trials: Sequence[TrialStatusView]) -> tuple[dict[int, float], str]:
    """Return the values by which trials are compared, and the words for the length they had.

    They are those of the longest rung that enough trials have reached; without rungs, the best
    value of each trial that has ended. Values that are not finite are left out.
    """
    searcher = gathered.config.searcher
    rungs = sorted(searcher.rungs, key=lambda length: length.value, reverse=True)
    for rung in rungs:
        at_rung = {}
        for trial in gathered.trials:
            reports = trial.validations(searcher.metric)
            amount = _finite(next((value for _, at, value in reports if at >= rung.value), None))
            if amount is not None:
                at_rung[trial.number] = amount
        if len(at_rung) >= LEAST or (rung is rungs[-1] and at_rung):
            return at_rung, f", at {rung}"
    ended = {row.trial: _finite(row.best) for row in trials if row.state in _ENDED}
    return {trial: value for trial, value in ended.items() if value is not None}, ""


_ENDED = ("COMPLETED", "STOPPED")


def _finite(value: Any) -> float | None:
    amount = number(value)
    return amount if amount is not None and math.isfinite(amount) else None


def for_search(gathered: Gathered, trials: Sequence[TrialStatusView]) -> Importances:
    """Return the importance for the searcher's metric, by the values of ``compared``."""
    searcher = gathered.config.searcher
    values, where = compared(gathered, trials)
    found = importance(
        {row.trial: row.hyperparameters for row in trials},
        values,
        gathered.config.hyperparameters,
        searcher.metric,
        searcher.smaller_is_better,
    )
    method = f"{found.method}{where}"
    rows = [replace(row, method=method) for row in found.rows]
    return replace(found, method=method, rows=rows)
