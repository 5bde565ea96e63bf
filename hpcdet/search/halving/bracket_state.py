"""The state of a search by halving: its brackets, its trials, and the view of samplers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from hpcdet.rungs import Bracket, share, spread
from hpcdet.search.api.codec import PART, StateRecord
from hpcdet.search.api.ranking import Entry, Ranking, loss_of
from hpcdet.search.api.sampling import Observation
from hpcdet.search.halving.sanity import Doubts
from hpcdet.units import Length

OPEN = "open"
"""Has a place."""
LEAVING = "leaving"
"""Its place is free for others, its end is still to come."""
STOPPED = "stopped"
"""Likewise, stopped for good by its rule: whatever comes of it still, it does not go on."""
PAUSED = "paused"
"""May be promoted."""
FULL = "full"
"""Paused too late: it has trained all the way, and needs no place to be promoted."""
ENDED = "ended"
DONE = "done"
"""Ended well, with a report of the highest rung."""


@dataclass
class Books(StateRecord):
    """State of one bracket. Lists below ``rungs`` have one item for each rung.

    Attributes:
        trials: how many may begin; those with InvalidHP do not count.
        concurrent: its part of the places.
        created, invalid: trials so far, and those of them that the code refused.
        scores: all that have reported there.
        waiting: those of them that are paused there.
        on: how many went on from there and have not failed since.
        next: trials with a place that will report there next.
    """

    rungs: list[int] = field(default_factory=list)
    trials: int = 0
    concurrent: int = 0
    created: int = 0
    invalid: int = 0
    scores: list[Ranking] = field(default_factory=list)
    waiting: list[Ranking] = field(default_factory=list)
    on: list[int] = field(default_factory=list)
    next: list[int] = field(default_factory=list)

    @classmethod
    def opened(cls, bracket: Bracket, rungs: int | None = None) -> Books:
        """The books of a bracket without any trial, with its first ``rungs`` only, or all."""
        books = cls(trials=bracket.trials, concurrent=bracket.concurrent)
        for rung in bracket.rungs[:rungs]:
            books.add_rung(rung)
        return books

    def add_rung(self, length: int) -> None:
        """A rung above the highest."""
        self.rungs.append(length)
        self.scores.append([])
        self.waiting.append([])
        self.on.append(0)
        self.next.append(0)

    def has_reached(self, rung: int, length: float) -> bool:
        """True if a trial on its way to a rung has come there."""
        return rung < len(self.rungs) and length >= self.rungs[rung]

    @property
    def is_open(self) -> bool:
        """True while trials of the bracket are still to be made."""
        return self.created - self.invalid < self.trials


@dataclass
class Trials(StateRecord):
    """The trials of all brackets: each list has one item for each trial.

    Attributes:
        bracket: numbers of their brackets.
        rung: how many rungs they have reported.
        params: hyperparameters, if the sampler learns; else empty.
        late: reports of those that are paused, by number: lengths and their worth.
    """

    bracket: list[int] = field(default_factory=list)
    rung: list[int] = field(default_factory=list)
    status: list[str] = field(default_factory=list)
    params: list[dict[str, Any]] = field(default_factory=list)
    late: dict[str, list[Any]] = field(default_factory=dict)


@dataclass
class HalvingState(StateRecord):
    """The state of a search.

    Attributes:
        concurrent: places; 0: as many as the brackets have together.
        until: length of the whole training; None where the code decides.
        open, leaving: trials that have a place, and that leave theirs.
        good: trials that ended well.
        in_a_row: samples that the code refused since it last took one.
    """

    brackets: list[Books]
    concurrent: int
    until: Length | None
    trials: Trials = field(default_factory=Trials, metadata=PART)
    open: int = 0
    leaving: int = 0
    good: int = 0
    in_a_row: int = 0
    doubts: Doubts = field(default_factory=Doubts, metadata=PART)
    over: bool = False

    def books(self, trial: int) -> Books:
        return self.brackets[self.trials.bracket[trial - 1]]

    def place(self, trial: int, unit: str) -> str:
        """The rung that a trial has reported at last, in words."""
        number, rung = self.trials.bracket[trial - 1], self.trials.rung[trial - 1]
        rungs = self.brackets[number].rungs
        prefix = f"bracket {number + 1}, " if len(self.brackets) > 1 else ""
        return f"{prefix}rung {rung} of {len(rungs)} ({rungs[rung - 1]} {unit})"

    def leave(self, trial: int, status: str = LEAVING) -> None:
        """Take the place of a trial."""
        self.trials.status[trial - 1] = status
        self.open -= 1
        self.leaving += 1


def share_trials(brackets: list[Books], trials: int, as_first: Sequence[Bracket]) -> None:
    """Another number of trials, in the first proportions; with fewer nothing that there is goes."""
    parts = share(trials, [Fraction(one.trials) for one in as_first])
    parts += [0] * (len(brackets) - len(parts))
    for books, own in zip(brackets, parts, strict=True):
        books.trials = max(own, books.created - books.invalid)


def spread_places(brackets: list[Books], places: int, divisor: float) -> None:
    """Another number of places; see ``rungs.spread``."""
    parts = spread(places, divisor, [books.trials for books in brackets])
    for books, own in zip(brackets, parts, strict=True):
        books.concurrent = own


def in_turn(brackets: list[Books]) -> list[tuple[int, Books]]:
    """Brackets with their numbers, first those that should get the next free place.

    One that has fewer than its part of the places comes before one that has it, and then the
    emptier one, by the share of its trials that have begun.
    """
    if len(brackets) == 1:
        return [(0, brackets[0])]

    def turn(item: tuple[int, Books]) -> tuple[bool, float, int]:
        number, books = item
        has_its_part = sum(books.next) >= books.concurrent
        return has_its_part, books.created / max(books.trials, 1), number

    return sorted(enumerate(brackets), key=turn)


@dataclass(frozen=True)
class StateView:
    """The data that a sampler may read; see ``sampling.View``."""

    state: HalvingState

    def params(self) -> Mapping[int, Mapping[str, Any]]:
        return dict(enumerate(self.state.trials.params, 1))

    def observations(self, most: int | None = None) -> Iterator[Observation]:
        having_a_place = set(self.open())
        brackets = self.state.brackets
        lengths = {length for books in brackets for length in books.rungs}
        for length in sorted(lengths, reverse=True):
            rankings = [
                books.scores[books.rungs.index(length)]
                for books in brackets
                if length in books.rungs
            ]
            found = rankings[0] if len(rankings) == 1 else sorted(itertools.chain(*rankings))
            if most is not None and len(found) > 2 * most:
                last = sorted([entry[2] for entry in found])[-most]
                others = (one for one in found[most:] if one[2] >= last or one[2] in having_a_place)
                found = [*found[:most], *others]
            for entry in found:
                yield _observation(entry, length)

    def open(self) -> list[int]:
        return [n for n, status in enumerate(self.state.trials.status, 1) if status == OPEN]


def _observation(entry: Entry, length: int) -> Observation:
    """Return the content of an entry; those of ``ranking.ByGoals`` hold all their values."""
    if len(entry) == 3:
        return Observation(entry[2], length, loss_of(entry))
    worse, _, trial, losses, excess = entry
    if worse == 2:
        return Observation(trial, length, None)
    return Observation(trial, length, losses[0], tuple(losses), tuple(excess))
