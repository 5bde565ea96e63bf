"""Parsing of ``hyperparameters`` to a checked tree of domains.

A map with ``type`` is a domain; one with ``choice``, ``derived`` or ``repeat`` and ``of`` is that;
any other map is a group, a list with maps in it a list of nodes; everything else stands for itself.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcdet.space.domains import Categorical, Const, Domain, Double, Int, Log, LogInt, LogUniform
from hpcdet.space.errors import Path, SpaceError
from hpcdet.space.expression import Expression

TAG = "name"
"""Key of a chosen option's name in a sample: ``{"name": "sgd", "momentum": 0.9}``."""

_LATER = {"prior", "init"}


@dataclass(frozen=True)
class SpaceLeaf:
    """``when``: dotted path of another hyperparameter to the values that make this one exist.

    ``mutable``: whether a search may change it while a model trains.
    """

    domain: Domain
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    mutable: bool = True


@dataclass(frozen=True)
class Group:
    """A mapping of hyperparameters by name."""

    children: Mapping[str, Node]


@dataclass(frozen=True)
class Items:
    """A list of hyperparameters."""

    children: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """Exactly one of several groups, each with hyperparameters of its own.

    ``mutable``: whether a search may choose another one while a model trains.
    """

    options: Mapping[str, Group]
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    mutable: bool = True


@dataclass(frozen=True)
class Derived:
    """A value computed from other hyperparameters."""

    expression: Expression


@dataclass(frozen=True)
class Repeat:
    """A list of ``times`` like nodes: a number, or the path of the hyperparameter with the number.

    ``space.repeats`` turns it into ``Items``, once the other hyperparameter is known.
    """

    times: int | Path
    item: Node


@dataclass(frozen=True)
class Given:
    """A node that exists only where the value at ``path`` is one of ``values``."""

    node: Node
    path: Path
    values: tuple[Any, ...]


Node = SpaceLeaf | Group | Items | Choice | Derived | Repeat | Given


def parse_node(spec: Any, path: Path) -> Node:
    """Parse the node described by a part of the config. Raises SpaceError."""
    if isinstance(spec, list) and any(isinstance(item, dict) for item in spec):
        return Items(tuple(parse_node(item, (*path, i)) for i, item in enumerate(spec)))
    if not isinstance(spec, Mapping):
        return SpaceLeaf(Const(_plain(spec, path)))
    kind = spec.get("type")
    if "choice" in spec and kind in (None, "choice"):
        return _choice(spec, path)
    if {"repeat", "of"} <= spec.keys() and kind in (None, "repeat"):
        return _repeat(spec, path)
    if "derived" in spec and kind in (None, "derived"):
        _only(spec, path, {"type", "derived"})
        if isinstance(path[-1], int):
            raise SpaceError(path, "an item of a list cannot be derived", "give it a name")
        return Derived(Expression.parse(spec["derived"], (*path, "derived")))
    if "type" not in spec:
        return parse_group(spec, path)
    if not isinstance(kind, str) or kind not in _DOMAINS:
        close = difflib.get_close_matches(str(kind), TYPES, n=1)
        guess = f"did you mean {close[0]!r}? " if close else ""
        hint = f"{guess}types: {', '.join(TYPES)}. No hyperparameter can be named 'type'"
        raise SpaceError((*path, "type"), f"there is no type {kind!r}", hint)
    return SpaceLeaf(_DOMAINS[kind](_Fields(spec, path)), _when(spec, path), _mutable(spec, path))


def parse_group(spec: Mapping[str, Any], path: Path) -> Group:
    """Parse the named nodes of a map without ``type``. Raises SpaceError."""
    if "when" in spec:
        hint = "put it on hyperparameters with a 'type', or make the map an option of a choice"
        raise SpaceError((*path, "when"), "a group of hyperparameters has no condition", hint)
    children = {}
    for key, value in spec.items():
        if not isinstance(key, str):
            raise SpaceError((*path, str(key)), f"the name {key!r} is not text", "put it in quotes")
        children[key] = parse_node(value, (*path, key))
    return Group(children)


