"""The books of a search by halving, as plain data: who is where, and who may look at it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypedDict

from hpcdet.rungs import Bracket, share, spread
from hpcdet.search.api.events import State
from hpcdet.search.api.ranking import Entry, Ranking, loss_of
from hpcdet.search.api.sampling import Observation
from hpcdet.units import Length, Unit

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


class Books(TypedDict):
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

    rungs: list[int]
    trials: int
    concurrent: int
    created: int
    invalid: int
    scores: list[Ranking]
    waiting: list[Ranking]
    on: list[int]
    next: list[int]


def opened(bracket: Bracket) -> Books:
    """The books of a bracket without any trial."""
    books = Books(
        rungs=[],
        trials=bracket.trials,
        concurrent=bracket.concurrent,
        created=0,
        invalid=0,
        scores=[],
        waiting=[],
        on=[],
        next=[],
    )
    for rung in bracket.rungs:
        add_rung(books, rung)
    return books


def add_rung(books: Books, length: int) -> None:
    """A rung above the highest."""
    books["rungs"].append(length)
    books["scores"].append([])
    books["waiting"].append([])
    books["on"].append(0)
    books["next"].append(0)


def has_reached(books: Books, rung: int, length: float) -> bool:
    """Whether a trial on its way to a rung has come there."""
    return rung < len(books["rungs"]) and length >= books["rungs"][rung]


def share_trials(brackets: list[Books], trials: int, as_first: Sequence[Bracket]) -> None:
    """Another number of trials, in the first proportions; with fewer nothing that there is goes."""
    parts = share(trials, [Fraction(one.trials) for one in as_first])
    parts += [0] * (len(brackets) - len(parts))
    for books, part in zip(brackets, parts, strict=True):
        books["trials"] = max(part, books["created"] - books["invalid"])


def spread_places(brackets: list[Books], places: int, divisor: float) -> None:
    """Another number of places; see ``rungs.spread``."""
    parts = spread(places, divisor, [books["trials"] for books in brackets])
    for books, part in zip(brackets, parts, strict=True):
        books["concurrent"] = part


def place(state: State, trial: int, unit: str) -> str:
    """The rung that a trial has reported at last, in words."""
    number, rung = state["bracket"][trial - 1], state["rung"][trial - 1]
    brackets: list[Books] = state["brackets"]
    rungs = brackets[number]["rungs"]
    prefix = f"bracket {number + 1}, " if len(brackets) > 1 else ""
    return f"{prefix}rung {rung} of {len(rungs)} ({rungs[rung - 1]} {unit})"


def until(state: State) -> Length | None:
    """Length of the whole training; None where the code decides."""
    said = state["until"]
    return None if said is None else _length(*said.items())


@functools.lru_cache(maxsize=64)
def _length(said: tuple[Unit, int]) -> Length:
    return Length(*said)


def in_turn(brackets: list[Books]) -> list[tuple[int, Books]]:
    """Brackets with their numbers, first those that should get the next free place.

    One that has fewer than its part of the places comes before one that has it, and then the
    emptier one, by the share of its trials that have begun.
    """
    if len(brackets) == 1:
        return [(0, brackets[0])]

    def turn(item: tuple[int, Books]) -> tuple[bool, float, int]:
        number, books = item
        has_its_part = sum(books["next"]) >= books["concurrent"]
        return has_its_part, books["created"] / max(books["trials"], 1), number

    return sorted(enumerate(brackets), key=turn)


@dataclass(frozen=True)
class StateView:
    """The data that a sampler may read; see ``sampling.View``."""

    state: State

    def params(self) -> Mapping[int, Mapping[str, Any]]:
        return dict(enumerate(self.state["params"], 1))

    def observations(self, most: int | None = None) -> Iterator[Observation]:
        having_a_place = set(self.open())
        brackets: list[Books] = self.state["brackets"]
        lengths = {length for books in brackets for length in books["rungs"]}
        for length in sorted(lengths, reverse=True):
            found = [
                entry
                for books in brackets
                if length in books["rungs"]
                for entry in books["scores"][books["rungs"].index(length)]
            ]
            found.sort()
            if most is not None and len(found) > 2 * most:
                last = sorted(entry[2] for entry in found)[-most]
                others = (one for one in found[most:] if one[2] >= last or one[2] in having_a_place)
                found = [*found[:most], *others]
            for entry in found:
                yield _observation(entry, length)

    def open(self) -> list[int]:
        return [n for n, status in enumerate(self.state["status"], 1) if status == OPEN]


def _observation(entry: Entry, length: int) -> Observation:
    """Return the content of an entry; those of ``ranking.ByGoals`` hold all their values."""
    if len(entry) == 3:
        return Observation(entry[2], length, loss_of(entry))
    worse, _, trial, losses, excess = entry
    if worse == 2:
        return Observation(trial, length, None)
    return Observation(trial, length, losses[0], tuple(losses), tuple(excess))
