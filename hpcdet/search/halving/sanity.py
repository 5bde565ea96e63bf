"""Sanity checks of a search: the user is asked once before more is spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hpcdet.goals import Goals, finite
from hpcdet.search.api.codec import StateRecord
from hpcdet.search.api.events import Ask, Report

ENOUGH = 3
"""Trials that may lack what the search needs, or end too soon, where none ever did better."""
MANY = 6
"""Metrics that are named of those that are reported instead."""


@dataclass
class Doubt(StateRecord):
    """Trials that lack something, until the first that has it, or the user was asked.

    In JSON the list of trials, or null once the doubt is settled.
    """

    trials: list[int] = field(default_factory=list)
    settled: bool = False

    def add(self, trial: int) -> int:
        """Note a trial; return how many there are, or 0 if it is known or the doubt is settled."""
        if self.settled or trial in self.trials:
            return 0
        self.trials.append(trial)
        return len(self.trials)

    def settle(self) -> None:
        self.trials, self.settled = [], True

    def encode(self) -> list[int] | None:
        return None if self.settled else self.trials

    def decode(self, value: list[int] | None) -> Doubt:
        return Doubt(settled=True) if value is None else Doubt(value)


@dataclass
class Doubts(StateRecord):
    """The doubts about a search by halving.

    Attributes:
        seen: a trial has shown the metric, be it no number, or the user was asked about it: from
            then on a report without it is worst, before that it is ignored.
        mute: trials without what the search needs.
        short: trials that ended before their next rung.
    """

    seen: bool = False
    mute: Doubt = field(default_factory=Doubt)
    short: Doubt = field(default_factory=Doubt)

    def without_metric(
        self, trial: int, enough: int, metric: str, where: str, told: Mapping[str, Any] | None
    ) -> list[Ask]:
        """A trial lacks what the search needs: a question, if none of ``enough`` ever had it.

        Args:
            metric: the names of what it needs; ``where`` continues that sentence.
            told: what it has reported, if that is known.
        """
        count = self.mute.add(trial)
        if count < min(ENOUGH, enough):
            return []
        what = unseen(count, metric)
        self.mute.settle()
        self.short.settle()
        self.seen = True
        return [Ask(f"{what}{where}{said(told)}")]

    def ended_early(self, trial: int, next_rung: str, top: int) -> list[Ask]:
        """A trial ended by itself before its next rung: a question, if none came to the top."""
        if self.short.settled:
            return []
        self.short.trials.append(trial)
        if len(self.short.trials) < ENOUGH:
            return []
        what = f"trials {', '.join(map(str, self.short.trials))} ended by themselves"
        self.short.settle()
        where = f"before their next rung, the last one before {next_rung}"
        return [Ask(f"{what} {where}, and none has come to {top}")]


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
