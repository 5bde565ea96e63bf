"""When a whole search has gone on for long enough.

Rules like those of trials (``search.stopping.trial_rules``). ``renew``: the user has asked for
more than the search was to do when such a policy ended it, so that it goes on; what has ended it
does not end it again by the same facts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from hpcdet.search.api.codec import StateRecord
from hpcdet.search.api.events import S
from hpcdet.search.stopping.trial_rules import WORST, RuleReport, Scope, TrialRule
from hpcdet.store.config.sections import stopping_keys
from hpcdet.store.trials.parents import Parent


@runtime_checkable
class SearchRule(TrialRule[S], Protocol[S]):
    """A policy that ends the search."""

    def renew(self, state: S) -> None:
        """The search goes on though this policy had ended it."""


@dataclass
class TargetState(StateRecord):
    """``met``: the target has ended the search before; left out of the JSON while it has not."""

    met: bool = False

    def encode(self) -> dict[str, bool]:
        return {"met": True} if self.met else {}


@dataclass(frozen=True)
class TargetRule(stopping_keys.Target):
    """Ends the search when a trial's metric is as good as ``value``, a loss.

    It does not end the same search again: the user then wants more trials to be made.
    """

    scope: Scope = "search"

    def initial(self) -> TargetState:
        return TargetState()

    def judge(self, state: TargetState, seen: RuleReport) -> str:
        reached = not state.met and seen.feasible and seen.loss <= self.value
        return f"trial {seen.trial} reached the target with {seen.metric:g}" if reached else ""

    def renew(self, state: TargetState) -> None:
        state.met = True


@dataclass
class NoImprovementState(StateRecord):
    """The best loss, the trials that have reported, and how many of these began since then."""

    best: float = WORST
    known: dict[str, bool] = field(default_factory=dict)
    since: int = 0


@dataclass(frozen=True)
class NoImprovementRule(stopping_keys.NoImprovement):
    """Ends the search when the last ``trials`` that began to report were no better.

    In a search that goes on after that, the next ``trials`` are counted from 0.

    Attributes:
        min_delta: a value counts as better if it is so by more than this.
    """

    scope: Scope = "search"

    def initial(self) -> NoImprovementState:
        return NoImprovementState()

    def judge(self, state: NoImprovementState, seen: RuleReport) -> str:
        if seen.trial not in state.known:
            state.known[seen.trial] = True
            state.since += 1
        if seen.feasible and seen.loss < state.best - self.min_delta:
            state.best, state.since = seen.loss, 0
        if state.since <= self.trials:
            return ""
        return f"{state.since - 1} trials were no better than the best before them"

    def renew(self, state: NoImprovementState) -> None:
        state.since = 0


@dataclass
class TotalLengthState(StateRecord):
    """``of``: up to which length each trial is counted; None: to where it is found first."""

    total: int = 0
    of: dict[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class TotalLengthRule(stopping_keys.TotalLength):
    """Ends the search when all trials together have trained for ``length``.

    What a trial inherited from its parent is not counted again. A search that goes on after
    that may train for as much once more.
    """

    scope: Scope = "search"

    def initial(self) -> TotalLengthState:
        return TotalLengthState()

    def judge(self, state: TotalLengthState, seen: RuleReport) -> str:
        before = state.of.get(seen.trial, 0)
        if before is None:
            before = seen.length
        elif seen.length < before:
            before = seen.length  # it began further back than asked for, at an unknown length
        state.of[seen.trial] = seen.length
        state.total += seen.length - before
        used = state.total
        return f"trained {used} of {self.length} in all" if used >= self.length else ""

    def renew(self, state: TotalLengthState) -> None:
        state.total = 0

    @staticmethod
    def inherit(state: TotalLengthState, trial: int, parent: Parent, unit: str) -> None:
        """A trial is about to begin at the length where its parent is."""
        at: int | None = None
        if parent.length is not None and parent.length.unit == unit:
            at = parent.length.value
        elif not parent.experiment:
            at = state.of.get(str(parent.trial), 0)
        state.of[str(trial)] = at
