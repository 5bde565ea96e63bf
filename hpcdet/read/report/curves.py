"""Learning curves as SVG: one chart per metric, one line per trial."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdet.read.report.scale import Axes, Scale, number, scale
from hpcdet.read.sections.metric_lines import ChartView, CurvePoints, CurvesSection, LineView
from hpcdet.read.sections.trial_rows import TrialsSection

FRAME = LEFT, TOP, RIGHT, BOTTOM = (64, 12, 616, 240)
STYLES = 8
"""Trials with a colour of their own, the best first; all others share the last style."""
_LOG_RATIO = 100.0


@dataclass(frozen=True)
class Line:
    """One trial in a chart.

    Attributes:
        style: number of its colour and dashes.
        paths: pieces of the curve as SVG paths; NaN and infinite values lie between them.
        faint: pieces that a later attempt trained again.
        dots: places of values that no piece shows as a line.
        restarts: places where another attempt goes on.
    """

    trial: int
    style: int
    paths: list[str]
    faint: list[str]
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


def charts(curves: CurvesSection, trials: TrialsSection, constrained: bool) -> list[Chart]:
    """Return the charts of the section ``curves``; none of metrics without a finite value."""
    styles = {trial: min(n, STYLES) for n, trial in enumerate(curves.trials)}
    found = (_chart(one, styles, curves.left_out, trials, constrained) for one in curves.charts)
    return [chart for chart in found if chart is not None]


def _chart(
    view: ChartView, styles: dict[int, int], left_out: int, trials: TrialsSection, constrained: bool
) -> Chart | None:
    points = [line.points for line in view.lines]
    again = [line.superseded for line in view.lines]
    values = [v for one in (*points, *again) for v in one.value if v is not None]
    steps = [float(step) for one in (*points, *again) for step in one.step]
    if not any(v is not None for one in points for v in one.value):
        return None
    log = min(values) > 0 and max(values) / min(values) >= _LOG_RATIO
    x = scale(steps, LEFT, RIGHT)
    y = scale(values, BOTTOM, TOP, log=log, air=0.04)
    smaller = trials.smaller_is_better
    return Chart(
        axes=Axes(
            [(x(tick), number(int(tick))) for tick in x.ticks() if tick == int(tick)],
            [(y(tick), number(tick)) for tick in y.ticks()],
            *FRAME,
        ),
        group=view.group,
        name=view.name,
        lines=[_line(line, styles[line.trial], x, y, smaller) for line in view.lines],
        left_out=left_out,
        log=log,
        summary=_summary(view, smaller, constrained),
        reduced=view.reduced,
    )


def _summary(view: ChartView, smaller: bool, constrained: bool) -> str:
    least = [(one.least, one.trial) for one in view.lines if one.least is not None]
    greatest = [(one.greatest, one.trial) for one in view.lines if one.greatest is not None]
    if view.searched:
        value, trial = min(least) if smaller else max(greatest)
        anybody = ", feasible or not" if constrained else ""
        return f"The best value is {number(value)}, of trial {trial}{anybody}."
    return f"Values from {number(min(least)[0])} to {number(max(greatest)[0])}."


def _line(view: LineView, style: int, x: Scale, y: Scale, smaller: bool) -> Line:
    drawn = [*_pieces(view.points)]
    restarts = []
    before: Any = None
    for step, value, attempt in _columns(view.points):
        if value is not None:
            if before not in (None, attempt):
                restarts.append((x(step), y(value)))
            before = attempt
    return Line(
        trial=view.trial,
        style=style,
        paths=_paths(drawn, x, y),
        faint=_paths([*_pieces(view.superseded)], x, y),
        dots=[(x(a), y(b)) for piece in drawn if len(piece) == 1 for a, b in piece],
        restarts=restarts,
        count=view.count,
        odd=view.odd,
        first=number(view.first),
        last=number(view.last),
        best=number(view.least if smaller else view.greatest),
    )


def _columns(points: CurvePoints) -> Iterator[tuple[int, float | None, int]]:
    return zip(points.step, points.value, points.attempt, strict=True)


def _pieces(points: CurvePoints) -> Iterator[list[tuple[int, float]]]:
    piece: list[tuple[int, float]] = []
    for step, value, _ in _columns(points):
        if value is not None:
            piece.append((step, value))
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _paths(pieces: Sequence[Sequence[tuple[int, float]]], x: Scale, y: Scale) -> list[str]:
    return ["M" + "L".join(f"{x(a)} {y(b)}" for a, b in p) for p in pieces if len(p) > 1]
