"""A fixed number of trials that are never compared, some of them at a time.

``random`` draws them, ``grid`` goes through its points, ``single`` is one of them. A trial that
ends makes room for the next until all were made. One that failed or was canceled counts and is
not replaced. One whose hyperparameters the code refused (``InvalidHP``) does not count and is
replaced, but on a grid: there its point is used up. If three have ended that reported, and none
has ever shown the metric as a finite number, the user is asked before more are trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcdet.goals import finite
from hpcdet.search.api.codec import StateRecord
from hpcdet.search.api.events import (
    Action,
    Ask,
    Continue,
    Create,
    Event,
    Limits,
    Report,
    SegmentEnd,
    Shutdown,
    Start,
)
from hpcdet.search.api.sampling import Blind, Sampler, View
from hpcdet.search.halving import sanity
from hpcdet.search.halving.promotion import hopeless
from hpcdet.space.errors import SpaceError
from hpcdet.space.space import trial_seed
from hpcdet.units import Length

_GOOD = ("target", "stopped", "user_exit")


@dataclass(frozen=True)
class Points:
    """The sampler of a grid: trial ``k`` has ``points[k - 1]``."""

    points: Sequence[Mapping[str, Any]]
    name: str = "grid"
    learns: bool = False
    constant: bool = False

    def suggest(self, view: View, number: int) -> dict[str, Any]:
        return dict(self.points[number - 1])


@dataclass
class RandomState(StateRecord):
    """The state of such a search.

    Attributes:
        open, done: trials that train, and that have reached their length.
        mute: open ones that reported, but no number as the metric.
        muted: how many of these have ended.
    """

    created: int = 0
    invalid: int = 0
    in_a_row: int = 0
    good: int = 0
    open: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    max_trials: int = 0
    concurrent: int = 0
    until: Length | None = None
    over: bool = False
    mute: sanity.Doubt = field(default_factory=sanity.Doubt)
    muted: int = 0


@dataclass(frozen=True)
class Random:
    """Trials of a sampler.

    Attributes:
        max_concurrent: trials open at once; 0 means no limit.
        replaces: what the code refused; else ``max_trials`` are all there can ever be.
        metric: what trials have to report; "": no question is asked where they do not.
    """

    sampler: Sampler
    seed: int
    until: Length | None
    max_trials: int
    max_concurrent: int
    name: str = "random"
    replaces: bool = True
    metric: str = ""
    version: int = field(default=2, init=False)

    def initial(self) -> RandomState:
        mute = sanity.Doubt(settled=not self.metric)
        return RandomState(
            max_trials=self.max_trials,
            concurrent=self.max_concurrent,
            until=self.until,
            mute=mute,
        )

    def on_event(self, state: RandomState, event: Event) -> tuple[RandomState, list[Action]]:
        """Ends of trials that are not open, and everything after the shutdown, change nothing."""
        actions: list[Action] = []
        match event:
            case Limits():
                self._change(state, event, actions)
            case _ if state.over:
                return state, []
            case Start():
                pass
            case Report(trial=trial, metrics=metrics) if trial in state.open:
                if finite(metrics.get(self.metric)) is not None:
                    state.mute.settle()
                else:
                    state.mute.add(trial)
                return state, []
            case SegmentEnd(trial=trial, reason=reason) if trial in state.open:
                refused = reason == "invalid_hp"
                state.open.remove(trial)
                state.in_a_row = state.in_a_row + 1 if refused else 0
                state.invalid += refused and self.replaces
                state.good += reason in _GOOD
                if reason == "target":
                    state.done.append(trial)
                if trial in state.mute.trials:
                    state.mute.trials.remove(trial)
                    state.muted += 1
            case _:
                return state, []
        self._fill(state, actions)
        if not (state.over or state.mute.settled) and state.muted >= sanity.ENOUGH:
            state.mute.settle()
            actions.append(Ask(sanity.unseen(state.muted, self.metric)))
        return state, actions

    def _fill(self, state: RandomState, actions: list[Action]) -> None:
        """Open as many trials as there is room for; shut down when none is open then."""
        why = hopeless(state.in_a_row, self.sampler) if self.replaces else ""
        room = state.concurrent or state.max_trials
        while (
            not why and len(state.open) < room and state.created - state.invalid < state.max_trials
        ):
            try:
                actions.append(self._create(state, state.created + 1))
            except SpaceError as error:
                why = error.what
                break
            state.created += 1
            state.open.append(state.created)
        if not state.open:
            state.over = True
            failed = state.good == 0
            actions.append(Shutdown(failed, why or ("no trial succeeded" if failed else "")))

    def _create(self, state: RandomState, trial: int) -> Create:
        params = self.sampler.suggest(Blind(), trial)
        return Create(trial, params, trial_seed(self.seed, trial), state.until)

    def _change(self, state: RandomState, limits: Limits, actions: list[Action]) -> None:
        """More trials, more of them at once, and all of them longer; fewer ends none there is."""
        state.over = False
        state.concurrent = limits.max_concurrent
        if self.replaces and self.name != "single":
            state.max_trials = limits.max_trials
        longer, now = limits.max_length, state.until
        if longer is None or now is None or longer.unit != now.unit or longer.value <= now.value:
            return
        state.until = longer
        again = sorted([*state.open, *state.done])
        why = "the search was made longer"
        actions += [Continue(trial, longer, why) for trial in again]
        state.good -= len(state.done)
        state.open, state.done = again, []
