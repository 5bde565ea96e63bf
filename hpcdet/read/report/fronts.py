"""Fronts of several objectives: a chart of the first two, and a table of the front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcdet import pareto
from hpcdet.goals import Objective, finite
from hpcdet.read.experiment import standings
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.report.scale import Axes, number, scale
from hpcdet.read.views.list_rows import ComparisonView
from hpcdet.read.views.trials import comparison
from hpcdet.store.config.sections.searcher_keys import Searcher

FRAME = LEFT, TOP, RIGHT, BOTTOM = (72, 12, 616, 276)
DOTS = 1000
"""Trials that are drawn; the table has the whole front."""


@dataclass(frozen=True)
class Dot:
    """A trial. ``kind`` is ``front``, ``feasible`` or ``infeasible``."""

    x: float
    y: float
    kind: str
    title: str


@dataclass(frozen=True)
class Front:
    """The template's data on the front.

    Attributes:
        path: the front of two objectives as stairs; points beyond them are dominated.
        hypervolume: of two objectives, the area that the front dominates, up to the worst
            feasible value of each; "" of more, or of one trial.
        names: of the values in the table.
    """

    axes: Axes
    names: list[str]
    compared: str
    dots: list[Dot]
    path: str
    summary: str
    hypervolume: str
    left_out: int


def front(gathered: Gathered) -> Front | None:
    """Return the front; None with a single objective, or without trials to compare yet."""
    searcher = gathered.config.searcher
    stand = standings.standings(gathered)
    if stand is None or not stand.goals.several:
        return None
    found = {trial: comparison(stand, trial) for trial in sorted(stand.at)}
    one, other = stand.goals.objectives[:2]
    drawn = [
        (trial, row, x, y)
        for trial, row in found.items()
        if (x := finite(row.objectives[one.metric])) is not None
        and (y := finite(row.objectives[other.metric])) is not None
    ]
    if not drawn:
        return None
    # with many trials those on the front are drawn before others
    chosen = sorted(drawn, key=lambda item: (not item[1].on_front, item[0]))[:DOTS]
    across = scale([x for _, _, x, _ in chosen], LEFT, RIGHT, air=0.05)
    up = scale([y for _, _, _, y in chosen], BOTTOM, TOP, air=0.05)
    first = drawn[0][1]
    names = [*first.objectives, *first.constraints]
    dots = [
        Dot(across(x), up(y), _kind(row), f"trial {trial}: {number(x)}, {number(y)}")
        for trial, row, x, y in reversed(chosen)
    ]
    on = [(x, y) for _, row, x, y in chosen if row.on_front]
    count, planar = len(stand.front), len(stand.goals.objectives) == 2
    return Front(
        names=names,
        compared=_compared(searcher, stand.length),
        dots=dots,
        path=_stairs([(across(x), up(y)) for x, y in sorted(on)], one) if planar else "",
        axes=Axes(
            [(across(tick), number(tick)) for tick in across.ticks()],
            [(up(tick), number(tick)) for tick in up.ticks()],
            *FRAME,
        ),
        summary=f"{count} of {len(found)} trials {'is' if count == 1 else 'are'} on the front.",
        hypervolume=_volume(stand, [row for row in found.values() if row.feasible is not False]),
        left_out=len(drawn) - len(chosen),
    )


def _kind(row: ComparisonView) -> str:
    if row.feasible is False:
        return "infeasible"
    return "front" if row.on_front else "feasible"


def _compared(searcher: Searcher, length: int | None) -> str:
    if length is None:
        return "by what each trial reported last"
    unit = searcher.max_length.unit if searcher.max_length else ""
    return f"at {number(length)} {unit}"


def _stairs(places: Sequence[tuple[float, float]], first: Objective) -> str:
    """Return the path from each point of the front to the next by the corner that both dominate.

    It has the worse value of each: of the first objective the right one's, if smaller is better,
    and so the left one's of the second.
    """
    steps = (f"H{x}V{y}" if first.smaller_is_better else f"V{y}H{x}" for x, y in places[1:])
    return "".join([f"M{x} {y}" for x, y in places[:1]] + list(steps))


def _volume(stand: standings.Standings, rows: Sequence[ComparisonView]) -> str:
    if len(stand.goals.objectives) != 2:
        return ""
    losses = [
        (a, b)
        for row in rows
        for a, b in [[one.loss(row.objectives) for one in stand.goals.objectives]]
        if a is not None and b is not None
    ]
    if len(losses) < 2:
        return ""
    worst = (max(a for a, _ in losses), max(b for _, b in losses))
    return number(pareto.hypervolume(losses, worst))
