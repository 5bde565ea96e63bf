"""The section ``curves``: metrics of the best trials over steps, epochs, time and slot-hours."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcdet.read.experiment import series
from hpcdet.read.experiment.gather import Gathered, GatheredTrial
from hpcdet.read.sections.extent import ReportExtent
from hpcdet.read.usage.spans import epoch
from hpcdet.read.views.views import StatusView
from hpcdet.store.cost.budget import HOUR_S

CHARTS = 8
MATRICES = 8
FRAMES = 24
CELLS = 64 * 64


@dataclass
class CurvePoints:
    """Values of one trial, in the order of steps: columns of equal length."""

    step: list[int] = field(default_factory=list)
    """Batches trained."""
    epoch: list[float | None] = field(default_factory=list)
    """Completed epochs; null where the report does not say it."""
    wall: list[float] = field(default_factory=list)
    """Seconds since the trial's first attempt began."""
    slot_hours: list[float] = field(default_factory=list)
    """Slot-hours of the trial's attempts until then."""
    value: list[float | None] = field(default_factory=list)
    """Values; null for NaN and infinity."""
    attempt: list[int] = field(default_factory=list)
    """Numbers of the attempts."""


@dataclass(frozen=True)
class LineView:
    """The curve of one trial."""

    trial: int
    """Its number."""
    points: CurvePoints
    """Those that count, reduced to the extremes of equal stretches where there are very many."""
    superseded: CurvePoints
    """Those that a later attempt trained again, or that a user rewound."""
    count: int
    """Values that count."""
    odd: int
    """Of these, NaN or infinite."""
    first: float | None
    """The first finite value."""
    last: float | None
    """The last finite value."""
    least: float | None
    """The smallest value."""
    greatest: float | None
    """The greatest value."""


@dataclass(frozen=True)
class ChartView:
    """The curves of one metric."""

    group: str
    """Its group: ``validation``, ``training``, ..."""
    name: str
    """Its name."""
    searched: bool
    """True for the searcher's metric."""
    lines: list[LineView]
    """One for each trial, the best first."""
    reduced: bool
    """True if some curve has fewer points than values."""


@dataclass(frozen=True)
class FrameView:
    """A structured metric at one step."""

    step: int
    """Batches trained."""
    value: Any
    """Its value."""


@dataclass(frozen=True)
class StructuredView:
    """A structured metric of the best trial that has it."""

    group: str
    """Its group."""
    name: str
    """Its name."""
    trial: int
    """The trial."""
    matrix: bool
    """True if every value is a matrix of numbers; others are trees."""
    frames: list[FrameView]
    """Its values by step; of many steps, the last and equally spaced ones."""


@dataclass(frozen=True)
class CurvesSection:
    """Metrics of the best trials."""

    charts: list[ChartView]
    """The searcher's metric first, then validation, then the rest."""
    structured: list[StructuredView]
    """Metrics that are no numbers."""
    trials: list[int]
    """The trials that are shown, the best first."""
    left_out: int
    """Trials that have begun and are not shown."""
    more: int
    """Metrics without a chart."""


