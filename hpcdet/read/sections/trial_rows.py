"""The section ``trials``: a row for each, the best first."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.experiment.series import number
from hpcdet.read.sections.extent import ReportExtent, cut
from hpcdet.read.usage.slot_hours import SlotPiece
from hpcdet.read.views import timeline
from hpcdet.read.views.describe import begun_from
from hpcdet.read.views.views import StatusView
from hpcdet.store.folder.records import TrialState

_FIRST = ("ERROR", "RUNNING", "STOPPING", "PAUSED", "PENDING", "STOPPED", "COMPLETED", "CANCELED")
_CATEGORIES = 24


@dataclass(frozen=True)
class TrialRow:
    """A trial as the report's table has it."""

    trial: int
    """Its number."""
    rank: int | None
    """Its place by the best value, from 1; null without one."""
    state: TrialState
    """Its state."""
    why: str
    """The reason of its state; "" if none is recorded."""
    best: Any
    """Its best value of the searcher's metric; null without one."""
    best_step: int | None
    """Batches trained at that report."""
    steps: int
    """Batches trained."""
    hyperparameters: dict[str, Any]
    """Those that vary, by dotted name."""
    attempts: int
    """Number of attempts."""
    failures: int
    """Attempts that ended by an error of the code."""
    slot_s: float
    """Slot-seconds used."""
    seed: int | None
    """Its seed."""
    begun_from: str
    """The trial and length that it began from; "" if from nothing."""
    decided: str
    """The search's last decision on it, and why; "" without one."""
    end: str
    """End of its newest attempt; "" while it runs."""
    objectives: dict[str, Any]
    """Values of all objectives and constraints, where there are several."""
    on_front: bool
    """True if no feasible trial is better in all objectives."""
    feasible: bool | None
    """True if it keeps all constraints; null without constraints."""


@dataclass(frozen=True)
class AxisView:
    """A hyperparameter or value that trials are drawn by."""

    name: str
    """Its dotted name."""
    kind: str
    """``number``, ``log`` (a number that is drawn on a logarithmic scale) or ``category``."""
    values: list[str]
    """Of a category, its values as text, in order."""
    low: float | None
    """Of a number, the least value."""
    high: float | None
    """Of a number, the greatest value."""
    rank_correlation: float | None
    """Spearman's, of a number with the best values of trials; null below three trials."""


