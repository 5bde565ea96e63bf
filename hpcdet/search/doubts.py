"""What looks so wrong that the user is asked, once, before more is spent on it."""

from __future__ import annotations

from hpcdet.search.api import Ask, State
from hpcdet.search.books import Books

ENOUGH = 3
"""Trials that may lack what the search needs, or end too soon, where none ever did better."""


def mute(state: State, trial: int, metric: str, time_metric: str) -> list[Ask]:
    """A trial lacks what the search needs: nothing to ask about, unless none ever had it."""
    known: list[int] | None = state["mute"]
    brackets: list[Books] = state["brackets"]
    if known is None or trial in known:
        return []
    known.append(trial)
    if len(known) < min(ENOUGH, sum(books["trials"] for books in brackets)):
        return []
    state["mute"] = state["short"] = None
    first = min(books["rungs"][0] for books in brackets)
    at = f"with {time_metric!r} " if time_metric else ""
    what = f"none of {len(known)} trials has reported {metric!r} {at}as a number of its"
    return [Ask(f"{what} validations at a length of {first} or more")]


def ended(
    state: State, books: Books, trial: int, metric: str, time_metric: str, unit: str
) -> list[Ask]:
    """A trial that had a place has ended by itself."""
    if state["rung"][trial - 1] == 0 and state["mute"] is not None:
        return mute(state, trial, metric, time_metric)
    return short(state, books, trial, unit)


def short(state: State, books: Books, trial: int, unit: str) -> list[Ask]:
    """A trial ended by itself before its next rung: likewise, unless none ever came to the top."""
    known: list[int] | None = state["short"]
    if known is None:
        return []
    known.append(trial)
    if len(known) < ENOUGH:
        return []
    state["short"] = None
    rungs, next_one = books["rungs"], state["rung"][trial - 1]
    what = f"trials {', '.join(map(str, known))} ended by themselves before their next rung"
    where = f"the last one before {rungs[next_one]} {unit}"
    return [Ask(f"{what}, {where}, and none has come to {rungs[-1]}")]
