"""Learning curves in bounded memory: of each trial and metric, the points that a picture needs.

A trial's journals are read once, and of its points the first, the last, and the extremes of equal
parts between are kept before the next trial is read.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from hpcdet.read.experiment.gather import Gathered, GatheredTrial, Line

POINTS = 200
"""Points of a curve that are kept at most, and of those that are superseded as many again."""


@dataclass
class CurveColumns:
    """Points of a curve, column by column; what is not known of one is NaN.

    Attributes:
        steps: batches.
        values: also infinite ones and NaN.
        epochs: completed ones.
        times: epoch seconds.
    """

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    attempts: array[int] = field(default_factory=lambda: array("l"))
    epochs: array[float] = field(default_factory=lambda: array("d"))
    times: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.steps)

    def chosen(self, places: list[int]) -> CurveColumns:
        """Return the points at these places."""
        found = CurveColumns()
        for name, column in vars(self).items():
            getattr(found, name).extend(column[place] for place in places)
        return found


@dataclass(frozen=True)
class Curve:
    """The values of one metric of one trial.

    Attributes:
        count: how many values count; ``odd``: how many of these are NaN or infinite.
        low, high: the extremes of finite values; None without any.
        points: of those that count, by step.
        superseded: of those that a later attempt reported again, or a user rewound, as written.
    """

    trial: int
    group: str
    name: str
    count: int
    odd: int
    low: float | None
    high: float | None
    points: CurveColumns
    superseded: CurveColumns


def curves(
    gathered: Gathered,
    wanted: Callable[[str, str], bool] = lambda group, name: True,  # noqa: ARG005
    points: int = POINTS,
) -> Iterator[Curve]:
    """Yield the curves of all trials, by trial, each metric in the order of its first report.

    Args:
        wanted: True for the group and name of a metric to be drawn.
        points: to keep of each curve.
    """
    for trial in gathered.trials:
        found: dict[tuple[str, str], CurveColumns] = {}
        for attempt in trial.attempts:
            for line in attempt.of_kind("metrics"):
                _add(found, line, attempt.number, wanted)
        for (group, name), every in found.items():
            yield _curve(trial, group, name, every, points)


def _add(
    found: dict[tuple[str, str], CurveColumns],
    line: Line,
    attempt: int,
    wanted: Callable[[str, str], bool],
) -> None:
    time = datetime.fromisoformat(line["t"]).timestamp()
    epochs = (line.get("units") or {}).get("epochs")
    epoch = float(epochs) if isinstance(epochs, int | float) else math.nan
    group: str = line["group"]
    for name, value in line["metrics"].items():
        amount = value if type(value) is float else _float(value)
        if amount is None:
            continue
        points = found.get((group, name))
        if points is None:
            if not wanted(group, name):
                continue
            points = found[group, name] = CurveColumns()
        points.steps.append(line["step"])
        points.values.append(amount)
        points.attempts.append(attempt)
        points.epochs.append(epoch)
        points.times.append(time)


def _float(value: Any) -> float | None:
    """Return a value as a float, NaN and infinities included; None if it is structured."""
    try:
        plain = isinstance(value, int | float | str) and not isinstance(value, bool)
        return float(value) if plain else None
    except (OverflowError, ValueError):
        return None


def _curve(trial: GatheredTrial, group: str, name: str, every: CurveColumns, most: int) -> Curve:
    places = _counting(trial, every)
    counting = every if places is None else every.chosen(places)
    left = set(range(len(every))).difference(places) if places is not None else set[int]()
    finite = [value for value in counting.values if math.isfinite(value)]
    return Curve(
        trial.number,
        group,
        name,
        count=len(counting),
        odd=len(counting) - len(finite),
        low=min(finite, default=None),
        high=max(finite, default=None),
        points=_reduced(counting, most),
        superseded=_reduced(every.chosen(sorted(left)), most),
    )


def _counting(trial: GatheredTrial, every: CurveColumns) -> list[int] | None:
    """Return the places of points that count, by step; None: all do, and are in that order."""
    line = trial.lineage
    if not line.rewinds and all(before < after for before, after in pairwise(every.steps)):
        return None
    last: dict[int, int] = {}
    for place, (step, attempt) in enumerate(zip(every.steps, every.attempts, strict=True)):
        if line.has(step, attempt):
            last[step] = place
    return [last[step] for step in sorted(last)]


def _reduced(points: CurveColumns, most: int) -> CurveColumns:
    """Return at most ``most`` points: both ends, and extremes and odd ones of equal parts."""
    count = len(points)
    if count <= most:
        return points
    parts = max(1, (most - 2) // 3)
    kept = {0, count - 1}
    for part in range(parts):
        begin, end = part * count // parts, (part + 1) * count // parts
        values = points.values[begin:end]
        finite = [value for value in values if math.isfinite(value)]
        if finite:
            kept |= {begin + values.index(min(finite)), begin + values.index(max(finite))}
        if len(finite) < len(values):
            kept.add(next(begin + n for n, v in enumerate(values) if not math.isfinite(v)))
    return points.chosen(sorted(kept))