def _choice(spec: Mapping[str, Any], path: Path) -> Choice:
    _only(spec, path, {"type", "choice", "when", "mutable"})
    options = spec["choice"]
    if not isinstance(options, Mapping) or not options:
        raise SpaceError(
            (*path, "choice"), "a choice names its options", "choice: {sgd: {}, adam: {beta: 0.9}}"
        )
    groups = {}
    for name, option in options.items():
        at = (*path, "choice", str(name))
        if not isinstance(option, Mapping | None):
            raise SpaceError(at, "an option is a map of hyperparameters", f"{name}: {{}}")
        if TAG in (option or {}):
            raise SpaceError((*at, TAG), f"{TAG!r} holds which option was chosen", "rename it")
        groups[str(name)] = parse_group(option or {}, at)
    return Choice(groups, _when(spec, path), _mutable(spec, path))


def _mutable(spec: Mapping[str, Any], path: Path) -> bool:
    found = spec.get("mutable", True)
    if not isinstance(found, bool):
        raise SpaceError((*path, "mutable"), f"mutable is {found!r}, not true or false")
    return found


def _repeat(spec: Mapping[str, Any], path: Path) -> Repeat:
    _only(spec, path, {"type", "repeat", "of"})
    times = spec["repeat"]
    if isinstance(times, str):
        times = parts(times)
    elif isinstance(times, bool) or not isinstance(times, int) or times < 1:
        hint = "repeat: 3, or the name of a hyperparameter of whole numbers"
        raise SpaceError((*path, "repeat"), f"repeat is {times!r}, which counts nothing", hint)
    item = parse_node(spec["of"], (*path, "of"))
    if isinstance(item, Derived):
        raise SpaceError((*path, "of"), "an item of a list cannot be derived", "give it a name")
    return Repeat(times, item)


def parts(name: str) -> Path:
    """Split a dotted name, ``layers.0.units``, to its path."""
    return tuple(int(part) if part.isdigit() else part for part in name.split("."))


def _when(spec: Mapping[str, Any], path: Path) -> dict[str, tuple[Any, ...]]:
    when = spec.get("when", {})
    if not isinstance(when, Mapping):
        raise SpaceError((*path, "when"), "when is a map", "when: {optimizer: [sgd, adam]}")
    return {
        str(other): tuple(allowed) if isinstance(allowed, list) else (allowed,)
        for other, allowed in when.items()
    }


def _only(spec: Mapping[str, Any], path: Path, known: Iterable[str]) -> None:
    known = sorted(known)
    for key in spec:
        if key in known:
            continue
        at = (*path, str(key))
        if key in _LATER:
            raise SpaceError(at, f"{key!r} is not in this version", "take it out")
        close = difflib.get_close_matches(str(key), known, n=1)
        guess = f"did you mean {close[0]!r}?" if close else f"keys here: {', '.join(known)}"
        raise SpaceError(at, f"unknown key {key!r}", guess)


def _plain(value: Any, path: Path) -> Any:
    """Return ``value``, if a trial's record can hold it."""
    match value:
        case list():
            return [_plain(item, (*path, i)) for i, item in enumerate(value)]
        case dict():
            return {str(key): _plain(item, (*path, str(key))) for key, item in value.items()}
        case float() if not math.isfinite(value):
            raise SpaceError(path, f"{value} is not a finite number")
        case bool() | int() | float() | str() | None:
            return value
    raise SpaceError(path, f"{value!r} is neither text nor a number, list or map")