@dataclass(frozen=True)
class TrialsSection:
    """The trials, the best first; without a value: those that failed, then those that run."""

    metric: str
    """The searcher's metric."""
    smaller_is_better: bool
    """True if smaller values of it are better."""
    unit: str
    """The unit of lengths."""
    best: int | None
    """The best trial, as ``status`` has it."""
    rows: list[TrialRow]
    """Its rows."""
    left_out: int
    """Trials without a row; worse than those with one."""
    axes: list[AxisView]
    """Hyperparameters that vary."""
    same: dict[str, Any]
    """Hyperparameters that are the same in all trials."""


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested hyperparameters under dotted names."""
    if not isinstance(value, dict) or (not value and prefix):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= flat(item, f"{prefix}.{key}" if prefix else str(key))
    return found


def ranking(status: StatusView) -> list[int]:
    """Return the trials with a value, the best first: the front, feasible ones, then others."""
    sign = 1 if status.smaller_is_better else -1
    front = {row.trial: place for place, row in enumerate(status.front)}
    leader = status.best.trial if status.best else 0
    found = []
    for row in status.trials:
        value = number(row.best)
        if value is not None and math.isfinite(value):
            bad = row.compared is not None and row.compared.feasible is False
            place = front.get(row.trial, len(front))
            found.append((row.trial != leader, place, bad, sign * value, row.trial))
    return [one[-1] for one in sorted(found)]


def section(
    gathered: Gathered, status: StatusView, pieces: Sequence[SlotPiece], extent: ReportExtent
) -> TrialsSection:
    """Return the section."""
    used: dict[int, float] = defaultdict(float)
    for piece in pieces:
        if piece.kind != "queued":
            used[piece.trial] += piece.slot_s
    own = {row.trial: flat(row.hyperparameters) for row in status.trials}
    names = sorted({name for each in own.values() for name in each})
    columns = {name: [each.get(name) for each in own.values()] for name in names}
    varied = [name for name in names if len(set(map(repr, columns[name]))) > 1]
    best = [number(row.best) for row in status.trials]
    places = {trial: place for place, trial in enumerate(ranking(status), 1)}
    decided = timeline.decided(gathered)

    def order(row: Any) -> tuple[Any, ...]:
        place = places.get(row.trial)
        return (place is None, place or _FIRST.index(row.state), row.trial)

    ordered, left_out = cut(sorted(status.trials, key=order), extent.trials)
    rows = [
        TrialRow(
            trial=row.trial,
            rank=places.get(row.trial),
            state=row.state,
            why=row.why,
            best=row.best,
            best_step=row.best_step,
            steps=row.steps,
            hyperparameters={name: own[row.trial].get(name) for name in varied},
            attempts=row.attempts,
            failures=row.failures,
            slot_s=round(used[row.trial], 3),
            seed=row.seed,
            begun_from=begun_from(row),
            decided=decided.get(row.trial, ""),
            end=row.end,
            objectives=row.compared.objectives | row.compared.constraints if row.compared else {},
            on_front=bool(row.compared and row.compared.on_front),
            feasible=row.compared.feasible if row.compared else None,
        )
        for row in ordered
    ]
    return TrialsSection(
        metric=status.metric,
        smaller_is_better=status.smaller_is_better,
        unit=status.max_length.unit if status.max_length else "batches",
        best=status.best.trial if status.best else None,
        rows=rows,
        left_out=left_out,
        axes=[
            _axis(name, columns[name], best, _logarithmic(gathered.config.hyperparameters, name))
            for name in varied
        ],
        same={name: columns[name][0] for name in names if name not in varied},
    )


def _logarithmic(space: Any, name: str) -> bool:
    """True if the config draws a hyperparameter on a logarithmic scale."""
    for key in name.split("."):
        space = space.get(key) if isinstance(space, dict) else None
    return isinstance(space, dict) and str(space.get("type")).startswith("log")


def _axis(
    name: str, values: Sequence[Any], best: Sequence[float | None], logarithmic: bool
) -> AxisView:
    given = [value for value in values if value is not None]
    numbers = [number(value) for value in values]
    known = [value for value in numbers if value is not None]
    if len(known) < len(given) or not known:
        words = sorted({text_of(value) for value in given})
        return AxisView(name, "category", words[:_CATEGORIES], None, None, None)
    low, high = min(known), max(known)
    pairs = [(a, b) for a, b in zip(numbers, best, strict=True) if a is not None and b is not None]
    kind = "log" if low > 0 and logarithmic else "number"
    return AxisView(name, kind, [], low, high, spearman(pairs))


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the rank correlation of pairs; None of fewer than three, or where one never varies."""
    if len(pairs) < 3:
        return None
    ones, others = (_ranks(column) for column in zip(*pairs, strict=True))
    try:
        return round(statistics.correlation(ones, others), 4)
    except statistics.StatisticsError:
        return None


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal ones share the mean of theirs."""
    places: dict[float, list[int]] = defaultdict(list)
    for place, value in enumerate(sorted(values)):
        places[value].append(place)
    return [statistics.fmean(places[value]) for value in values]


def text_of(value: Any) -> str:
    """Return a categorical value as the page compares it."""
    from hpcdet.read.views.items import shape, typed

    return shape(value, typed)


def by_trial(trials: TrialsSection) -> Mapping[int, TrialRow]:
    """Return the rows by trial."""
    return {row.trial: row for row in trials.rows}
