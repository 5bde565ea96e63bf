"""One training whose hyperparameters change at given lengths, as a population has found them.

A trial for each stretch, which begins from the checkpoint of the one before: what a member of a
population became from, trained again alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcdet.search.api.codec import StateRecord
from hpcdet.search.api.events import Action, Create, Event, SegmentEnd, Shutdown, Start
from hpcdet.store.trials.parents import Parent
from hpcdet.units import Length

Step = tuple[Length, Mapping[str, Any]]
"""Until which length to train, and with which hyperparameters."""


@dataclass
class ScheduleState(StateRecord):
    """The state of a schedule: how many trials it has made, and if all are over."""

    made: int = 0
    over: bool = False


@dataclass(frozen=True)
class ScheduleSearch:
    """Its steps, in ascending order of length; ``seed`` is that of all its trials."""

    steps: Sequence[Step]
    seed: int
    name: str = field(default="schedule", init=False)
    version: int = field(default=1, init=False)

    def initial(self) -> ScheduleState:
        return ScheduleState()

    def on_event(self, state: ScheduleState, event: Event) -> tuple[ScheduleState, list[Action]]:
        """A trial that does not come to its length ends the schedule."""
        if state.over:
            return state, []
        match event:
            case Start():
                return state, [self._next(state)]
            case SegmentEnd(trial, "target") if trial == state.made < len(self.steps):
                return state, [self._next(state)]
            case SegmentEnd(trial, reason) if trial == state.made:
                state.over = True
                good = reason in ("target", "stopped", "user_exit")
                return state, [Shutdown(not good, "" if good else f"trial {trial}: {reason}")]
        return state, []

    def _next(self, state: ScheduleState) -> Create:
        done = state.made
        until, params = self.steps[done]
        parent = str(Parent(done, self.steps[done - 1][0])) if done else ""
        state.made = done + 1
        return Create(done + 1, dict(params), self.seed, until, parent)