def kept(values: Sequence[float], limit: int) -> list[int]:
    """Return the places of about ``limit`` values: the ends, and extremes of equal stretches."""
    if len(values) <= limit:
        return list(range(len(values)))
    half = max(1, limit // 2)
    width = len(values) / half
    chosen = {0, len(values) - 1}
    for bucket in range(half):
        places = range(int(bucket * width), int((bucket + 1) * width))
        chosen |= {min(places, key=values.__getitem__), max(places, key=values.__getitem__)}
    return sorted(chosen)


def section(
    gathered: Gathered, status: StatusView, order: Sequence[int], extent: ReportExtent
) -> CurvesSection:
    """Return the section.

    Args:
        order: the trials with a value, the best first.
    """
    begun = [trial.number for trial in gathered.trials if trial.attempts]
    rest = sorted(set(begun) - set(order))
    shown = [*order, *rest][: extent.lines]
    lines: dict[tuple[str, str], list[LineView]] = defaultdict(list)
    structured: dict[tuple[str, str], StructuredView] = {}
    for number in shown:
        trial = gathered.trial(number)
        assert trial is not None
        _read(trial, extent.points, lines, structured)
    ranked = sorted(lines, key=lambda key: (key[1] != status.metric, key[0] != "validation", key))
    return CurvesSection(
        charts=[
            ChartView(
                group=key[0],
                name=key[1],
                searched=key[1] == status.metric,
                lines=lines[key],
                reduced=any(line.count > len(line.points.step) for line in lines[key]),
            )
            for key in ranked[:CHARTS]
        ],
        structured=[structured[key] for key in sorted(structured)][:MATRICES],
        trials=shown,
        left_out=len(begun) - len(set(shown) & set(begun)),
        more=max(0, len(ranked) - CHARTS),
    )


class _Clock:
    """Seconds and slot-hours of a trial at a time within one of its attempts."""

    def __init__(self, trial: GatheredTrial) -> None:
        self._begun: dict[int, tuple[float, float, int]] = {}
        self._first: float | None = None
        spent = 0.0
        for attempt in trial.attempts:
            if attempt.claim is None or not attempt.claim.at:
                continue
            start = epoch(attempt.claim.at)
            self._first = start if self._first is None else self._first
            slots = next((line["world"] for line in attempt.of_kind("start")), 1)
            self._begun[attempt.number] = (start, spent, slots)
            end = attempt.end.at if attempt.end and attempt.end.at else attempt.heard
            spent += max(0.0, epoch(end) - start) * slots if end else 0.0

    def at(self, time: str, attempt: int) -> tuple[float, float]:
        now = epoch(time)
        start, spent, slots = self._begun.get(attempt, (now, 0.0, 1))
        first = self._first if self._first is not None else start
        return round(now - first, 3), round((spent + max(0.0, now - start) * slots) / HOUR_S, 6)


def _plain(value: Any) -> float | None:
    """Return a number, NaN included; None for text and structures."""
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _read(
    trial: GatheredTrial,
    limit: int,
    lines: dict[tuple[str, str], list[LineView]],
    structured: dict[tuple[str, str], StructuredView],
) -> None:
    clock = _Clock(trial)
    numbers: dict[tuple[str, str], list[series.Row]] = defaultdict(list)
    others: dict[tuple[str, str], list[series.Row]] = defaultdict(list)
    for row in series.of_trial(trial):
        key = (row["group"], row["name"])
        if isinstance(row["value"], list | dict):
            if not row["superseded"]:
                others[key].append(row)
        elif _plain(row["value"]) is not None:
            numbers[key].append(row)
    for key, rows in numbers.items():
        line = _line(trial.number, rows, clock, limit)
        if line is not None:
            lines[key].append(line)
    for key, rows in others.items():
        structured.setdefault(key, _structured(key, trial.number, rows))


def _line(trial: int, rows: list[series.Row], clock: _Clock, limit: int) -> LineView | None:
    rows = sorted(rows, key=lambda row: int(row["step"]))
    counted = [row for row in rows if not row["superseded"]]
    if not counted:
        return None
    values = [_plain(row["value"]) for row in counted]
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return LineView(
        trial=trial,
        points=_points(counted, clock, limit),
        superseded=_points([row for row in rows if row["superseded"]], clock, limit),
        count=len(counted),
        odd=len(counted) - len(finite),
        first=finite[0] if finite else None,
        last=finite[-1] if finite else None,
        least=min(finite, default=None),
        greatest=max(finite, default=None),
    )


def _points(rows: list[series.Row], clock: _Clock, limit: int) -> CurvePoints:
    values = [_plain(row["value"]) for row in rows]
    finite = [v if v is not None and math.isfinite(v) else math.nan for v in values]
    ordered = [0.0 if value != value else value for value in finite]
    places = set(kept(ordered, limit))
    gaps = [n for n, value in enumerate(finite) if value != value]
    places |= set(gaps[: limit // 10])
    found = CurvePoints()
    for n in sorted(places):
        row = rows[n]
        wall, hours = clock.at(row["time"], row["attempt"])
        epochs = row["units"].get("epochs")
        found.step.append(int(row["step"]))
        found.epoch.append(None if epochs is None else float(epochs))
        found.wall.append(wall)
        found.slot_hours.append(hours)
        found.value.append(None if finite[n] != finite[n] else finite[n])
        found.attempt.append(row["attempt"])
    return found


def _structured(key: tuple[str, str], trial: int, rows: list[series.Row]) -> StructuredView:
    rows = sorted(rows, key=lambda row: int(row["step"]))
    if len(rows) > FRAMES:
        rows = [rows[n * (len(rows) - 1) // (FRAMES - 1)] for n in range(FRAMES)]
    frames = [FrameView(int(row["step"]), row["value"]) for row in rows]
    matrix = all(is_matrix(frame.value) for frame in frames)
    return StructuredView(key[0], key[1], trial, matrix, frames)


def is_matrix(value: Any) -> bool:
    """True for a list of lists of numbers, all of one length, small enough to be drawn."""
    if not isinstance(value, list) or not value or not isinstance(value[0], list):
        return False
    width = len(value[0])
    return (
        0 < width * len(value) <= CELLS
        and all(isinstance(row, list) and len(row) == width for row in value)
        and all(series.number(cell) is not None for row in value for cell in row)
    )
