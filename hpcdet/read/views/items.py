"""Items of ``-o json``: frozen dataclasses, and their form as plain data.

A class named ``...View`` is what a verb prints, its fields in their order. The text below a field
is its description in the JSON Schema and in ``docs/reference/json.md`` (``make schemas``).
"""

from __future__ import annotations

import functools
from dataclasses import fields, is_dataclass
from typing import Any

from hpcdet.store.fs.json_record import plain


class ViewPart:
    """Base of a view whose keys stand among those of the view that holds it."""


OPTIONAL = {"optional": True}
"""Metadata of a field that is left out where it is None."""


def encode(item: Any) -> Any:
    """Return an item as plain data; ``from_`` becomes ``from``."""
    return plain(item, _leaf)


def _leaf(value: object) -> Any:
    found: dict[str, Any] = {}
    keys = _keys(type(value))  # type: ignore[arg-type]  # any class can be hashed
    for name, key, optional in keys:
        each = getattr(value, name)
        if isinstance(each, ViewPart):
            found |= encode(each)
        elif each is not None or not optional:
            found[key] = encode(each)
    return found if keys else value


@functools.cache
def _keys(kind: type) -> tuple[tuple[str, str, bool], ...]:
    known = fields(kind) if is_dataclass(kind) else ()
    return tuple((one.name, one.name.rstrip("_"), "optional" in one.metadata) for one in known)
