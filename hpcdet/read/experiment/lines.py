"""Checks of the lines of journals, once when read, for the keys that views rely on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Any, get_args

from hpcdet.errors import IntegrityError
from hpcdet.store.fs import files
from hpcdet.store.fs.journal import Line

Kind = type[Any] | UnionType | GenericAlias
Shapes = Mapping[str, Mapping[str, Kind]]

NUMBER = int | float
NUMBERS = GenericAlias(dict, (str, NUMBER))

ATTEMPT: Shapes = {
    "metrics": {"group": str, "step": int, "metrics": dict},
    "checkpoint": {"name": str, "step": int},
    "checkpoint_staged": {"name": str, "host": object},
    "checkpoint_failed": {"step": int, "error": object},
    "checkpoint_skipped": {"step": int, "instead": object},
    "checkpoint_copied": {"name": str},
    "copy_failed": {"name": str, "error": object},
    "drain_failed": {"name": str, "error": object},
    "not_finite": {"group": object, "step": int, "names": list},
    "unregistered": {"found": list},
    "notice": {"signal": object},
    "alert": {"level": object, "text": object},
    "start": {"world": int},
    "profile": {
        "rank": int,
        "host": str,
        "batches": int,
        "seconds": NUMBER,
        "steps": int,
        "phases": NUMBERS,
    },
    "waited": {"seconds": NUMBER},
}
"""Keys of the lines of an attempt's journal that are not asked for with a default."""

OPTIONAL: Shapes = {"profile": {"samples": int, "slowest_s": NUMBER, "use": NUMBERS}}
"""Keys that a line may lack."""

DECISION: Shapes = {
    "state": {"state": str},
    "action": {"action": dict},
    "clone": {"trial": int, "why": object},
    "retry": {"trial": int, "attempts": int},
    "fail": {"trial": int},
    "lost": {"worker": object},
    "throttle": {"job": str, "running": int},
    "command": {"seq": int},
    "event": {"event": dict},
    "unlaunched": {"run": list},
}
"""The same of the journal of a term."""


_NOTHING: Mapping[str, Kind] = {}
_ABSENT = ()  # which no JSON holds, and of no kind above


def sound(lines: Iterable[Line], shapes: Shapes, path: Path) -> Iterator[Line]:
    """Check the lines and yield them unchanged.

    Raises:
        IntegrityError: a line lacks a valid key of its kind; the message names it.
    """
    for line in lines:
        named = line["kind"]
        for key, kind in shapes.get(named, _NOTHING).items():
            value = line.get(key, _ABSENT)
            if type(value) is kind:  # of millions of lines
                continue
            if value is _ABSENT or not _is_one(value, kind):
                raise _lacking(line, key, path)
        for key, kind in OPTIONAL.get(named, _NOTHING).items():
            if key in line and not _is_one(line[key], kind):
                raise _lacking(line, key, path)
        yield line


def _is_one(value: Any, kind: Kind) -> bool:
    """True if a value is of this kind; for ``dict[str, T]`` its values are checked as well."""
    if isinstance(kind, GenericAlias):
        _, each = get_args(kind)
        return isinstance(value, dict) and all(isinstance(item, each) for item in value.values())
    return isinstance(value, kind)


def _lacking(line: Line, key: str, path: Path) -> IntegrityError:
    what = f"line {line.get('n')}, {line['kind']!r}, has no valid {key!r}"
    return files.damaged(path, what)
