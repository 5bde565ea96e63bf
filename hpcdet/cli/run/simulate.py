"""``simulate``: a simulation of the course of a search on an assumed cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from hpcdet import units
from hpcdet.cli.frame.output import Column, Item, Output, output, table
from hpcdet.cli.frame.progress import working
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.frame.times import Seconds
from hpcdet.cli.inputs.load_request import SubmitRequest, config_argument, request, setting_options
from hpcdet.cli.run import plan_output
from hpcdet.config.check.plan import plan
from hpcdet.errors import ConfigError, Unsuccessful, UsageError
from hpcdet.read.views.items import text
from hpcdet.search.searcher_factory import searcher
from hpcdet.search.stopping import rules_from_config
from hpcdet.sim.cluster import Cluster
from hpcdet.sim.engine import Simulation
from hpcdet.sim.forecast import Forecast
from hpcdet.sim.outcome import Course
from hpcdet.sim.surrogate import Besides, Curves
from hpcdet.sim.turns import Reports
from hpcdet.sim.waits import QueueWait
from hpcdet.store.config.resolved_config import Budget, Resolved
from hpcdet.store.config.sections.searcher_keys import Searcher
from hpcdet.units import Length, Unit

_FULL_TRIAL_S = 3600.0
_RATE = click.FloatRange(min=0)
_TIME = Seconds()
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class _Waits(click.ParamType):  # type: ignore[type-arg]
    """``10m``, ``exp:10m``, ``lognormal:10m:1.5``, or a file with one time a line."""

    name = "wait"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> QueueWait:
        try:
            if value.startswith("@"):
                lines = Path(value[1:]).read_text().split()
                return QueueWait.seen([QueueWait.parse(line).typical_s for line in lines])
            return QueueWait.parse(value)
        except (ValueError, OSError) as error:
            self.fail(str(error), param, ctx)


class _Window(click.ParamType):  # type: ignore[type-arg]
    """``8h..16h``."""

    name = "window"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float]:
        begin, dots, end = value.partition("..")
        if not dots:
            self.fail(f"{value!r} is no window; write 8h..16h", param, ctx)
        return (_TIME.convert(begin, param, ctx), _TIME.convert(end, param, ctx))


def _rate(name: str, metavar: str, help: str) -> Callable[[Decorated], Decorated]:
    return click.option(name, type=_RATE, default=0.0, metavar=metavar, help=help)


def _time(name: str, help: str) -> Callable[[Decorated], Decorated]:
    return click.option(name, type=_TIME, default=0.0, metavar="TIME", help=help)


def _wait(name: str, help: str) -> Callable[[Decorated], Decorated]:
    return click.option(name, type=_Waits(), default="0", metavar="WAIT", help=help)


@click.command("simulate", short_help="Run a search on a simulated cluster.")
@config_argument()
@setting_options()
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Trials that train at once [as the config says].",
)
@click.option("--throttle", type=click.IntRange(min=1), metavar="N", help="Of them at once [all].")
@click.option(
    "--trial-time",
    type=Seconds(1e-3),
    metavar="TIME",
    help="Training of one full-length trial [1h].",
)
@_rate("--cost-spread", "S", "Trials' times differ: deviation of the logarithm.")
@_wait(
    "--queue-wait",
    "Of each job: 10m, exp:10m (mean), lognormal:10m:1.5 (median, deviation of the logarithm), "
    "@FILE (one time a line).",
)
@click.option("--walltime", type=Seconds(1), metavar="TIME", help="Of a job [as the config says].")
@_rate("--preempt", "R", "Preemptions per job hour.")
@_rate("--fail", "R", "Node failures per job hour.")
@_rate("--stragglers", "S", "Training takes 1 + |z| S times as long, z standard normal.")
@_time("--save-time", "To save and leave.")
@_time("--start-time", "From taking a trial until it trains.")
@_time("--restore-time", "Besides, from a checkpoint.")
@_wait("--visible", "Until a report is seen on the login node.")
@_time("--poll", "Between turns [at once].")
@click.option(
    "--away",
    type=_Window(),
    multiple=True,
    metavar="A..B",
    help="No process decides from A to B, as 8h..16h (repeatable).",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    metavar="K",
    help="Courses to run.",
)
@output("simulate")
def simulate_command(
    out: Output,
    config_file: Path,
    model_dir: Path | None,
    sets: Sequence[str],
    site_name: str | None,
    trial_time: float | None,
    cost_spread: float,
    seeds: int,
    **assumed: Any,
) -> None:
    """The course that a search would take: its own code decides, on an assumed cluster.

    Nothing is made or trained: learning curves are synthetic (power laws that cross), so how
    many trials get how far and what that costs is what one learns here, not how good they get.

    \b
    Example: hpcdet simulate adaptive.yaml --workers 8 --trial-time 2h \\
               --queue-wait exp:30m --preempt 0.1
    """
    wanted = request(config_file, model_dir, sets, site_name)
    expected = plan(wanted.resolved, begun=wanted.begun)
    asked = wanted.resolved.searcher
    lengths = _lengths(asked)
    cluster = _cluster(wanted.resolved, expected, assumed)
    full_s = trial_time or _FULL_TRIAL_S
    unit_s = full_s / lengths[-1]
    curves = (Curves(seed, lengths[-1], unit_s, costs=cost_spread) for seed in range(seeds))
    forecast = Forecast(_courses(wanted, cluster, lengths, curves, seeds))
    item: Item = {
        "id": wanted.resolved.name,
        "searcher": asked.name,
        "seeds": seeds,
        "unit": asked.time_metric or _unit(asked),
        "brackets": expected["brackets"],
        **forecast.figures(wanted.resolved.resources.slots_per_trial),
        "rungs": [
            {"length": length, "trials": vars(spread)} for length, spread in forecast.rungs.items()
        ],
        "assumed": {
            "trial_time_s": full_s,
            "workers": cluster.workers,
            "begin_at": wanted.begun,
            "walltime_s": None if math.isinf(cluster.walltime_s) else cluster.walltime_s,
        },
    }
    warnings = [*wanted.loaded.warnings, *_simplified(asked)]
    if trial_time is None:
        warnings.append("a full trial is taken to train 1 hour; --trial-time says it better")
    warnings += _beyond(wanted.resolved.budget, item)
    if not out.for_people or out.fields:
        out.emit([item], (), warnings=warnings)
        return
    for warning in warnings:
        settings().warn(warning)
    _say(item)
    settings().note("nothing was made; learning curves are synthetic")


def _unit(asked: Searcher) -> Unit:
    return asked.max_length.unit if asked.max_length else "batches"


def _lengths(asked: Searcher) -> list[int]:
    """Return the lengths at which trials report, ascending. Raises ConfigError: there is none."""
    if asked.top is None:
        hint = "give the length of a trial: searcher.max_length: {batches: 1000}"
        raise ConfigError("a search without a length", where="searcher.max_length", hint=hint)
    lengths = {asked.top, *(length for bracket in asked.brackets for length in bracket.rungs)}
    if asked.interval:
        lengths |= {rung.value for rung in asked.rungs}
    return sorted(lengths)


def _courses(
    wanted: SubmitRequest,
    cluster: Cluster,
    lengths: Sequence[int],
    curves: Iterable[Curves],
    seeds: int,
) -> list[Course]:
    """Run a course for each of so many ``curves``. Raises Unsuccessful: one does not end."""
    resolved, asked = wanted.resolved, wanted.resolved.searcher
    unit = _unit(asked)
    kept = rules_from_config.comparable(asked.stopping)
    at = Length(unit, wanted.begun) if asked.begin_from is not None else None
    free = replace(asked, constraints=[], stopping=kept, begin_at=at)
    unbound = replace(resolved, searcher=free)
    courses: list[Course] = []
    with working(f"simulate {seeds} courses") as tell:
        for seed, training in enumerate(curves):
            simulation = Simulation(
                searcher(unbound, wanted.model_dir.absolute(), history=wanted.history),
                cluster,
                training,
                Reports(
                    lengths,
                    unit,
                    asked.metric,
                    asked.smaller_is_better,
                    asked.time_metric or "",
                    resolved.resources.slots_per_trial,
                    Besides(asked.goals, seed, lengths[-1]) if asked.goals.several else None,
                ),
                seed=seed,
                begun=wanted.begun,
            )
            courses.append(_whole(simulation.run(), seed))
            tell((seed + 1) / seeds)
    return courses


def _simplified(asked: Searcher) -> list[str]:
    """Return warnings of what the simulation leaves out of a search."""
    found = []
    if asked.constraints:
        found.append("constraints are assumed to be kept: the simulation has no data on them")
    if asked.begin_from is not None and asked.time_metric is not None:
        metric = asked.time_metric
        found.append(f"trials are taken to begin at {metric} 0: no checkpoint says how far it is")
    kept = rules_from_config.comparable(asked.stopping)
    if left_out := [name for name in asked.stopping if name not in kept]:
        what = f"nothing ends by {', '.join(left_out)}"
        found.append(f"{what}: that asks for values of the metric, and these are synthetic")
    return found


def _beyond(budget: Budget, item: Item) -> list[str]:
    """Return warnings for courses that exceed the config's budget, which is not simulated."""
    bounds: tuple[tuple[str, float | None, Callable[[float], str]], ...] = (
        ("slot_hours", budget.slot_hours, lambda hours: f"{hours:.4g} slot hours"),
        ("end_s", budget.wall_s, units.duration),
    )
    said = []
    for key, bound, tell in bounds:
        most = item[key]["high"] if item[key] else 0.0
        if bound is not None and most > bound:
            said.append(
                f"courses take up to {tell(most)}, the budget is {tell(bound)}: they train on "
                "where the search would begin no more trials"
            )
    return said


