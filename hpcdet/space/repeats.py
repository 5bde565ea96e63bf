"""Lists with another hyperparameter as length, expanded to lists of optional items.

Item ``i`` exists where the count is more than ``i``. Its hyperparameters draw from the streams of
their own paths (``layers.2.width``), so a deeper network begins with the layers of a shallower one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hpcdet.space import space_tree
from hpcdet.space.domains import Categorical, Const, Domain, Int, LogInt
from hpcdet.space.errors import Path, SpaceError, dotted
from hpcdet.space.expression import Expression
from hpcdet.space.language import Choice, Given, Group, Items, Node, Repeat

MOST = 256
"""Items of one list."""
MOST_AXES = 2_000
"""Hyperparameters of a space: lists in lists grow fast."""

Known = dict[Path, list[Domain | Expression]]
"""What stands at each path; several where options of a choice have names in common."""


def written_out(root: Group) -> Group:
    """Return the tree with every ``Repeat`` expanded.

    Raises:
        SpaceError: a count is no hyperparameter of whole numbers, or allows too many items.
    """
    while True:
        known: Known = {}
        for axis in space_tree.axes(root):
            known.setdefault(axis.path, []).append(axis.what)
        if len(known) > MOST_AXES:
            what = f"lists make more than {MOST_AXES} hyperparameters of it"
            raise SpaceError((), what, "lower what they count by")
        turn = _Turn(known)
        children = {name: turn.write(child, (name,)) for name, child in root.children.items()}
        root = Group(children)
        if turn.written:
            continue
        if not turn.waiting:
            return root
        at, name = turn.waiting[0]
        what = f"there is no hyperparameter {name!r} to count by"
        raise SpaceError((*at, "repeat"), what, space_tree.guess(name, set(map(dotted, known))))


@dataclass
class _Turn:
    """One pass that expands the lists whose count is known; lists in lists take another pass."""

    known: Known
    written: int = 0
    waiting: list[tuple[Path, str]] = field(default_factory=list)

    def write(self, node: Node, at: Path) -> Node:
        match node:
            case Group(children):
                return Group({name: self.write(it, (*at, name)) for name, it in children.items()})
            case Items(items):
                return Items(tuple(self.write(it, (*at, i)) for i, it in enumerate(items)))
            case Choice(options):
                inner = {name: self.write(option, at) for name, option in options.items()}
                return replace(node, options=inner)  # type: ignore[arg-type]
            case Given(inner, path, values):
                return Given(self.write(inner, at), path, values)
            case Repeat():
                return self._list(node, at)
        return node

    def _list(self, repeat: Repeat, at: Path) -> Node:
        if isinstance(repeat.times, int):
            self.written += 1
            _bounded(repeat.times, at)
            return Items((repeat.item,) * repeat.times)
        path = space_tree.resolve(repeat.times, at, self.known)
        if path is None:
            self.waiting.append((at, dotted(repeat.times)))
            return repeat
        self.written += 1
        counts = sorted({n for what in self.known[path] for n in _counts(what, path, at)})
        items = (
            Given(repeat.item, path, tuple(n for n in counts if n > i))
            for i in range(_bounded(counts[-1], at))
        )
        return Items(tuple(items))


def _bounded(items: int, at: Path) -> int:
    if items > MOST:
        what = f"a list of up to {items} items"
        raise SpaceError((*at, "repeat"), what, f"at most {MOST}")
    return items


def _counts(what: Domain | Expression, path: Path, at: Path) -> list[int]:
    """Return the counts that a hyperparameter can take."""
    found: Any = None
    match what:
        case Int(minval, maxval, step):
            found = range(minval, _bounded(maxval, at) + 1, step or 1)
        case LogInt(low, high):
            found = range(low, _bounded(high, at) + 1)
        case Categorical(vals):
            found = vals
        case Const(val):
            found = [val]
    if found is None or not all(type(n) is int and n >= 0 for n in found):
        hint = "count by a number, or by a hyperparameter of type int or categorical"
        raise SpaceError((*at, "repeat"), f"{dotted(path)!r} is not always a whole number", hint)
    return list(found)
