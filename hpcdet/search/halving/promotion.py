"""Promotions: the trial that gets a free place, by bracket.

Nothing is changed here; ``halving`` does what is found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpcdet.search.api.events import State
from hpcdet.search.api.ranking import Ordering
from hpcdet.search.halving.bracket_state import Books

MAX_INVALID_IN_A_ROW = 100


@dataclass(frozen=True)
class Promotion:
    """A paused trial of a rung, the ``index``-th of those that wait, may go on."""

    rung: int
    index: int
    why: str


def promotable(books: Books, cut: Callable[[Books, int], int], order: Ordering) -> Promotion | None:
    """At the highest rung where a paused trial ranks so that it may go on now."""
    for rung in range(len(books["rungs"]) - 2, -1, -1):
        waiting = books["waiting"][rung]
        if waiting:
            scores, best = books["scores"][rung], cut(books, rung)
            first = order.first(scores, waiting, best)
            if first is not None:
                index, rank = first
                why = f"rank {rank + 1} of {len(scores)} now, the best {best} go on"
                return Promotion(rung, index, why)
    return None


def is_open(books: Books) -> bool:
    """Whether trials of the bracket are still to be made."""
    return books["created"] - books["invalid"] < books["trials"]


def last(books: Books, order: Ordering) -> Promotion | None:
    """The best trial of a rung that no trial can reach any more and none has left."""
    for rung in range(len(books["rungs"]) - 1):
        if books["next"][rung]:
            break
        if books["waiting"][rung] and books["on"][rung] <= 0:
            scores = books["scores"][rung]
            index, _ = order.first(scores, books["waiting"][rung], len(scores)) or (0, 0)
            return Promotion(rung, index, f"the best of all {len(scores)} that come here")
    return None


def hopeless(state: State, constant: bool) -> str:
    """Why no trial can be made any more; "" if one can. ``constant``: there is one sample only."""
    refused = state["in_a_row"]
    if refused and constant:
        return "the code refuses these hyperparameters, and there are no others"
    if refused >= MAX_INVALID_IN_A_ROW:
        return f"the code refused {refused} samples of hyperparameters in a row"
    return ""
