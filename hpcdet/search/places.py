"""Who gets a place that has become free: whom a bracket would promote, and whether it has more.

Nothing is changed here; ``halving`` does what is found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpcdet.search import ranking
from hpcdet.search.api import State
from hpcdet.search.books import Books

MAX_INVALID_IN_A_ROW = 100


@dataclass(frozen=True)
class Promotion:
    """The best paused trial of a rung may go on."""

    rung: int
    why: str


def promotable(books: Books, cut: Callable[[Books, int], int]) -> Promotion | None:
    """At the highest rung where a paused trial ranks so that it may go on now."""
    for rung in range(len(books["rungs"]) - 2, -1, -1):
        waiting = books["waiting"][rung]
        if waiting:
            scores, best = books["scores"][rung], cut(books, rung)
            if best and waiting[0] <= scores[best - 1]:
                place = ranking.rank(scores, waiting[0]) + 1
                return Promotion(rung, f"rank {place} of {len(scores)} now, the best {best} go on")
    return None


def is_open(books: Books) -> bool:
    """Whether trials of the bracket are still to be made."""
    return books["created"] - books["invalid"] < books["trials"]


def last(books: Books) -> Promotion | None:
    """At a rung to which nobody can come any more and from which nobody has gone on: its best."""
    for rung in range(len(books["rungs"]) - 1):
        if books["next"][rung]:
            break
        if books["waiting"][rung] and books["on"][rung] <= 0:
            come = len(books["scores"][rung])
            return Promotion(rung, f"the best of all {come} that come here")
    return None


def hopeless(state: State, constant: bool) -> str:
    """Why no trial can be made any more; "" if one can. ``constant``: there is one sample only."""
    refused = state["in_a_row"]
    if refused and constant:
        return "the code refuses these hyperparameters, and there are no others"
    if refused >= MAX_INVALID_IN_A_ROW:
        return f"the code refused {refused} samples of hyperparameters in a row"
    return ""
