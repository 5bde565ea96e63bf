"""Comparison of the trials of a search with constraints or several objectives.

Trials are compared at the greatest length at which a feasible one has reported, among the rungs of
the search; without rungs, by what each has reported last. So a trial that was ended early is not
compared with what others showed later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcdet import goals as the_goals
from hpcdet import pareto
from hpcdet.goals import Goals, GoalStanding
from hpcdet.read.experiment import series
from hpcdet.read.experiment.gather import Gathered


@dataclass(frozen=True)
class ValidationReport:
    """One validation. ``step`` counts batches, ``length`` is in the unit of the search."""

    step: int
    length: int
    metrics: Mapping[str, Any]
    standing: GoalStanding


@dataclass(frozen=True)
class Standings:
    """The reports of an experiment by which trials are compared, and the front.

    Attributes:
        feasible_steps: (trial, step) of the reports that keep all constraints.
        best: of each trial, its best feasible report, by the first objective.
        at: of each trial, the report by which it is compared with others.
        length: at which they are compared; None without rungs.
        front: feasible trials that no feasible one dominates, the best first objective first.
    """

    goals: Goals
    feasible_steps: frozenset[tuple[int, int]]
    best: Mapping[int, ValidationReport]
    at: Mapping[int, ValidationReport]
    length: int | None
    front: list[int]


def standings(gathered: Gathered) -> Standings | None:
    """Return the standings; None if a single metric without constraints decides."""
    searcher = gathered.config.searcher
    goals = searcher.goals
    if goals.plain:
        return None
    reports = _reports(gathered, goals)
    rungs = [length.value for length in searcher.rungs]
    length: int | None = None
    at = {trial: own[-1] for trial, own in reports.items()}
    for rung in reversed(rungs):
        there = {
            trial: next(one for one in own if one.length >= rung)
            for trial, own in reports.items()
            if own[-1].length >= rung
        }
        if any(_counts(report) for report in there.values()):
            length, at = rung, there
            break
    points = {t: r.standing.losses for t, r in sorted(at.items()) if _counts(r)}
    found = {trial: losses for trial, losses in points.items() if losses is not None}
    fronts = pareto.layers(list(found.values()))
    front = [trial for trial, layer in zip(found, fronts, strict=True) if layer == 0]
    front.sort(key=lambda trial: (found[trial], trial))
    if not goals.several:
        front = front[:1]
    kept = frozenset((t, r.step) for t, own in reports.items() for r in own if r.standing.feasible)
    return Standings(goals, kept, _best(reports), at, length, front)


def _counts(report: ValidationReport) -> bool:
    return report.standing.feasible and report.standing.losses is not None


def _best(reports: Mapping[int, list[ValidationReport]]) -> dict[int, ValidationReport]:
    found = {}
    for trial, own in reports.items():
        ranked = [(r.standing.losses[0], r) for r in own if r.standing.losses and _counts(r)]
        if ranked:
            found[trial] = min(ranked, key=lambda pair: pair[0])[1]
    return found


def _reports(gathered: Gathered, goals: Goals) -> dict[int, list[ValidationReport]]:
    """Return the validations of each trial that has any, by their length."""
    wanted = goals.lacking({}, the_goals.EVER)
    found: dict[int, list[ValidationReport]] = {}
    for trial in gathered.trials:
        steps: dict[int, dict[str, Any]] = defaultdict(dict)
        lengths: dict[int, int] = {}
        for name in wanted:
            for step, length, value in trial.validations(name):
                amount = series.number(value)
                steps[step][name] = value if amount is None else amount
                if length >= 0:
                    lengths[step] = length
        own = [
            ValidationReport(step, lengths[step], metrics, goals.standing(metrics, lengths[step]))
            for step, metrics in sorted(steps.items())
            if step in lengths
        ]
        if own:
            found[trial.number] = own
    return found
