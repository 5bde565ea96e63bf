"""YAML from untrusted writers, refused by bounds before it costs time or memory.

An alias stands for all that it repeats, and a bracket for one more level of recursion: at some
ten thousand of them PyYAML's C parser ends the process. So every document is first checked as a
stream of events, which takes a tenth of the time and no memory, whatever they stand for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hpcdet.store.fs import files
from hpcdet.store.fs.bounded_json import DEEPEST, DIGITS, Unreasonable, too_deep

LARGEST = 4 << 20
"""Bytes of a file that hpcdet has written from a config or a site."""
NODES = 50_000
"""Keys, values, mappings and lists of one document, with its aliases expanded."""
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Source builds of PyYAML may come without libyaml; the pure reader gives the same values."""
_DIRECTIVES = 16
"""Lines that begin with ``%``: the parser compares each with all before it."""
_OPEN = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_CLOSE = (yaml.MappingEndEvent, yaml.SequenceEndEvent)
_NUMERIC = re.compile(r"[-+0-9_:.,eExXoObBa-fA-F]+")


def mapping(path: Path) -> dict[str, Any]:
    """Return the mapping in a file that hpcdet has written.

    Raises:
        IntegrityError: it is no file, or too large.
        OSError: it is not there or may not be read.
        ValueError: it holds no mapping, or one beyond the bounds here.
        yaml.YAMLError: it is not YAML.
    """
    text = files.read(path, LARGEST).decode()
    check(text)
    value = yaml.load(text, Loader=LOADER)
    if not isinstance(value, dict):
        raise ValueError("it is not a mapping")
    return value


def check(text: str, deepest: int = DEEPEST) -> None:  # noqa: C901, PLR0912 - a case for each kind of event
    """Check the events of a YAML document, which costs little whatever they stand for.

    Raises:
        Unreasonable: it is too deep, has too many values, or too long a number.
        yaml.YAMLError: it is not YAML, as far as it was checked.
    """
    if text.count("\n%") > _DIRECTIVES:
        raise Unreasonable(f"it has more than {_DIRECTIVES} directives")
    total, documents = 0, 0
    levels: list[_Level] = []
    known: dict[str, tuple[int, int]] = {}  # values and levels of what has an anchor
    for event in _events(text, deepest):
        tallest = 0
        if isinstance(event, _OPEN):
            levels.append(_Level(event.anchor, total))
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if len(event.value) > DIGITS and _is_number(event):
                what = f"it holds a number of more than {DIGITS} digits"
                raise Unreasonable(what, _line(event))
            if event.anchor is not None:
                known[event.anchor] = 1, 0
        elif isinstance(event, _CLOSE):
            total += 1
            level = levels.pop()
            if level.anchor is not None:
                known[level.anchor] = total - level.before, level.tallest + 1
            if levels:
                levels[-1].tallest = max(levels[-1].tallest, level.tallest + 1)
        elif isinstance(event, yaml.AliasEvent):
            if any(level.anchor == event.anchor for level in levels):
                raise Unreasonable("this value contains itself", _line(event))
            more, tallest = known.get(str(event.anchor), (1, 0))
            total += more
            if levels:
                levels[-1].tallest = max(levels[-1].tallest, tallest)
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                return  # no reader goes on: more than one is an error
        if len(levels) + tallest > deepest:
            raise too_deep(deepest, _line(event))
        if total > NODES:
            what = f"it holds more than {NODES} values, with its aliases expanded"
            raise Unreasonable(what, _line(event))


def _events(text: str, deepest: int) -> Iterator[yaml.Event]:
    """Yield the events of a document, whose parser has a limit of depth of its own (6.0.4)."""
    try:
        yield from yaml.parse(text, Loader=LOADER)
    except yaml.MarkedYAMLError as error:
        if "nesting depth" not in (error.problem or ""):
            raise
        raise too_deep(deepest, error.problem_mark.line + 1 if error.problem_mark else 0) from None


@dataclass(slots=True)
class _Level:
    """An open collection: its anchor, the values before it, and the levels in it so far."""

    anchor: str | None
    before: int
    tallest: int = 0


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


def _is_number(event: yaml.ScalarEvent) -> bool:
    """True if a long scalar would be read as a number."""
    if event.tag is not None:
        return event.tag.endswith((":int", ":float"))
    return bool(event.implicit[0]) and _NUMERIC.fullmatch(event.value) is not None