def _cluster(resolved: Resolved, expected: dict[str, Any], assumed: dict[str, Any]) -> Cluster:
    """Return the assumed cluster, from the options and otherwise from the config."""
    need, worker = resolved.resources, resolved.worker
    try:
        return Cluster(
            workers=assumed["workers"] or expected["concurrent_trials"],
            throttle=assumed["throttle"] or 0,
            queue_wait=assumed["queue_wait"],
            walltime_s=assumed["walltime"] or need.walltime_s or math.inf,
            shared=worker.mode == "shared",
            preempt_per_h=assumed["preempt"],
            fail_per_h=assumed["fail"],
            checkpoint_every_s=resolved.checkpoint_every_s,
            save_s=assumed["save_time"],
            start_s=assumed["start_time"],
            restore_s=assumed["restore_time"],
            stragglers=assumed["stragglers"],
            visible=assumed["visible"],
            poll_s=assumed["poll"],
            away=tuple(assumed["away"]),
            min_segment_s=worker.min_segment_s,
            idle_s=worker.idle_s,
        )
    except ValueError as error:
        raise UsageError(str(error), where="the assumed cluster") from error


def _whole(course: Course, seed: int) -> Course:
    if not course.stalled:
        return course
    raise Unsuccessful(
        f"the search does not end: after {units.duration(course.end_s)}, {course.created} trials "
        f"made and {len(course.finished)} trained in full, nothing gets on",
        where=f"course {seed}",
        hint="nodes fail or jobs end sooner than a trial reaches a checkpoint: "
        "checkpoint_every_s, worker.min_segment_s, --fail, --preempt, --walltime",
    )


