"""Sanity checks of a search: the user is asked once before more is spent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hpcdet.goals import Goals, finite
from hpcdet.search.api.events import Ask, Report, State
from hpcdet.search.halving.bracket_state import Books

ENOUGH = 3
"""Trials that may lack what the search needs, or end too soon, where none ever did better."""
MANY = 6
"""Metrics that are named of those that are reported instead."""


def shown(
    report: Report, metric: str, goals: Goals | None
) -> Literal["nothing", "no number", "numbers"]:
    """Return the compared metrics of a report; nothing if one of them is missing."""
    told = report.metrics
    if goals is None:
        found = [finite(told[metric])] if metric in told else []
    elif goals.lacking(told, report.length.value):
        found = []
    else:
        found = [one.loss(told) for one in goals.objectives]
    if not found:
        return "nothing"
    return "no number" if None in found else "numbers"


def mute(
    state: State,
    trial: int,
    metric: str,
    time_metric: str,
    told: Mapping[str, Any] | None = None,
) -> list[Ask]:
    """A trial lacks what the search needs: nothing to ask about, unless none ever had it.

    Args:
        metric: names of what it needs; ``told``: what it has reported, if that is known.
    """
    known: list[int] | None = state["mute"]
    brackets: list[Books] = state["brackets"]
    if known is None or trial in known:
        return []
    known.append(trial)
    if len(known) < min(ENOUGH, sum(books["trials"] for books in brackets)):
        return []
    state["mute"] = state["short"] = None
    state["seen"] = True
    first = min(books["rungs"][0] for books in brackets)
    what = unseen(len(known), metric)
    what += f" with {time_metric!r}" if time_metric else ""
    return [Ask(f"{what} from length {first} on{said(told)}")]


def unseen(trials: int, metric: str) -> str:
    """Return the sentence that no trial of so many has shown the metric as a finite number."""
    return f"no trial of {trials} has shown a finite number as {metric!r}"


def said(told: Mapping[str, Any] | None) -> str:
    """Return the names that trials report instead of a missing metric, and non-numbers."""
    if told is None:
        return ""
    words = [name if finite(told[name]) is not None else f"{name} = {told[name]}" for name in told]
    more = ", …" if len(words) > MANY else ""
    return f"; the last one reports {', '.join(sorted(words)[:MANY])}{more}" if words else ""


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
