"""A report as Markdown: each section as facts and tables, from the same data as the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hpcdet import units
from hpcdet.read.report.scale import number
from hpcdet.read.sections.whole import NAMES, ReportView
from hpcdet.read.views.items import encode, shape, typed

ROWS = 200
_WIDE = 400
_LEFT_TO_JSON = frozenset({"lanes", "history", "environments", "packages"})
_COLUMNS = ("step", "epoch", "wall", "slot_hours", "value", "attempt")


def markdown(report: ReportView) -> str:
    """Return a report as Markdown."""
    whole = encode(report)
    lines = [f"# {_inline(whole['name'])}: {whole['state']}", ""]
    made = f"Experiment {whole['id']}, report of {whole['generated']} by hpcdet {whole['version']}."
    lines += [_inline(made), ""]
    for name in NAMES:
        lines += [f"## {name.capitalize()}", ""]
        body = [*_value(whole["sections"][name])]
        lines += body or ["No data.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _value(section: dict[str, Any], level: int = 3) -> Iterator[str]:
    facts = {
        k: v for k, v in section.items() if not isinstance(v, list | dict) and v not in ("", None)
    }
    texts = {k: v for k, v in facts.items() if isinstance(v, str) and "\n" in v}
    short = {k: v for k, v in facts.items() if k not in texts and v not in (0, False)}
    if short:
        yield from (f"- {_title(key)}: {_inline(_text(value))}" for key, value in short.items())
        yield ""
    for key, text in texts.items():
        yield from (f"{'#' * level} {_title(key)}", "", *_fenced(text), "")
    for key, value in section.items():
        if key in _LEFT_TO_JSON or not value or not isinstance(value, list | dict):
            continue
        body = [*_nested(key, value, level)]
        if body:
            yield from (f"{'#' * level} {_title(key)}", "", *body)


def _nested(key: str, value: Any, level: int) -> Iterator[str]:
    if isinstance(value, dict):
        if any(isinstance(each, list) for each in value.values()):
            yield from _value(value, level + 1)
        else:
            yield from (f"- {_inline(str(k))}: {_inline(_text(v))}" for k, v in value.items())
            yield ""
    elif key == "lines" and all(isinstance(each, str) for each in value):
        yield from (*_fenced("\n".join(value)), "")
    elif value and all(isinstance(each, dict) for each in value):
        yield from _rows(value, level)
    else:
        yield from (f"- {_inline(_text(each))}" for each in value[:ROWS])
        yield ""


def _rows(rows: Sequence[dict[str, Any]], level: int) -> Iterator[str]:
    """Yield a table; rows with tables of their own, or with long texts, one after the other."""
    deep = any(
        (isinstance(v, str) and ("\n" in v or len(v) > _WIDE))
        or (isinstance(v, list) and any(isinstance(one, dict) for one in v))
        for row in rows
        for v in row.values()
    )
    if deep or any("lines" in row for row in rows):
        for n, row in enumerate(rows[:ROWS], 1):
            yield from (f"{'#' * min(6, level + 1)} {n}", "", *_value(row, min(6, level + 2)))
        return
    names = [name for name in rows[0] if any(_filled(row.get(name)) for row in rows)]
    yield "| " + " | ".join(_cell(_title(name)) for name in names) + " |"
    yield "|" + "---|" * len(names)
    for row in rows[:ROWS]:
        yield "| " + " | ".join(_cell(_text(row.get(name))) for name in names) + " |"
    yield ""
    if len(rows) > ROWS:
        more = units.counted(len(rows) - ROWS, "more row is", "more rows are")
        yield from (f"{more} in the report as JSON.", "")


def _filled(value: Any) -> bool:
    return value not in (None, "", [], {}) and not _is_points(value)


def _is_points(value: Any) -> bool:
    return isinstance(value, dict) and tuple(value) == _COLUMNS


def _title(name: str) -> str:
    return _inline(name.replace("_", " "))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} = {shape(each, _leaf)}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(_text(each) for each in value)
    return str(value) if isinstance(value, int) else number(value)


def _leaf(value: Any) -> str:
    return "" if value is None else typed(value)


def _inline(text: str) -> str:
    """Return text that Markdown and HTML show as it is, in one line."""
    for sign in "\\`*_[]<>#|":
        text = text.replace(sign, {"<": "&lt;", ">": "&gt;"}.get(sign, f"\\{sign}"))
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _inline(text) or " "


def _fenced(text: str) -> list[str]:
    """Return a block of code, behind a fence that is not in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return [fence, text.rstrip("\n"), fence]