@dataclass(frozen=True)
class _Fields:
    """The keys of one domain, read with their types checked."""

    spec: Mapping[str, Any]
    path: Path

    def only(self, *known: str) -> None:
        _only(self.spec, self.path, {"type", "when", "mutable", *known})

    def number(self, key: str, default: float | None = None) -> float:
        value = self.spec.get(key, default)
        if value is None:
            raise SpaceError(self.path, f"{key!r} is missing", f"{key}: a number")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SpaceError((*self.path, key), f"{key} is {value!r}, not a number")
        if not math.isfinite(value):
            raise SpaceError((*self.path, key), f"{key} is {value}, not a finite number")
        return value

    def whole(self, key: str) -> int:
        value = self.number(key)
        if value != int(value):
            raise SpaceError((*self.path, key), f"{key} is {value!r}, not a whole number")
        return int(value)

    def positive(self, key: str) -> int | None:
        if self.spec.get(key) is None:
            return None
        value = self.whole(key)
        if value < 1:
            raise SpaceError((*self.path, key), f"{key} is {value}; it is at least 1")
        return value

    def bounds(self, low: str, high: str, take: Callable[[str], Any]) -> tuple[Any, Any]:
        minval, maxval = take(low), take(high)
        if not minval < maxval:
            what = f"{low} is {minval} and {high} is {maxval}; {low} must be less"
            raise SpaceError((*self.path, low), what, "a fixed value is written as it is: key: 3")
        return minval, maxval


def _const(fields: _Fields) -> Const:
    fields.only("val")
    if "val" not in fields.spec:
        raise SpaceError(fields.path, "'val' is missing", "{type: const, val: 3}")
    return Const(_plain(fields.spec["val"], (*fields.path, "val")))


def _int(fields: _Fields) -> Int:
    fields.only("minval", "maxval", "step", "count")
    low, high = fields.bounds("minval", "maxval", fields.whole)
    return Int(low, high, fields.positive("step"), fields.positive("count"))


def _double(fields: _Fields) -> Double:
    fields.only("minval", "maxval", "count")
    low, high = fields.bounds("minval", "maxval", fields.number)
    return Double(float(low), float(high), fields.positive("count"))


def _log(fields: _Fields) -> Log:
    fields.only("minval", "maxval", "base", "count")
    low, high = fields.bounds("minval", "maxval", fields.number)
    base = fields.number("base", 10.0)
    if base <= 0:
        raise SpaceError((*fields.path, "base"), f"base is {base}; it is more than 0")
    try:
        _ = float(base) ** float(low), float(base) ** float(high)
    except OverflowError as error:
        hint = "the bounds are exponents of base; for values write type: loguniform, low, high"
        raise SpaceError(fields.path, f"{base} ** {high} is too large", hint) from error
    return Log(float(low), float(high), float(base), fields.positive("count"))


def _positive_bounds(fields: _Fields, take: Callable[[str], Any]) -> tuple[Any, Any]:
    names = ("minval", "maxval") if "minval" in fields.spec else ("low", "high")
    fields.only(*names, "count")
    low, high = fields.bounds(*names, take)
    if low <= 0:
        hint = "the bounds are values here, not exponents"
        raise SpaceError((*fields.path, names[0]), f"{names[0]} is {low}; it is above 0", hint)
    return low, high


def _loguniform(fields: _Fields) -> LogUniform:
    low, high = _positive_bounds(fields, fields.number)
    return LogUniform(float(low), float(high), fields.positive("count"))


def _log_int(fields: _Fields) -> LogInt:
    low, high = _positive_bounds(fields, fields.whole)
    return LogInt(low, high, fields.positive("count"))


def _categorical(fields: _Fields) -> Categorical:
    fields.only("vals", "ordered")
    vals = fields.spec.get("vals")
    if not isinstance(vals, list) or not vals:
        raise SpaceError((*fields.path, "vals"), "vals is a list of values", "vals: [16, 32]")
    ordered = fields.spec.get("ordered", False)
    if not isinstance(ordered, bool):
        raise SpaceError((*fields.path, "ordered"), f"ordered is {ordered!r}, not true or false")
    return Categorical(tuple(_plain(vals, (*fields.path, "vals"))), ordered)


_DOMAINS: dict[str, Callable[[_Fields], Domain]] = {
    "const": _const,
    "int": _int,
    "double": _double,
    "log": _log,
    "loguniform": _loguniform,
    "log_int": _log_int,
    "categorical": _categorical,
}
TYPES = (*_DOMAINS, "choice", "derived", "repeat")
