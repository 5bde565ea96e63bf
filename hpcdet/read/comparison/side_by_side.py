"""Experiments, trials and registered versions side by side.

There is a row for each metric, hyperparameter, file and package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcdet.errors import UsageError
from hpcdet.read.comparison.facts import WHATS, Facts, What


@dataclass(frozen=True)
class ComparedView:
    """A value that experiments, trials or registered versions have, or not, in common."""

    what: What
    """What it concerns."""
    name: str
    """Its name: of a metric, a hyperparameter, a file of the code, a package, a key, ..."""
    values: dict[str, Any]
    """The value of each by its id, ``digits-7f3a``, ``digits-7f3a/3`` or ``model:digits:3``; null
    for none."""
    same: bool
    """True if all have the same value."""


def table(found: Sequence[Facts]) -> tuple[list[ComparedView], list[str]]:
    """Return a row for each name that one of them has, and warnings on what is not known.

    Of an experiment with several trials, metrics and hyperparameters are those of the best one.

    Raises:
        UsageError: they are not at least two.
    """
    if len(found) < 2:
        hint = "hpcdet compare ID ID..., or trials: hpcdet compare ID/1 ID/3"
        raise UsageError("a comparison needs at least two different ones", hint=hint)
    sides = _named(found)
    rows = []
    for what in WHATS:
        names = dict.fromkeys(name for side in sides.values() for name in side.of[what])
        first = [name for name in names if what in ("metric", "hyperparameters")]
        for name in first or sorted(names):
            values = {id: side.of[what].get(name) for id, side in sides.items()}
            there = all(name in side.of[what] for side in sides.values())
            one, *others = values.values()
            rows.append(ComparedView(what, name, values, there and all(v == one for v in others)))
    return rows, [warning for side in sides.values() for warning in side.warnings]


def _named(sides: Sequence[Facts]) -> dict[str, Facts]:
    """Return them by their ids; by their folders where an id is that of several."""
    often = Counter(side.name for side in sides)

    def name(side: Facts) -> str:
        folder = side.gathered.paths.root
        return side.name if often[side.name] == 1 else str(folder.parent / side.name)

    return {name(side): side for side in sides}
