"""Predicates of rules: closed, so that each policy is a table in the end.

    {source: NAME}   {source: {in: [...]}}   {source: {glob: "hosp-*"}}
    {label.NAME: TEXT}, and in, glob as well
    {all: [...]}   {any: [...]}   {not: {...}}

Several keys in one map have to hold all. A source without a label has none of its values.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from typing import Any

Predicate = Callable[[str, Mapping[str, str]], bool]
"""True for a source, by its name and labels."""

_TESTS = ("==", "in", "glob")
_DEEPEST = 20
_FORMS = "write {source: NAME} or {label.NAME: TEXT}; docs/reference/policy.md lists all forms"


def predicate(value: Any, depth: int = 0) -> Predicate:
    """Return the predicate of a rule's ``match``.

    Raises:
        ValueError: it says none; with a hint as second argument.
    """
    if not isinstance(value, dict) or not value:
        raise ValueError(f"{value!r} is no match", _FORMS)
    if depth > _DEEPEST:
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep", "write several rules")
    tests = [_one(str(key), item, depth) for key, item in value.items()]
    return lambda name, labels: all(test(name, labels) for test in tests)


def _one(key: str, value: Any, depth: int) -> Predicate:
    if key in ("all", "any"):
        if not isinstance(value, list) or not value:
            raise ValueError(f"{key} takes a list of matches", f"{key}: [{{source: A}}, ...]")
        parts = [predicate(item, depth + 1) for item in value]
        combine = all if key == "all" else any
        return lambda name, labels: combine(part(name, labels) for part in parts)
    if key == "not":
        inner = predicate(value, depth + 1)
        return lambda name, labels: not inner(name, labels)
    if key == "source":
        test = _test(key, value)
        return lambda name, _: test(name)
    if key.startswith("label.") and len(key) > len("label."):
        label, test = key.removeprefix("label."), _test(key, value)
        return lambda _, labels: label in labels and test(labels[label])
    raise ValueError(f"{key!r} is nothing to match: source, label.NAME, all, any or not", _FORMS)


def _test(key: str, value: Any) -> Callable[[str], bool]:
    if isinstance(value, str):
        return lambda found: found == value
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in _TESTS:
        what = f"{key}: expected text, {{in: [...]}} or {{glob: PATTERN}}, got {value!r}"
        raise ValueError(what, _FORMS)
    [(test, wanted)] = value.items()
    if test == "in":
        if not isinstance(wanted, list) or not all(isinstance(each, str) for each in wanted):
            raise ValueError(f"{key}: in takes a list of texts, got {wanted!r}", "in: [A, B]")
        return lambda found: found in wanted
    if not isinstance(wanted, str):
        raise ValueError(f"{key}: expected text, got {wanted!r}", "in quotes it is text")
    if test == "glob":
        return lambda found: fnmatch.fnmatchcase(found, wanted)
    return lambda found: found == wanted
