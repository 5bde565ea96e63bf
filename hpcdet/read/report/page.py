"""Variables of the page's template: the sections, and their charts as SVG."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hpcdet import units
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.experiment.timing import PHASES
from hpcdet.read.report import curves, fronts, timeline_chart
from hpcdet.read.report.scale import number, slot_time
from hpcdet.read.report.step_phases import steps, use, uses
from hpcdet.read.sections.redaction import Redaction
from hpcdet.read.sections.whole import NAMES, ReportView
from hpcdet.read.usage import slot_hours
from hpcdet.read.usage.spans import KINDS
from hpcdet.read.views import describe
from hpcdet.read.views.items import encode, shape, typed

TITLES = {
    "summary": "Summary",
    "numbers": "Key numbers",
    "time": "Where the time went",
    "timeline": "Attempts over time",
    "trials": "Trials",
    "curves": "Learning curves",
    "search": "Search",
    "efficiency": "Efficiency",
    "checkpoints": "Checkpoints",
    "lineage": "Lineage",
    "config": "Config",
    "failures": "Failures",
    "logs": "Logs",
    "governance": "Governance",
    "reproduce": "Reproduce",
    "methods": "Methods and limits",
}
"""What the sections are called, by their ids."""
assert tuple(TITLES) == NAMES


_IDLE = slot_hours.KINDS["overhead"].lower()


def content(report: ReportView, gathered: Gathered, redaction: Redaction) -> dict[str, Any]:
    """Return the template's variables."""
    shown = report.sections
    constrained = bool(gathered.config.searcher.goals.constraints)
    used = {row.trial: row.slot_s for row in shown.trials.rows}
    drawn: dict[str, Any] = redaction(
        {
            "steps": steps(gathered),
            "uses": uses(gathered),
            "front": fronts.front(gathered),
        }
    )
    return {
        **drawn,
        "report": report,
        "shown": shown,
        "titles": TITLES,
        "charts": curves.charts(shown.curves, shown.trials, constrained),
        "timeline": timeline_chart.timeline(shown.timeline),
        "used": used,
        "phase_words": PHASES,
        "cost": describe.cost(shown.numbers.spent, lambda hours: slot_time(hours * 3600), _IDLE),
    }


def data(report: ReportView) -> dict[str, Any]:
    """Return what the page's script draws, as plain data."""
    shown = report.sections
    timeline = encode(shown.timeline)
    del timeline["attempts"]
    return {
        "trials": encode(shown.trials),
        "curves": encode(shown.curves),
        "search": encode(shown.search),
        "timeline": timeline,
        "kinds": KINDS,
        "signs": timeline_chart.MARKS,
        "wrong": timeline_chart.WRONG,
    }


def _short(time: str) -> str:
    """Format a time as ``2026-03-01 12:00:05``, UTC."""
    return time[:19].replace("T", " ")


def _range(begin: int | None, end: int | None) -> str:
    """Format the steps of an attempt, of which the first may not be recorded."""
    if begin is None:
        return "none" if end is None else f"to {number(end)}"
    return f"{number(begin)}–{number(max(begin, end or 0))}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.3g} %"


def _entries(value: Any) -> list[tuple[Any, Any]]:
    """Return the keys and values of a map, or the places and items of a list."""
    return list(value.items() if isinstance(value, dict) else enumerate(value))


_FILTERS: dict[str, Callable[..., Any]] = {
    "brief": describe.brief,
    "counted": units.counted,
    "duration": units.duration,
    "entries": _entries,
    "number": number,
    "percent": _percent,
    "range": _range,
    "shape": lambda value: "" if value is None else shape(value, typed),
    "short": _short,
    "size": units.size,
    "slot_time": slot_time,
    "use": use,
}


@functools.cache
def templates(folder: Path) -> Environment:
    """Return the templates in a folder; a process compiles each of them once."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= _FILTERS
    return environment
