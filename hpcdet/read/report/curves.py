"""Learning curves: one chart per metric, one line per trial."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcdet.read.experiment import series
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.report.scale import Axes, Scale, number, reduce, scale

FRAME = LEFT, TOP, RIGHT, BOTTOM = (64, 12, 628, 240)
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


def charts(gathered: Gathered) -> list[Chart]:
    """Return the charts: the searcher's metric first, then validation, then the rest."""
    searcher = gathered.config.searcher
    rows: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in series.metrics(gathered):
        if _float(row["value"]) is not None:
            rows[row["group"], row["name"]].append(row)

    def rank(key: tuple[str, str]) -> tuple[bool, bool, str, str]:
        group, name = key
        return (name != searcher.metric, group != "validation", group, name)

    def whose(name: str) -> str | None:
        """Return the suffix for the best trial; None for metrics other than the searcher's."""
        anybody = ", feasible or not" if searcher.goals.constraints else ""
        return anybody if name == searcher.metric else None

    chosen = sorted(rows, key=rank)[:CHARTS]
    styles = {trial.number: n % _STYLES for n, trial in enumerate(gathered.trials)}
    made = (
        _chart(key, rows[key], styles, searcher.smaller_is_better, whose(key[1])) for key in chosen
    )
    return [chart for chart in made if chart is not None]


def _float(value: Any) -> float | None:
    try:
        return float(value) if not isinstance(value, bool) else None
    except (TypeError, ValueError):
        return None


def _chart(
    key: tuple[str, str],
    rows: Sequence[dict[str, Any]],
    styles: dict[int, int],
    smaller_is_better: bool,
    ranked: str | None,
) -> Chart | None:
    trials: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        trials[row["trial"]].append(row)
    finite = {
        trial: [v for row in own if math.isfinite(v := float(row["value"]))]
        for trial, own in trials.items()
    }
    sign = 1 if smaller_is_better else -1
    order = sorted(trials, key=lambda t: (min((sign * v for v in finite[t]), default=math.inf), t))
    shown = sorted(order[:LINES])
    values = [value for trial in shown for value in finite[trial]]
    if not values:
        return None
    steps = [float(row["step"]) for trial in shown for row in trials[trial]]
    log = min(values) > 0 and max(values) / min(values) >= _LOG_RATIO
    x = scale(steps, LEFT, RIGHT)
    y = scale(values, BOTTOM, TOP, log=log, air=0.04)
    best = order[0]
    chosen = (min if smaller_is_better else max)(finite[best])
    return Chart(
        axes=Axes(
            [(x(tick), number(int(tick))) for tick in x.ticks() if tick == int(tick)],
            [(y(tick), number(tick)) for tick in y.ticks()],
            *FRAME,
        ),
        group=key[0],
        name=key[1],
        lines=[
            _line(trial, styles[trial], sorted(trials[trial], key=_step), x, y, smaller_is_better)
            for trial in shown
        ],
        left_out=len(trials) - len(shown),
        log=log,
        summary=(
            f"The best value is {number(chosen)}, of trial {best}{ranked}."
            if ranked is not None
            else f"Values from {number(min(values))} to {number(max(values))}."
        ),
        reduced=any(len(trials[trial]) > POINTS for trial in shown),
    )


def _step(row: dict[str, Any]) -> int:
    return int(row["step"])


def _line(
    trial: int, style: int, rows: list[dict[str, Any]], x: Scale, y: Scale, smaller: bool
) -> Line:
    pieces: list[list[tuple[float, float]]] = [[]]
    restarts = []
    before = rows[0]["attempt"]
    for row in rows:
        value = float(row["value"])
        if not math.isfinite(value):
            pieces.append([])
            continue
        pieces[-1].append((float(row["step"]), value))
        if row["attempt"] != before:
            restarts.append((x(row["step"]), y(value)))
            before = row["attempt"]
    drawn = [reduce(piece, POINTS) for piece in pieces if piece]
    finite = [value for piece in pieces for _, value in piece]
    return Line(
        trial=trial,
        style=style,
        paths=["M" + "L".join(f"{x(a)} {y(b)}" for a, b in p) for p in drawn if len(p) > 1],
        dots=[(x(a), y(b)) for p in drawn if len(p) == 1 for a, b in p],
        restarts=restarts,
        count=len(rows),
        odd=len(rows) - len(finite),
        first=number(rows[0]["value"]),
        last=number(rows[-1]["value"]),
        best=number((min if smaller else max)(finite)) if finite else "",
    )
