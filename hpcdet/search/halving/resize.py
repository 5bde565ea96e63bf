"""Changes of a running search by halving: its trials, places and length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpcdet.rungs import Bracket
from hpcdet.search.api import ranking
from hpcdet.search.api.events import Continue, Limits
from hpcdet.search.halving import bracket_state as book
from hpcdet.search.halving.bracket_state import DONE, OPEN, PAUSED, Books, HalvingState


def take(
    state: HalvingState,
    limits: Limits,
    as_first: Sequence[Bracket],
    divisor: float,
    heighten: Callable[[Books, int], None] | None,
) -> list[Continue]:
    """Trials in the same proportions, places, and a rung above the highest.

    With fewer of them nothing that there is goes.

    Args:
        as_first: the brackets that the search began with.
        heighten: adds that rung; None: lengths are told by a metric, and rungs stay.
    """
    brackets = state.brackets
    state.over = False
    if limits.max_trials != sum(books.trials for books in brackets):
        book.share_trials(brackets, limits.max_trials, as_first)
    if limits.max_concurrent != state.concurrent:
        state.concurrent = limits.max_concurrent
        book.spread_places(brackets, limits.max_concurrent, divisor)
    longer, now = limits.max_length, state.until
    if longer is None or now is None or longer.unit != now.unit or longer.value <= now.value:
        return []
    state.until = longer
    if heighten is not None:
        for books in brackets:
            heighten(books, longer.value)
    why = "the search was made longer"
    places = enumerate(state.trials.status, 1)
    return [Continue(trial, longer, why) for trial, status in places if status == OPEN]


def heighten(state: HalvingState, books: Books, length: int) -> None:
    """A rung above what was the whole training: who has trained so far waits below it now."""
    books.add_rung(length)
    for _, _, trial, *_ in books.scores[-2]:
        if state.trials.status[trial - 1] == DONE:
            state.good -= 1
            rest(state, books, len(books.rungs) - 2, trial)


def rest(state: HalvingState, books: Books, rung: int, trial: int) -> None:
    """Let a trial wait on a rung that was the top when the trial reached it."""
    found = next(entry for entry in books.scores[rung] if entry[2] == trial)
    ranking.insert(books.waiting[rung], found)
    state.trials.status[trial - 1] = PAUSED
