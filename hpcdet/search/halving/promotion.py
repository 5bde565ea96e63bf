"""Promotions: the trial that gets a free place, by bracket, and what comes of it in one event.

Nothing is changed here; ``halving`` does what is found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpcdet.search.api.events import Action, Continue, Pause, Stop
from hpcdet.search.api.ranking import Ordering
from hpcdet.search.api.sampling import Sampler
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
    for rung in range(len(books.rungs) - 2, -1, -1):
        waiting = books.waiting[rung]
        if waiting:
            scores, best = books.scores[rung], cut(books, rung)
            first = order.first(scores, waiting, best)
            if first is not None:
                index, rank = first
                why = f"rank {rank + 1} of {len(scores)} now, the best {best} go on"
                return Promotion(rung, index, why)
    return None


def last(books: Books, order: Ordering) -> Promotion | None:
    """The best trial of a rung that no trial can reach any more and none has left."""
    for rung in range(len(books.rungs) - 1):
        if books.next[rung]:
            break
        if books.waiting[rung] and books.on[rung] <= 0:
            scores = books.scores[rung]
            index, _ = order.first(scores, books.waiting[rung], len(scores)) or (0, 0)
            return Promotion(rung, index, f"the best of all {len(scores)} that come here")
    return None


def hopeless(in_a_row: int, sampler: Sampler) -> str:
    """Why no trial can be made any more; "" if one can.

    Args:
        in_a_row: samples that the code has refused, one after the other.
    """
    if not in_a_row:
        return ""
    if sampler.constant:
        return "the code refuses these hyperparameters, and there are no others"
    if in_a_row >= MAX_INVALID_IN_A_ROW:
        return f"the code refused {in_a_row} samples of hyperparameters in a row"
    return ""


def without_detours(actions: list[Action]) -> list[Action]:
    """The actions less those that take each other back, as a pause and a promotion at once do."""
    if len(actions) < 2 or Continue not in map(type, actions):
        return actions
    wanted: dict[int, list[Action]] = {}
    for action in actions:
        if isinstance(action, Pause | Continue | Stop):
            wanted.setdefault(action.trial, []).append(action)
    dropped: set[int] = set()
    for each in wanted.values():
        back = type(each[-1]) is not type(each[0]) and not isinstance(each[-1], Stop)
        dropped.update(map(id, each if back else each[:-1]))
    return [action for action in actions if id(action) not in dropped]
