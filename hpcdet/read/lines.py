"""What the views rely on in the lines of journals, looked at once, where the lines are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any

from hpcdet.store import files
from hpcdet.store.journal import Line

Shapes = Mapping[str, Mapping[str, type[Any] | UnionType]]

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
    "profile": {"rank": int},
    "waited": {"seconds": int | float},
}
"""Keys of the lines of an attempt's journal that are not asked for with a default."""

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


def sound(lines: list[Line], shapes: Shapes, path: Path) -> list[Line]:
    """The lines, as they are.

    Raises:
        IntegrityError: one lacks what a line of its kind has; names it.
    """
    for line in lines:
        for key, kind in shapes.get(line["kind"], {}).items():
            if not isinstance(line.get(key, ...), kind) or line.get(key, ...) is ...:
                what = f"line {line.get('n')}, {line['kind']!r}, has no {key} that is one"
                raise files.damaged(path, what)
    return lines
