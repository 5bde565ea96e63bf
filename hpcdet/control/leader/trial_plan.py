"""The plan of one trial: what the searcher and users have decided for it so far."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcdet.units import Length, Unit


@dataclass
class TrialPlan:
    """The decided plan of a trial; ``Decided`` folds records into it.

    Attributes:
        searcher: what the searcher wants last: run, pause or stop.
        allowed: attempts up to this number may be made though the code failed.
        base: attempts before the user's last ``retry``; they count against nothing any more.
        told: greatest length that the searcher has heard a report for.
        ended: reason of the ``SegmentEnd`` that the searcher was told; "" while one is owed.
        given_up: reason for the ``SegmentEnd`` once the trial was given up.
        killed: canceled by its user; ``now`` without saving first.
        alone: its user resumed it while the experiment as a whole stays paused.
        since: only workers of this submission or a later one may claim it.
        rewinds: see ``records.Control``.
        parent: what it begins from (``store.trials.parents``).
        origin: the checkpoint that it was given, as ``records.Trial`` has it; empty: it begins
            from nothing; None: that is not known yet.
    """

    number: int
    params: dict[str, Any]
    seed: int
    until: Length | None
    parent: str = ""
    origin: dict[str, Any] | None = None
    searcher: str = "run"
    why: str = ""
    paused: bool = False
    alone: bool = False
    killed: bool = False
    now: bool = False
    since: int = 0
    rewinds: list[list[Any]] = field(default_factory=list)
    failed: str = ""
    given_up: str = ""
    allowed: int = 0
    base: int = 0
    told: int = -1
    ended: str = ""

    def encode(self) -> dict[str, Any]:
        """Return the plan as plain JSON, without fields that have their default."""
        found = {
            name: value
            for name, value in vars(self).items()
            if name not in _DEFAULTS or value != _DEFAULTS[name]
        }
        found["until"] = self.until.encode() if self.until else None
        return found

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> TrialPlan:
        """The inverse of ``encode``."""
        until = None
        if value["until"]:
            [(unit, amount)] = value["until"].items()
            until = _length(unit, amount)
        return cls(**{**value, "until": until})


_DEFAULTS = {
    each.name: each.default
    for each in dataclasses.fields(TrialPlan)
    if each.default is not dataclasses.MISSING
}


@functools.lru_cache(maxsize=64)
def _length(unit: Unit, amount: int) -> Length:
    """Return a length, shared by the thousands of plans that have the same."""
    return Length(unit, amount)
