"""``metrics``: values as rows, the last or best ones, or a plot of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from hpcdet import units
from hpcdet.cli.frame import text_format
from hpcdet.cli.frame.ids import ids_argument, references
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import UsageError
from hpcdet.read.experiment import gather, series
from hpcdet.read.views import measured
from hpcdet.read.views.items import text
from hpcdet.read.views.measured import MetricView, PlacedMetricView

COLUMNS = (
    Column("EXPERIMENT", "experiment", wide=True),
    Column("TRIAL", "trial", right=True),
    Column("GROUP", "group"),
    Column("STEP", "step", right=True),
    Column("NAME", "name"),
    Column("VALUE", "value", right=True),
    Column("TIME", text_format.time_of("time"), cut=False),
    Column("ATTEMPT", "attempt", wide=True, right=True),
    Column("SUPERSEDED", "superseded", wide=True),
)


@click.command("metrics", short_help="Metrics as rows, last or best values, or a plot.")
@ids_argument()
@click.option("--name", default="*", metavar="GLOB", help="Only metrics of this name.")
@click.option(
    "--group", default="*", metavar="GLOB", help="training, validation, …, timing, system."
)
@click.option("--last", is_flag=True, help="The newest value of each metric.")
@click.option("--best", is_flag=True, help="The best value of each metric.")
@click.option("--larger", is_flag=True, help="With --best: larger is better.")
@click.option("--every", type=click.IntRange(min=1), metavar="N", help="Every Nth row.")
@click.option("--plot", is_flag=True, help="Curves as text.")
@click.option(
    "--x",
    "axis",
    type=click.Choice(["step", "epoch", "wall"]),
    help="What --plot goes along; rows get it as x (wall: seconds since the trial's start).",
)
@click.option("--all", "all_", is_flag=True, help="Superseded rows of earlier attempts, too.")
@output("metrics", MetricView, PlacedMetricView)
def metrics_command(
    out: Output,
    ids: Sequence[str],
    name: str,
    group: str,
    last: bool,
    best: bool,
    larger: bool,
    every: int | None,
    plot: bool,
    axis: series.Axis | None,
    all_: bool,
) -> None:
    """Metrics of experiments or trials.

    Where attempts overlap, the last one's values count.
    Seconds of a step by phase (--group timing) and what was used (system) come when asked for.

    \b
    Examples: hpcdet metrics digits-7f3a --name 'val*' --best
              hpcdet metrics digits-7f3a/2 --plot
              hpcdet metrics digits-7f3a --group timing --last
    """
    if last and best:
        raise UsageError("--last and --best exclude each other", hint="leave one out")
    items: list[MetricView] = []
    there: set[str] = set()
    pick: measured.Pick | None = "last" if last else "best" if best else None
    for reference in references(ids):
        gathered = gather.gather(reference.paths)
        rows = measured.metrics(
            gathered,
            trial=reference.trial,
            name=name,
            group=group,
            superseded=all_,
            pick=pick,
            larger=larger,
            every=every,
            x=axis,
        )
        if not rows and name != "*":
            there |= {row["name"] for row in series.metrics(gathered, trial=reference.trial)}
        items.extend(rows)
    if plot:
        click.echo(_plots(items, axis or "step"))
        return
    columns = (*COLUMNS[:4], Column("X", "x", right=True), *COLUMNS[4:]) if axis else COLUMNS
    asked = [f"--{what} {text}" for what, text in (("name", name), ("group", group)) if text != "*"]
    empty = f"no metrics of {' '.join(asked)}" if asked else "no metrics yet"
    empty += f"; there are: {', '.join(sorted(there))}" if there else ""
    out.emit(items, columns, key="name", empty=empty)


def _plots(items: list[MetricView], axis: series.Axis) -> str:
    curves: dict[tuple[str, int, str, str], list[tuple[float, float]]] = {}
    for item in items:
        value = series.number(item.value)
        x = item.x if isinstance(item, PlacedMetricView) else item.step
        if x is not None and value is not None and abs(value) != float("inf"):
            key = (item.experiment, item.trial, item.group, item.name)
            curves.setdefault(key, []).append((x, value))
    if not curves:
        settings().note("nothing to plot")
    label = units.duration if axis == "wall" else "{:.0f}".format
    return "\n".join(
        f"{experiment}/{trial} {group} {name}\n{plot(points, label)}"
        for (experiment, trial, group, name), points in curves.items()
    )


def plot(
    points: Sequence[tuple[float, float]],
    label: Callable[[float], str],
    width: int = 60,
    height: int = 8,
) -> str:
    """A curve as text: one ``*`` per column of x, values at the left, ``label`` of x below."""
    ordered = sorted(points)
    (first, _), (end, _) = ordered[0], ordered[-1]
    low, high = min(v for _, v in ordered), max(v for _, v in ordered)
    grid = [[" "] * width for _ in range(height)]
    for x, value in ordered:
        column = round((x - first) / ((end - first) or 1) * (width - 1))
        row = round((high - value) / ((high - low) or 1) * (height - 1))
        grid[row][column] = "*"
    labels = {0: text(high), height - 1: text(low)}
    margin = max(map(len, labels.values()))
    lines = [f"{labels.get(i, ''):>{margin}} |{''.join(row)}" for i, row in enumerate(grid)]
    steps = f"{label(first)}{label(end).rjust(width - len(label(first)))}"
    return "\n".join([*(line.rstrip() for line in lines), f"{'':>{margin}}  {steps}"])
