"""Learning curves: one chart per metric, one line per trial."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from hpcdet.read.experiment import series
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.report.scale import Axes, Scale, number, reduce, scale

FRAME = LEFT, TOP, RIGHT, BOTTOM = (64, 12, 616, 240)
CHARTS = 8
LINES = 20
POINTS = 300
_STYLES = 8
_LOG_RATIO = 100.0


@dataclass(frozen=True)
class Line:
    """One trial in a chart.

    Attributes:
        style: number of its colour and dashes.
        paths: pieces of the curve as SVG paths; NaN and infinite values lie between them.
        dots: places of values that no piece shows as a line.
        restarts: places where another attempt goes on.
        odd: how many values are NaN or infinite.
    """

    trial: int
    style: int
    paths: list[str]
    dots: list[tuple[float, float]]
    restarts: list[tuple[float, float]]
    count: int
    odd: int
    first: str
    last: str
    best: str


@dataclass(frozen=True)
class Chart:
    """Everything a template needs to draw the curves of one metric."""

    axes: Axes
    group: str
    name: str
    lines: list[Line]
    left_out: int
    log: bool
    summary: str
    reduced: bool


@dataclass
class _Curve:
    """One trial's values of one metric, of which there may be very many.

    Attributes:
        first, last: the steps and the reported values at both ends.
    """

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    attempts: array[int] = field(default_factory=lambda: array("l"))
    first: tuple[int, Any] | None = None
    last: tuple[int, Any] | None = None

    def add(self, row: dict[str, Any], value: float) -> None:
        step = int(row["step"])
        self.steps.append(step)
        self.values.append(value)
        self.attempts.append(row["attempt"])
        if self.first is None or step < self.first[0]:
            self.first = step, row["value"]
        if self.last is None or step >= self.last[0]:
            self.last = step, row["value"]

    def points(self) -> list[tuple[int, float, int]]:
        """Return step, value and attempt in the order of steps."""
        return sorted(zip(self.steps, self.values, self.attempts, strict=True), key=itemgetter(0))

    def finite(self) -> list[float]:
        return [value for value in self.values if math.isfinite(value)]


def charts(gathered: Gathered) -> list[Chart]:
    """Return the charts: the searcher's metric first, then validation, then the rest."""
    searcher = gathered.config.searcher
    curves: dict[tuple[str, str], dict[int, _Curve]] = defaultdict(dict)
    for trial in gathered.trials:
        for row in series.of_trial(trial):
            value = _float(row["value"])
            if value is not None and not row["superseded"]:
                own = curves[row["group"], row["name"]]
                own.setdefault(trial.number, _Curve()).add(row, value)

    def rank(key: tuple[str, str]) -> tuple[bool, bool, str, str]:
        group, name = key
        return (name != searcher.metric, group != "validation", group, name)

    def whose(name: str) -> str | None:
        """Return the suffix for the best trial; None for metrics other than the searcher's."""
        anybody = ", feasible or not" if searcher.goals.constraints else ""
        return anybody if name == searcher.metric else None

    chosen = sorted(curves, key=rank)[:CHARTS]
    styles = {trial.number: n % _STYLES for n, trial in enumerate(gathered.trials)}
    made = (
        _chart(key, curves[key], styles, searcher.smaller_is_better, whose(key[1]))
        for key in chosen
    )
    return [chart for chart in made if chart is not None]


def _float(value: Any) -> float | None:
    try:
        return float(value) if not isinstance(value, bool) else None
    except (TypeError, ValueError):
        return None


def _chart(
    key: tuple[str, str],
    trials: dict[int, _Curve],
    styles: dict[int, int],
    smaller_is_better: bool,
    ranked: str | None,
) -> Chart | None:
    sign = 1 if smaller_is_better else -1
    top = {n: min((sign * v for v in own.finite()), default=math.inf) for n, own in trials.items()}
    order = sorted(trials, key=lambda n: (top[n], n))
    shown = sorted(order[:LINES])
    values = [value for n in shown for value in trials[n].finite()]
    if not values:
        return None
    steps = [float(step) for n in shown for step in trials[n].steps]
    log = min(values) > 0 and max(values) / min(values) >= _LOG_RATIO
    x = scale(steps, LEFT, RIGHT)
    y = scale(values, BOTTOM, TOP, log=log, air=0.04)
    best = order[0]
    return Chart(
        axes=Axes(
            [(x(tick), number(int(tick))) for tick in x.ticks() if tick == int(tick)],
            [(y(tick), number(tick)) for tick in y.ticks()],
            *FRAME,
        ),
        group=key[0],
        name=key[1],
        lines=[_line(n, styles[n], trials[n], x, y, smaller_is_better) for n in shown],
        left_out=len(trials) - len(shown),
        log=log,
        summary=(
            f"The best value is {number(sign * top[best])}, of trial {best}{ranked}."
            if ranked is not None
            else f"Values from {number(min(values))} to {number(max(values))}."
        ),
        reduced=any(len(trials[n].steps) > POINTS for n in shown),
    )


def _line(trial: int, style: int, curve: _Curve, x: Scale, y: Scale, smaller: bool) -> Line:
    pieces: list[list[tuple[float, float]]] = [[]]
    restarts = []
    points = curve.points()
    before = points[0][2]
    for step, value, attempt in points:
        if not math.isfinite(value):
            pieces.append([])
            continue
        pieces[-1].append((float(step), value))
        if attempt != before:
            restarts.append((x(step), y(value)))
            before = attempt
    drawn = [reduce(piece, POINTS) for piece in pieces if piece]
    finite = curve.finite()
    assert curve.first is not None and curve.last is not None
    return Line(
        trial=trial,
        style=style,
        paths=["M" + "L".join(f"{x(a)} {y(b)}" for a, b in p) for p in drawn if len(p) > 1],
        dots=[(x(a), y(b)) for p in drawn if len(p) == 1 for a, b in p],
        restarts=restarts,
        count=len(points),
        odd=len(points) - len(finite),
        first=number(curve.first[1]),
        last=number(curve.last[1]),
        best=number((min if smaller else max)(finite)) if finite else "",
    )
