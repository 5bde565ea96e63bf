"""A searcher under stopping policies: what they end, it hears of as stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hpcdet.goals import Goals
from hpcdet.search.api import (
    Action,
    Ask,
    Continue,
    Create,
    Event,
    Limits,
    Pause,
    Report,
    Searcher,
    SegmentEnd,
    Shutdown,
    State,
    Stop,
)
from hpcdet.search.policies import WITHOUT_METRIC, Policy, Seen, loss


@dataclass(frozen=True)
class Supervised:
    """``method`` under ``policies``, pairs of a name and a policy; any of them ends a trial.

    A trial that a policy ends still counts in the searcher's ranks with that last report, and
    then as stopped, so that its place goes to another at once. What it reports afterwards, and
    what the searcher wants of it, is dropped. A policy for the whole search ends all trials.
    Before a policy ends anything by a metric that nobody has ever reported, the user is asked.

    A trial that breaks a hard constraint ends before anybody sees the report that says so.

    Attributes:
        slots: of each trial.
        goals: objectives and constraints; None where the metric is all.
    """

    method: Searcher
    policies: Sequence[tuple[str, Policy]]
    metric: str
    smaller_is_better: bool = True
    slots: int = 1
    goals: Goals | None = None

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def version(self) -> int:
        return self.method.version

    def initial(self) -> State:
        return {
            "method": self.method.initial(),
            "policies": [policy.initial() for _, policy in self.policies],
            "open": {},
            "ended": {},
            "over": False,
            "heard": False,
        }

    def on_event(self, state: State, event: Event) -> tuple[State, list[Action]]:
        """Nothing is heard of trials that a policy ended, nor after it ended the search."""
        match event:
            case Report(trial=trial) if state["over"] or str(trial) in state["ended"]:
                return state, []
            case Report():
                return state, self._report(state, event)
            case SegmentEnd(trial=trial):
                state["open"].pop(str(trial), None)
                if state["over"] or state["ended"].pop(str(trial), False):
                    return state, []
            case Limits() if state["over"]:
                return state, []
        return state, self._tell(state, event)

    def _report(self, state: State, report: Report) -> list[Action]:
        metrics, length = report.metrics, report.length.value
        feasible = True
        if self.goals is not None:
            broken = self.goals.broken(metrics, length)
            if broken:
                return [Stop(report.trial, broken), *self._end(state, report.trial, "violated")]
            feasible = self.goals.standing(metrics, length).feasible
        metric = metrics.get(self.metric)
        seen = Seen(
            str(report.trial),
            length,
            loss(metric, self.smaller_is_better),
            metric,
            report.seconds,
            self.slots,
            feasible,
        )
        state["heard"] = state.get("heard", True) or self.metric in report.metrics
        ends, asks = {"trial": "", "search": ""}, list[Action]()
        for (name, policy), own in zip(self.policies, state["policies"], strict=True):
            why = policy.judge(own, seen)
            if why and not state["heard"] and name not in WITHOUT_METRIC:
                state["heard"] = True  # asked once
                what = f"trial {seen.trial} would end by {name}, but nobody has ever reported"
                asks.append(Ask(f"{what} {self.metric!r} as a number of its validations"))
            elif why and not asks and not ends[policy.scope]:
                ends[policy.scope] = f"{name}: {why}"
        if ends["search"]:
            state["over"] = True
            stops = [Stop(int(trial), ends["search"]) for trial in state["open"]]
            return [*stops, Shutdown(why=ends["search"])]
        actions = [*self._tell(state, report), *asks]
        if not ends["trial"]:
            return actions
        others = [a for a in actions if not _concerns(a, report.trial)]
        ended = self._end(state, report.trial, "stopped")
        return [Stop(report.trial, ends["trial"]), *others, *ended]

    def _end(
        self, state: State, trial: int, reason: Literal["stopped", "violated"]
    ) -> list[Action]:
        """A trial is over, whatever becomes of it; what the searcher wants then."""
        state["ended"][str(trial)] = True
        state["open"].pop(str(trial), None)
        return self._tell(state, SegmentEnd(trial, reason))

    def _tell(self, state: State, event: Event) -> list[Action]:
        state["method"], actions = self.method.on_event(state["method"], event)
        for action in actions:
            if isinstance(action, Create | Continue):
                state["open"][str(action.trial)] = True
                state["ended"].pop(str(action.trial), None)
        return actions


def _concerns(action: Action, trial: int) -> bool:
    return isinstance(action, Continue | Pause | Stop) and action.trial == trial
