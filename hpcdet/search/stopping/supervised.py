"""A searcher under stopping rules; it sees the trials that they end as stopped."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hpcdet.goals import Goals
from hpcdet.search.api import codec
from hpcdet.search.api.events import (
    Action,
    Ask,
    Continue,
    Create,
    Event,
    Limits,
    Report,
    Searcher,
    SegmentEnd,
    Shutdown,
    State,
    Stop,
)
from hpcdet.search.stopping.rules_from_config import NEWEST, WITHOUT_METRIC
from hpcdet.search.stopping.search_rules import SearchRule, TotalLengthRule
from hpcdet.search.stopping.trial_rules import RuleReport, TrialRule, loss
from hpcdet.store.trials.parents import ORIGIN, Parent
from hpcdet.units import Length

_DECIDES = 3
"""Raised when what is decided by the newest rules is."""


@dataclass(frozen=True)
class Supervised:
    """``method`` under ``policies``, pairs of a name and a policy; any of them ends a trial.

    A trial that a policy ends still counts in the searcher's ranks with that last report, and
    then as stopped, so that its place goes to another at once. What it reports afterwards, and
    what the searcher wants of it, is dropped. A policy for the whole search ends all trials.
    Before a policy ends anything by a metric that nobody has ever reported, the user is asked.

    When the user then asks for more trials, or longer ones, the search goes on: the searcher hears
    the report that ended it, what its trials reported and how they ended meanwhile (those that
    have not, as stopped), and then of the limits. If it wants no trial even so, the search stays
    ended by that policy.

    A trial that breaks a hard constraint ends before anybody sees the report that says so.

    Attributes:
        slots: of each trial.
        goals: objectives and constraints; None where the metric is all.
        limits: how far the search goes by its config; None where nobody will ask for more.
        rules: ``searcher.stopping_version``.
        begin_at: how far what trials begin from is, where they begin from one checkpoint.
    """

    method: Searcher
    policies: Sequence[tuple[str, TrialRule]]
    metric: str
    smaller_is_better: bool = True
    slots: int = 1
    goals: Goals | None = None
    limits: Limits | None = None
    rules: int = NEWEST
    begin_at: Length | None = None

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def version(self) -> int:
        """Return the version of searcher and rules; for the first rules, the searcher's own."""
        return self.method.version + (100 * _DECIDES if self.rules > 1 else 0)

    def initial(self) -> State:
        """``over``: a policy has ended the search; ``end`` says how, if it may be taken back."""
        state: State = {
            "method": self.method.initial(),
            "policies": [policy.initial() for _, policy in self.policies],
            "open": {},
            "ended": {},
            "over": False,
            "heard": False,
        }
        if self.rules > 1 and self.limits is not None:
            state |= {"asked": _extent(self.limits), "end": None}
        return state

    def on_event(self, state: State, event: Event) -> tuple[State, list[Action]]:
        """Ignore trials that a rule has ended, and all events after it has ended the search."""
        match event:
            case Report() if state["over"]:
                self._keep(state, event)
                return state, []
            case Report(trial=trial) if str(trial) in state["ended"]:
                return state, []
            case Report():
                return state, self._report(state, event)
            case SegmentEnd(trial=trial):
                state["open"].pop(str(trial), None)
                if state["over"]:
                    self._keep(state, event)
                    return state, []
                if state["ended"].pop(str(trial), False):
                    return state, []
            case Limits():
                further = "asked" in state and _further(_extent(event), state["asked"])
                if "asked" in state:
                    state["asked"] = _extent(event)
                if state["over"]:
                    return state, self._reopen(state, event) if further else []
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
        seen = RuleReport(
            str(report.trial),
            length,
            loss(metric, self.smaller_is_better),
            metric,
            report.seconds,
            self.slots,
            feasible,
        )
        state["heard"] = state.get("heard", True) or self.metric in report.metrics
        ends, asks, by = {"trial": "", "search": ""}, list[Action](), list[int]()
        judges = zip(self.policies, state["policies"], strict=True)
        for place, ((name, policy), own) in enumerate(judges):
            why = policy.judge(own, seen)
            if why and not state["heard"] and name not in WITHOUT_METRIC:
                state["heard"] = True  # asked once
                what = f"trial {seen.trial} would end by {name}, but nobody has ever reported"
                asks.append(Ask(f"{what} {self.metric!r} as a number of its validations"))
            elif why and not asks:
                ends[policy.scope] = ends[policy.scope] or f"{name}: {why}"
                by += [place] if policy.scope == "search" else []
        if ends["search"]:
            state["over"] = True
            if "end" in state:
                gone = [int(trial) for trial in state["open"]]
                told = [codec.encode_event(report)]
                state["end"] = {"by": by, "gone": gone, "told": told, "why": ends["search"]}
            stops = [Stop(int(trial), ends["search"]) for trial in state["open"]]
            return [*stops, Shutdown(why=ends["search"])]
        actions = [*self._tell(state, report), *asks]
        if not ends["trial"]:
            return actions
        others = [a for a in actions if not codec.concerns(a, report.trial)]
        ended = self._end(state, report.trial, "stopped")
        return [Stop(report.trial, ends["trial"]), *others, *ended]

    def _keep(self, state: State, event: Report | SegmentEnd) -> None:
        """Remember an event of a trial after a rule has ended the search, which may be undone."""
        end = state.get("end")
        if end is None or event.trial not in end["gone"]:
            return
        violated = codec.encode_event(SegmentEnd(event.trial, "violated"))
        if violated in end["told"]:
            return  # it has ended for the searcher
        kept: Event = event
        if self.goals is not None and isinstance(event, Report):
            broken = self.goals.broken(event.metrics, event.length.value)
            kept = SegmentEnd(event.trial, "violated") if broken else event
        end["told"].append(codec.encode_event(kept))

    def _reopen(self, state: State, limits: Limits) -> list[Action]:
        """More is asked for than the search was to do when a policy ended it."""
        before = copy.deepcopy(state)
        end, state["over"], state["end"] = state["end"], False, None
        for place in end["by"]:
            policy = self.policies[place][1]
            if isinstance(policy, SearchRule):
                policy.renew(state["policies"][place])
        leaving = {str(trial): True for trial in end["gone"] if str(trial) in state["open"]}
        told = [event for line in end["told"] if (event := codec.decode_event(line)) is not None]
        ends: dict[int, str] = {}
        for event in told:
            if isinstance(event, SegmentEnd):
                ends.setdefault(event.trial, event.reason)
        told += [SegmentEnd(trial, "stopped") for trial in end["gone"] if trial not in ends]
        stopped = [t for t in end["gone"] if ends.get(t, "stopped") in ("stopped", "violated")]
        meanwhile = list[Action]()
        for event in told:
            if isinstance(event, SegmentEnd):  # what was wanted of it before came to nothing
                meanwhile = [a for a in meanwhile if not codec.concerns(a, event.trial)]
                state["open"].pop(str(event.trial), None)
            meanwhile += self._tell(state, event)
        meanwhile = [a for a in meanwhile if not any(codec.concerns(a, t) for t in stopped)]
        for trial in stopped:
            state["open"].pop(str(trial), None)
        state["ended"] |= leaving
        then = self._tell(state, limits)
        if not any(isinstance(action, Create | Continue) for action in meanwhile + then):
            state.clear()
            state.update(before)
            return [Shutdown(why=end["why"])]
        if any(isinstance(action, Create | Continue) for action in then):
            meanwhile = [action for action in meanwhile if not isinstance(action, Shutdown)]
        return meanwhile + then

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
            if isinstance(action, Create) and action.parent and self.rules > 1:
                self._inherit(state, action)
        return actions

    def _inherit(self, state: State, child: Create) -> None:
        parent = Parent.parse(child.parent)
        unit = child.until.unit if child.until is not None else "batches"
        if parent == ORIGIN:
            parent = replace(ORIGIN, length=self.begin_at)
        for (_, policy), own in zip(self.policies, state["policies"], strict=True):
            if isinstance(policy, TotalLengthRule) and parent is not None:
                policy.inherit(own, child.trial, parent, unit)


def _extent(limits: Limits) -> list[int | None]:
    length = limits.max_length
    return [limits.max_trials, length.value if length is not None else None]


def _further(now: list[int | None], before: list[int | None]) -> bool:
    """More trials, or longer ones, than before."""
    return any(a is not None and b is not None and a > b for a, b in zip(now, before, strict=True))
