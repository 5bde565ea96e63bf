"""Measured values as rows: of every report, the last or the best ones, along an axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hpcdet.read.experiment import series, standings
from hpcdet.read.experiment.gather import Gathered, gather
from hpcdet.read.experiment.series import Axis, Row
from hpcdet.store.folder.layout import ExperimentPaths

Pick = Literal["last", "best"]


@dataclass(frozen=True)
class MetricView:
    """A value that a trial reported."""

    experiment: str
    """The experiment's id."""
    trial: int
    """The trial's number."""
    group: str
    """``training``, ``validation``, or another group of the code's; ``timing`` and ``system``:
    measured by hpcdet."""
    step: int
    """Batches trained."""
    name: str
    """Name of the metric; ``rank1.`` marks what another rank than the first measured."""
    value: Any
    """The value: a number, "NaN", "Infinity", "-Infinity", or what else the code reported."""
    time: str
    """When it was reported."""
    attempt: int
    """The attempt that reported it."""
    units: dict[str, Any]
    """The same length in other units: ``batches``, ``records``, ``epochs``."""
    superseded: bool
    """True if another attempt has trained the same stretch again; only with ``--all``."""


@dataclass(frozen=True)
class PlacedMetricView(MetricView):
    """A value with its place along an axis (``--x``)."""

    x: float | None
    """Batches, completed epochs, or seconds since the trial's start; null if unknown."""


def metrics(  # noqa: PLR0913 - what to choose, one by one
    source: ExperimentPaths | Gathered,
    *,
    trial: int = 0,
    name: str = "*",
    group: str = "*",
    superseded: bool = False,
    pick: Pick | None = None,
    larger: bool = False,
    every: int | None = None,
    x: Axis | None = None,
    points: int | None = None,
) -> list[MetricView]:
    """Return rows of ``series.metrics``.

    Args:
        pick: only the newest or the best value of each metric.
        larger: of the best, larger values are better; the searcher's own have their direction.
        every: every Nth row.
        x: rows are ``PlacedMetricView``, along this axis.
        points: as there; the others choose among these.
    """
    gathered = gather(source)
    rows = series.metrics(
        gathered, trial=trial, name=name, group=group, superseded=superseded, points=points
    )
    if pick == "last":
        rows = series.last(rows)
    elif pick == "best":
        rows = _best(rows, gathered, larger)
    id, rows = gathered.id, rows[::every]
    if x is None:
        return [MetricView(id, **row) for row in rows]
    return [PlacedMetricView(id, **row) for row in series.along(gathered, rows, x)]


def _best(rows: list[Row], gathered: Gathered, larger: bool) -> list[Row]:
    """Select best rows by the searcher's direction for its own metrics, by the flag for others.

    Values of the searcher's metrics where a trial breaks a constraint are no best ones.
    """
    goals = gathered.config.searcher.goals
    stand = standings.standings(gathered)
    found: list[Row] = []
    for objective in goals.objectives:
        own = [row for row in rows if row["name"] == objective.metric]
        if stand is not None:
            feasible = stand.feasible_steps
            own = [row for row in own if (row["trial"], row["step"]) in feasible]
        found += series.best(own, objective.smaller_is_better and not larger)
    names = {objective.metric for objective in goals.objectives}
    return found + series.best([row for row in rows if row["name"] not in names], not larger)
