"""A fixed number of trials, some of them at a time; ``single`` is one such trial.

A trial that ends makes room for the next until ``max_trials`` were made. One whose
hyperparameters the code refused (``InvalidHP``) does not count and is replaced; one that
failed or was canceled counts and is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcdet.search.api import Action, Create, Event, SegmentEnd, Shutdown, Start, State
from hpcdet.space.errors import SpaceError
from hpcdet.space.space import Space, trial_seed
from hpcdet.units import Length

MAX_INVALID_IN_A_ROW = 100
_GOOD = ("target", "stopped", "user_exit")


@dataclass(frozen=True)
class Random:
    """Samples of ``space``.

    Attributes:
        max_concurrent: trials open at once; 0 means no limit.
    """

    space: Space
    seed: int
    until: Length | None
    max_trials: int
    max_concurrent: int
    name: str = field(default="random")
    version: int = field(default=1, init=False)

    def initial(self) -> State:
        return {"created": 0, "invalid": 0, "in_a_row": 0, "good": 0, "open": [], "over": False}

    def on_event(self, state: State, event: Event) -> tuple[State, list[Action]]:
        """Ends of trials that are not open, and everything after the shutdown, change nothing."""
        if state["over"]:
            return state, []
        match event:
            case Start():
                return self._fill(dict(state))
            case SegmentEnd(trial=trial, reason=reason) if trial in state["open"]:
                invalid = reason == "invalid_hp"
                closed = {
                    **state,
                    "open": [other for other in state["open"] if other != trial],
                    "invalid": state["invalid"] + invalid,
                    "in_a_row": state["in_a_row"] + 1 if invalid else 0,
                    "good": state["good"] + (reason in _GOOD),
                }
                return self._fill(closed)
        return state, []

    def _fill(self, state: State) -> tuple[State, list[Action]]:
        """Open as many trials as there is room for; shut down when none is open then."""
        actions: list[Action] = []
        why = self._hopeless(state)
        trials = list(state["open"])
        while not why and state["created"] - state["invalid"] < self.max_trials:
            if self.max_concurrent and len(trials) >= self.max_concurrent:
                break
            try:
                actions.append(self._create(state["created"] + 1))
            except SpaceError as error:
                why = error.what
                break
            state = {**state, "created": state["created"] + 1}
            trials.append(state["created"])
        state = {**state, "open": trials, "over": not trials}
        if not trials:
            failed = state["good"] == 0
            actions.append(Shutdown(failed, why or ("no trial succeeded" if failed else "")))
        return state, actions

    def _create(self, trial: int) -> Create:
        params = self.space.sample(self.seed, trial)
        return Create(trial, params, trial_seed(self.seed, trial), self.until)

    def _hopeless(self, state: State) -> str:
        if state["in_a_row"] and self.space.constant:
            return "the code refuses these hyperparameters, and there are no others"
        if state["in_a_row"] >= MAX_INVALID_IN_A_ROW:
            return f"the code refused {state['in_a_row']} samples of hyperparameters in a row"
        return ""
