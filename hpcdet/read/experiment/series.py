"""Metrics of all attempts as one series, in which the highest attempt takes precedence."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import pairwise
from operator import itemgetter
from typing import Any, Literal

from hpcdet.read.experiment import timing
from hpcdet.read.experiment.gather import Gathered, GatheredTrial, Line, gather
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import json_record

Row = dict[str, Any]
Source = ExperimentPaths | Gathered
Axis = Literal["step", "epoch", "wall"]


def metrics(
    source: Source,
    *,
    trial: int = 0,
    name: str = "*",
    group: str = "*",
    superseded: bool = False,
    points: int | None = None,
) -> list[Row]:
    """Return rows ``trial, group, step, name, value, time, attempt, superseded``, in written order.

    A row is known by (trial, group, step, name). Where attempts trained the same stretch twice,
    the highest attempt's row counts; the others are superseded and come only when asked for, as
    are those behind a checkpoint from which a user let the trial begin again.

    Args:
        trial: only this one; 0 means all.
        name: glob over the metric's name, as ``group`` over its group; ``*`` means all groups that
            the code reported, and not those of ``timing``.
        superseded: hand out superseded rows, too.
        points: at most so many of each trial, group and name: evenly, with the first and last.

    Returns:
        ``value`` is a number, or ``"NaN"``, ``"Infinity"``, ``"-Infinity"``, or what the code
        reported as structured value. ``step`` counts batches, ``time`` is ISO 8601 UTC.
    """
    found: list[Row] = []
    for each in gather(source).chosen(trial):
        rows = of_trial(each, measured=timing.wanted(group), name=name, group=group)
        wanted = [row for row in rows if superseded or not row["superseded"]]
        found += wanted if points is None else _thinned(wanted, points)
    return found


def of_trial(
    trial: GatheredTrial, *, measured: bool = False, name: str = "*", group: str = "*"
) -> list[Row]:
    """Return rows of a trial; with ``measured`` also those of ``timing`` and ``system``."""
    wanted = functools.cache(
        lambda of, called: fnmatchcase(called, name) and fnmatchcase(of, group)
    )
    rows = [row for row in _written(trial, measured) if wanted(row["group"], row["name"])]
    line = trial.lineage
    counts = (i for i, row in enumerate(rows) if line.has(row["step"], row["attempt"]))
    last = {(rows[i]["group"], rows[i]["step"], rows[i]["name"]): i for i in counts}
    for i, row in enumerate(rows):
        row["superseded"] = last.get((row["group"], row["step"], row["name"])) != i
    return rows


def _written(trial: GatheredTrial, measured: bool) -> Iterator[Row]:
    for attempt in trial.attempts:
        if measured:
            yield from timing.rows(trial.number, attempt)
        for line in attempt.of_kind("metrics"):
            yield from told(trial.number, attempt.number, line)


def _thinned(rows: list[Row], points: int) -> list[Row]:
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        places[row["group"], row["name"]].append(place)
    kept: set[int] = set()
    for one in places.values():
        step = max(1.0, (len(one) - 1) / max(1, points - 1))
        chosen = {round(number * step) for number in range(min(points, len(one)))}
        kept |= {one[number] for number in chosen if number < len(one)}
    return [row for place, row in enumerate(rows) if place in kept]


def told(trial: int, attempt: int, line: Line) -> Iterator[Row]:
    """Return the rows in one line of metrics, without ``superseded``."""
    for name, value in line["metrics"].items():
        yield {
            "trial": trial,
            "group": line["group"],
            "step": line["step"],
            "name": name,
            "value": value,
            "time": line["t"],
            "attempt": attempt,
            "units": line.get("units", {}),
        }


def along(source: Source, rows: Iterable[Row], axis: Axis) -> list[Row]:
    """Return the rows with ``x``: batches, completed epochs, or seconds since the first start.

    ``x`` is None where a row's epoch is not known.
    """
    gathered, rows = gather(source), list(rows)
    starts = {
        trial.number: min((a.claim.at for a in trial.attempts if a.claim), default="")
        for number in {row["trial"] for row in rows}
        for trial in gathered.chosen(number)
    }

    def x(row: Row) -> float | None:
        match axis:
            case "step":
                return float(row["step"])
            case "epoch":
                epochs = row["units"].get("epochs")
                return None if epochs is None else float(epochs)
            case "wall":
                start = datetime.fromisoformat(starts[row["trial"]] or row["time"])
                return (datetime.fromisoformat(row["time"]) - start).total_seconds()

    return [{**row, "x": x(row)} for row in rows]


def number(value: Any) -> float | None:
    """Return a metric's value as a float; None if it is structured or not a number."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain and value not in ("Infinity", "-Infinity"):
        return None  # nor for the searcher, and NaN is no best and no last
    try:
        as_float = json_record.value(value)
    except OverflowError:
        return None
    return as_float if as_float == as_float else None


def last(rows: Iterable[Row]) -> list[Row]:
    """Return for each (trial, group, name) the row of the highest step."""
    return _choose(rows, lambda new, old: new["step"] >= old["step"])


def best(rows: Iterable[Row], smaller_is_better: bool) -> list[Row]:
    """Return for each (trial, group, name) the row with the best value, if values are ordered."""
    sign = 1 if smaller_is_better else -1
    ordered = (row for row in rows if number(row["value"]) is not None)
    return _choose(ordered, lambda new, old: sign * _float(new) < sign * _float(old))


def _float(row: Row) -> float:
    value = number(row["value"])
    assert value is not None
    return value


def best_validation(
    trial: GatheredTrial, metric: str, smaller_is_better: bool
) -> tuple[int, Any] | None:
    """Return step and value of a trial's best validation, the first of equals; None without any.

    Args:
        metric: one by which trials are compared (``summary.Compared``).
    """
    key = ("best", metric, smaller_is_better)
    if key not in trial.derived:
        choose = min if smaller_is_better else max
        found = _best_of_floats(trial, metric, choose) or _best_of_any(trial, metric, choose)
        trial.derived[key] = found
    known: tuple[int, Any] | None = trial.derived[key]
    return known


def _best_of_any(
    trial: GatheredTrial, metric: str, choose: Callable[..., Any]
) -> tuple[int, Any] | None:
    found = ((number(value), step, value) for step, _, value in trial.validations(metric))
    ordered = [one for one in found if one[0] is not None]
    return choose(ordered, key=itemgetter(0))[1:] if ordered else None


def _best_of_floats(
    trial: GatheredTrial, metric: str, choose: Callable[..., Any]
) -> tuple[int, Any] | None:
    """Return the best one of a trial that repeated no step; None if there may be others."""
    known = [a.journal.compared[metric] for a in trial.attempts if metric in a.journal.compared]
    if trial.lineage.rewinds or any(one.others or not one.ascending for one in known):
        return None
    if any(before.steps[-1] >= after.steps[0] for before, after in pairwise(known)):
        return None
    found = [(choose(one.floats), one) for one in known]
    if not found:
        return None
    value, of = choose(found, key=itemgetter(0))
    return of.steps[of.floats.index(value)], value


def _choose(rows: Iterable[Row], better: Callable[[Row, Row], bool]) -> list[Row]:
    chosen: dict[tuple[int, str, str], Row] = {}
    for row in rows:
        key = (row["trial"], row["group"], row["name"])
        if key not in chosen or better(row, chosen[key]):
            chosen[key] = row
    return list(chosen.values())