_ROWS: tuple[tuple[str, str, str], ...] = (
    ("end_s", "end", "duration"),
    ("first_in_full_s", "first trial in full", "duration"),
    ("slot_hours", "slot hours", ""),
    ("utilisation", "of them training", "percent"),
    ("trained_again", "of it trained again", "percent"),
    ("trials", "trials", ""),
    ("trained_in_full", "trained in full", ""),
    ("jobs", "jobs", ""),
    ("queue_wait_s", "mean wait of a job", "duration"),
    ("preempted", "left with a checkpoint", ""),
    ("failures", "lost with their node", ""),
)


def _say(item: Item) -> None:
    assumed = item["assumed"]
    trial_s = units.duration(assumed["trial_time_s"])
    click.echo(
        f"{item['id']}: {item['searcher']}, {assumed['workers']} workers, a full trial {trial_s}, "
        f"{item['seeds']} courses"
    )
    if assumed["begin_at"]:
        click.echo(f"all trials begin at {assumed['begin_at']} {item['unit']}")
    for number, one in enumerate(item["brackets"], 1):
        click.echo(f"bracket {number}: {plan_output.bracket(one, item['unit'])}")
    rows = [(name, item[key], kind) for key, name, kind in _ROWS if item[key] is not None]
    rows += [
        (f"trials at {rung['length']} {item['unit']}", rung["trials"], "") for rung in item["rungs"]
    ]
    columns = [
        Column("EXPECTED", "what", cut=False),
        *(Column(title, title, right=True) for title in ("MEDIAN", "5 %", "95 %")),
    ]
    cells = [
        [name, *(_cell(spread[key], kind) for key in ("median", "low", "high"))]
        for name, spread, kind in rows
    ]
    click.echo(table(columns, cells))


def _cell(value: float, kind: str) -> str:
    if kind == "duration":
        return units.duration(value)
    if kind == "percent":
        return f"{100 * value:.1f} %"
    return text(round(value, 2) if value % 1 else int(value))
