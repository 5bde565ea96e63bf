"""Every point of a grid, first to last, some of them at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcdet.search.api import Action, Create, Event, SegmentEnd, Shutdown, Start, State
from hpcdet.space.space import trial_seed
from hpcdet.units import Length

_GOOD = ("target", "stopped", "user_exit")


@dataclass(frozen=True)
class Grid:
    """Trial ``k`` has ``points[k - 1]``. A point whose trial failed or was refused is used up.

    Attributes:
        max_concurrent: trials open at once; 0 means no limit.
    """

    points: Sequence[Mapping[str, Any]]
    seed: int
    until: Length | None
    max_concurrent: int
    name: str = field(default="grid", init=False)
    version: int = field(default=1, init=False)

    def initial(self) -> State:
        return {"created": 0, "good": 0, "open": [], "over": False}

    def on_event(self, state: State, event: Event) -> tuple[State, list[Action]]:
        """Ends of trials that are not open, and everything after the shutdown, change nothing."""
        if state["over"]:
            return state, []
        match event:
            case Start():
                return self._fill(state)
            case SegmentEnd(trial=trial, reason=reason) if trial in state["open"]:
                left = [other for other in state["open"] if other != trial]
                return self._fill(
                    {**state, "open": left, "good": state["good"] + (reason in _GOOD)}
                )
        return state, []

    def _fill(self, state: State) -> tuple[State, list[Action]]:
        room = (self.max_concurrent or len(self.points)) - len(state["open"])
        first = state["created"] + 1
        new = range(first, min(first + room, len(self.points) + 1))
        actions: list[Action] = [
            Create(k, self.points[k - 1], trial_seed(self.seed, k), self.until) for k in new
        ]
        trials = [*state["open"], *new]
        if not trials:
            failed = state["good"] == 0
            actions.append(Shutdown(failed, "no trial succeeded" if failed else ""))
        after = {**state, "created": state["created"] + len(new), "open": trials}
        return {**after, "over": not trials}, actions
