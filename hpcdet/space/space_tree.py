"""Conversion of a search space's tree to its axes in the order of decision, and back."""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hpcdet.space.domains import Categorical, Domain
from hpcdet.space.errors import Path, SpaceError, dotted
from hpcdet.space.expression import Expression
from hpcdet.space.language import TAG, Choice, Derived, Given, Group, Items, Node, SpaceLeaf, parts

Values = dict[Path, Any]
_ABSENT = object()
Requires = tuple[tuple[Path, tuple[Any, ...]], ...]
"""Pairs of a path and the values there that make something exist; all of them must hold."""


@dataclass(frozen=True)
class Axis:
    """One value of a sample, drawn (``what`` is a domain) or computed (an expression).

    Attributes:
        path: of its value in a sample.
        at: its path in ``hyperparameters``; differs below a choice.
        mutable: True if a search may change it while a model trains.
    """

    path: Path
    at: Path
    what: Domain | Expression
    requires: Requires
    mutable: bool = True

    def exists(self, values: Values) -> bool:
        return all(path in values and values[path] in allowed for path, allowed in self.requires)


def axes(node: Node, path: Path = (), at: Path = (), requires: Requires = ()) -> Iterator[Axis]:
    """Yield all drawn and computed values, in the order written; nothing below a ``Repeat``."""
    match node:
        case SpaceLeaf(domain, when, mutable):
            yield Axis(path, at, domain, (*requires, *_conditions(when)), mutable)
        case Derived(expression):
            yield Axis(path, at, expression, requires)
        case Group(children):
            for name, child in children.items():
                yield from axes(child, (*path, name), (*at, name), requires)
        case Items(items):
            for index, child in enumerate(items):
                yield from axes(child, (*path, index), (*at, index), requires)
        case Given(inner, other, allowed):
            yield from axes(inner, path, at, (*requires, (other, allowed)))
        case Choice(options, when, mutable):
            tag = (*path, TAG)
            outside = (*requires, *_conditions(when))
            yield Axis(tag, at, Categorical(tuple(options)), outside, mutable)
            for name, option in options.items():
                yield from axes(option, path, (*at, "choice", name), (*outside, (tag, (name,))))


def _conditions(when: Mapping[str, tuple[Any, ...]]) -> Requires:
    return tuple((parts(other), allowed) for other, allowed in when.items())


def ordered(found: list[Axis]) -> list[Axis]:
    """Sort axes by path, but each after those that its existence depends on.

    Raises:
        SpaceError: a condition names nothing that is drawn, or conditions form a cycle.
    """
    drawn = {axis.path for axis in found if not isinstance(axis.what, Expression)}
    waiting = [_bind(axis, drawn) for axis in sorted(found, key=lambda axis: sort_key(axis.path))]
    result: list[Axis] = []
    while waiting:
        open_paths = {axis.path for axis in waiting}
        ready = next(
            (axis for axis in waiting if not any(path in open_paths for path, _ in axis.requires)),
            None,
        )
        if ready is None:
            raise SpaceError((*waiting[0].at, "when"), "these conditions go round in a circle")
        waiting.remove(ready)
        result.append(ready)
    return result


def _bind(axis: Axis, drawn: set[Path]) -> Axis:
    """Return ``axis`` with conditions on a choice converted to conditions on its tag, checked."""
    requires = []
    for path, allowed in axis.requires:
        found = resolve(path, axis.path, drawn)
        if found is None:
            what = f"there is no hyperparameter {dotted(path)!r} to depend on"
            raise SpaceError((*axis.at, "when"), what, guess(dotted(path), set(map(dotted, drawn))))
        requires.append((found, allowed))
    return replace(axis, requires=tuple(requires))


def resolve(name: Path, at: Path, drawn: Container[Path]) -> Path | None:
    """Resolve a name at a place to a path: from the top, else from the nearest enclosing group."""
    for around in (0, *range(len(at) - 1, 0, -1)):
        for path in ((*at[:around], *name), (*at[:around], *name, TAG)):
            if path in drawn:
                return path
    return None


def computed_in_order(derived: list[Axis]) -> list[Axis]:
    """Sort derived values, each after those that it is computed from."""
    result: list[Axis] = []
    waiting = list(derived)
    while waiting:
        open_paths = {axis.path for axis in waiting}
        ready = next((axis for axis in waiting if not expression(axis).names & open_paths), None)
        if ready is None:
            raise SpaceError(expression(waiting[0]).at, "these expressions go round in a circle")
        waiting.remove(ready)
        result.append(ready)
    return result


def expression(axis: Axis) -> Expression:
    """Return the expression of a derived axis."""
    assert isinstance(axis.what, Expression)
    return axis.what


def build(node: Node, path: Path, values: Values) -> Any:
    """Build the sample of the drawn ``values``, without parts that do not exist."""
    match node:
        case Group(children):
            inner = {name: (*path, name) for name in children}
            return {
                name: build(child, inner[name], values)
                for name, child in children.items()
                if _present(child, inner[name], values)
            }
        case Items(items):
            return [
                build(child, (*path, index), values)
                for index, child in enumerate(items)
                if _present(child, (*path, index), values)
            ]
        case Choice(options):
            tag = values[(*path, TAG)]
            return {TAG: tag, **build(options[tag], path, values)}
        case Given(inner):
            return build(inner, path, values)
    return values[path]


def _present(node: Node, path: Path, values: Values) -> bool:
    match node:
        case Group() | Items():
            return True
        case Choice():
            return (*path, TAG) in values
        case Given(inner, other, allowed):
            return values.get(other, _ABSENT) in allowed and _present(inner, path, values)
    return path in values


def names(found: list[Axis]) -> set[str]:
    """Return dotted paths of everything an expression may name, the maps above values included."""
    return {dotted(axis.path[:n]) for axis in found for n in range(1, len(axis.path) + 1)}


def sort_key(path: Path) -> tuple[tuple[int, int, str], ...]:
    """Return the key that sorts paths by name, and places in a list by number."""
    return tuple((0, p, "") if isinstance(p, int) else (1, 0, p) for p in path)


def guess(name: str, known: set[str]) -> str:
    """The question whether a similar known name was meant; empty if none is similar."""
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(sorted(known))}"
