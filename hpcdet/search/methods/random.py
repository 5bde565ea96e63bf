"""A fixed number of trials that are never compared, some of them at a time.

``random`` draws them, ``grid`` goes through its points, ``single`` is one of them. A trial that
ends makes room for the next until all were made. One that failed or was canceled counts and is
not replaced. One whose hyperparameters the code refused (``InvalidHP``) does not count and is
replaced, but on a grid: there its point is used up. If three have ended that reported, and nobody
has ever shown the metric as a finite number, the user is asked before more are trained.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcdet.goals import finite
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
    State,
)
from hpcdet.search.api.sampling import Blind, Sampler
from hpcdet.search.halving import sanity
from hpcdet.space.errors import SpaceError
from hpcdet.space.space import trial_seed
from hpcdet.units import Length

MAX_INVALID_IN_A_ROW = 100
_GOOD = ("target", "stopped", "user_exit")


@dataclass(frozen=True)
class Random:
    """Trials of a sampler.

    Attributes:
        max_concurrent: trials open at once; 0 means no limit.
        replaces: what the code refused; else ``max_trials`` are all there can ever be.
        metric: what trials have to report; "": nobody is asked where they do not.
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

    def initial(self) -> State:
        """``open`` and ``done``: trials that train, and that have reached their length.

        ``mute``: open ones that reported, but no number as the metric, and ``muted``, how many of
        these have ended; None once somebody has shown one, or the user was asked.
        """
        return {
            "created": 0,
            "invalid": 0,
            "in_a_row": 0,
            "good": 0,
            "open": [],
            "done": [],
            "max_trials": self.max_trials,
            "concurrent": self.max_concurrent,
            "until": self.until.encode() if self.until else None,
            "over": False,
            "mute": [] if self.metric else None,
            "muted": 0,
        }

    def on_event(self, state: State, event: Event) -> tuple[State, list[Action]]:
        """Ends of trials that are not open, and everything after the shutdown, change nothing."""
        actions: list[Action] = []
        match event:
            case Limits():
                self._change(state, event, actions)
            case _ if state["over"]:
                return state, []
            case Start():
                pass
            case Report(trial=trial, metrics=metrics) if trial in state["open"]:
                if finite(metrics.get(self.metric)) is not None:
                    state["mute"] = None
                elif state["mute"] is not None and trial not in state["mute"]:
                    state["mute"].append(trial)
                return state, []
            case SegmentEnd(trial=trial, reason=reason) if trial in state["open"]:
                refused = reason == "invalid_hp"
                state["open"].remove(trial)
                state["in_a_row"] = state["in_a_row"] + 1 if refused else 0
                state["invalid"] += refused and self.replaces
                state["good"] += reason in _GOOD
                if reason == "target":
                    state["done"].append(trial)
                self._count_mute(state, trial)
            case _:
                return state, []
        self._fill(state, actions)
        if not state["over"] and state["mute"] is not None and state["muted"] >= sanity.ENOUGH:
            state["mute"] = None
            actions.append(Ask(sanity.unseen(state["muted"], self.metric)))
        return state, actions

    def _count_mute(self, state: State, trial: int) -> None:
        if state["mute"] and trial in state["mute"]:
            state["mute"].remove(trial)
            state["muted"] += 1

    def _fill(self, state: State, actions: list[Action]) -> None:
        """Open as many trials as there is room for; shut down when none is open then."""
        why = self._hopeless(state)
        room = state["concurrent"] or state["max_trials"]
        while (
            not why
            and len(state["open"]) < room
            and state["created"] - state["invalid"] < state["max_trials"]
        ):
            try:
                actions.append(self._create(state, state["created"] + 1))
            except SpaceError as error:
                why = error.what
                break
            state["created"] += 1
            state["open"].append(state["created"])
        if not state["open"]:
            state["over"] = True
            failed = state["good"] == 0
            actions.append(Shutdown(failed, why or ("no trial succeeded" if failed else "")))

    def _create(self, state: State, trial: int) -> Create:
        until = Length.decode(state["until"]) if state["until"] else None
        params = self.sampler.suggest(Blind(), trial)
        return Create(trial, params, trial_seed(self.seed, trial), until)

    def _hopeless(self, state: State) -> str:
        if not self.replaces:
            return ""
        if state["in_a_row"] and self.sampler.constant:
            return "the code refuses these hyperparameters, and there are no others"
        if state["in_a_row"] >= MAX_INVALID_IN_A_ROW:
            return f"the code refused {state['in_a_row']} samples of hyperparameters in a row"
        return ""

    def _change(self, state: State, limits: Limits, actions: list[Action]) -> None:
        """More trials, more of them at once, and all of them longer; fewer ends none there is."""
        state["over"] = False
        state["concurrent"] = limits.max_concurrent
        if self.replaces and self.name != "single":
            state["max_trials"] = limits.max_trials
        longer, now = limits.max_length, state["until"]
        if longer is None or now is None or longer.value <= now.get(longer.unit, longer.value):
            return
        state["until"] = longer.encode()
        again = sorted([*state["open"], *state["done"]])
        why = "the search was made longer"
        actions += [Continue(trial, longer, why) for trial in again]
        state["good"] -= len(state["done"])
        state["open"], state["done"] = again, []
