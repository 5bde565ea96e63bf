"""Trials that lack what a search needs: nothing to ask about, unless none ever had it."""

from __future__ import annotations

from hpcdet.errors import HpcdetError
from hpcdet.search.api import State
from hpcdet.search.books import Books

MAX_MUTE = 3
"""Trials that may lack what the search needs, where none ever had it, before it asks for help."""


def miss(state: State, trial: int, metric: str, time_metric: str) -> None:
    """A trial lacks what the search needs; say so as long as none has ever had it.

    Raises:
        HpcdetError: it is one too many.
    """
    mute: list[int] | None = state["mute"]
    brackets: list[Books] = state["brackets"]
    if mute is None or trial in mute:
        return
    mute.append(trial)
    if len(mute) < min(MAX_MUTE, sum(books["trials"] for books in brackets)):
        return
    first = min(books["rungs"][0] for books in brackets)
    at = f"with {time_metric!r} " if time_metric else ""
    raise HpcdetError(
        f"none of {len(mute)} trials has reported {metric!r} {at}as a number of its "
        f"validations at a length of {first} or more",
        where="searcher.time_metric" if time_metric else "searcher.metric",
        hint="cancel the experiment, let the code report it, and submit again",
    )
