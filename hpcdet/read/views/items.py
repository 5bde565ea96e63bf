"""Items of ``-o json``: frozen dataclasses, their form as plain data, and values as text.

A class named ``...View`` is what a verb prints, its fields in their order. The text below a field
is its description in the JSON Schema and in ``docs/reference/json.md`` (``make schemas``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from hpcdet.units import Length


class ViewPart:
    """Base of a view whose keys stand among those of the view that holds it."""


OPTIONAL = {"optional": True}
"""Metadata of a field that is left out where it is None."""

_SCALARS = frozenset({str, int, float, bool, type(None)})


def encode(item: Any) -> Any:
    """Return an item as plain data; ``from_`` becomes ``from``."""
    kind: type = type(item)
    if kind in _SCALARS:  # most of what thousands of items hold
        return item
    if kind is Length:
        return item.encode()
    if known := keys(kind):
        return _encode_fields(item, known)
    if isinstance(item, Mapping):
        return {key: encode(each) for key, each in item.items()}
    if isinstance(item, list | tuple):
        return [encode(each) for each in item]
    return item


def _encode_fields(item: Any, known: Sequence[tuple[str, str, bool]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, key, optional in known:
        each = getattr(item, name)
        if each is None and optional:
            continue
        if type(each) in _SCALARS:
            found[key] = each
        elif isinstance(each, ViewPart):
            found |= encode(each)
        else:
            found[key] = encode(each)
    return found


@functools.cache
def keys(kind: type) -> tuple[tuple[str, str, bool], ...]:
    """Return name, key and whether it is optional of each field of a view; none of a value."""
    known = fields(kind) if is_dataclass(kind) else ()
    return tuple((one.name, one.name.rstrip("_"), "optional" in one.metadata) for one in known)


def text(value: Any) -> str:
    """Format a value for a table: one line, ``-`` for nothing, five digits of a number.

    Values of a map are as ``--set KEY=VALUE`` takes them.
    """
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list | tuple):
        trees = any(isinstance(each, dict) for each in value)
        return shape(value, text) if trees else ",".join(text(each) for each in value) or "-"
    if isinstance(value, dict):
        return " ".join(f"{text(key)}={shape(each, typed)}" for key, each in value.items()) or "-"
    # a name that somebody chose must not move the cursor of somebody else's terminal
    line = " ".join(str(value).split())
    return line if line.isprintable() else "".join(c if c.isprintable() else "?" for c in line)


def set_to(value: Any) -> str:
    """Format what a config's key is set to, as ``typed``; ``-`` where there is none."""
    return text(value) if value is None else typed(value)


def typed(value: Any) -> str:
    """Format a value of a config as ``text`` does, so that YAML reads it as what it is."""
    if value is None:
        return "null"
    if value == {}:
        return "{}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(typed, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return text(value)
    shown = text(value) if value else ""
    return shown if _plain(shown) else "'" + shown.replace("'", "''") + "'"


@functools.lru_cache(maxsize=1024)
def _plain(value: str) -> bool:
    """True if YAML reads a text without quotes as that text."""
    import yaml  # what prints no text needs none

    from hpcdet.store.fs import yaml12

    try:
        return bool(yaml12.scalar(value) == value)
    except (yaml.YAMLError, ValueError):
        return False


def shape(value: Any, leaf: Callable[[Any], str]) -> str:
    """Format ``convolution(channels=16 kernel=3), pooling(kind=max)``; ``leaf`` formats leaves."""
    if isinstance(value, dict) and value:
        name = shape(value["name"], leaf) if "name" in value else ""
        parts = [f"{leaf(key)}={shape(each, leaf)}" for key, each in value.items() if key != "name"]
        return name if name and not parts else f"{name}({' '.join(parts)})"
    if isinstance(value, list | tuple) and any(isinstance(each, dict) for each in value):
        return ", ".join(shape(each, leaf) for each in value)
    return leaf(value)
