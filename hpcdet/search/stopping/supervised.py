"""A searcher under stopping rules; it sees the trials that they end as stopped."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from hpcdet.goals import RESERVED, Goals, Mode
from hpcdet.search.api import codec
from hpcdet.search.api.events import (
    Action,
    Ask,
    Continue,
    Create,
    Event,
    Halt,
    Limits,
    Method,
    Report,
    SegmentEnd,
    Shutdown,
    Stop,
)
from hpcdet.search.stopping.rules_from_config import NEWEST, WITHOUT_METRIC
from hpcdet.search.stopping.search_rules import SearchRule, TotalLengthRule
from hpcdet.search.stopping.trial_rules import RuleReport, TrialRule, loss
from hpcdet.store.trials.parents import ORIGIN, Parent
from hpcdet.units import Length

_DECIDES = 3
"""Raised when what is decided by the newest rules is."""


@dataclass
class PolicyEnd(codec.StateRecord):
    """How rules have ended a search, which may be taken back.

    Attributes:
        by: their places in the list of rules.
        gone: the trials that were open.
        told: the events of these from then on, as the journal has them.
        why: for people.
    """

    by: list[int]
    gone: list[int]
    told: list[dict[str, Any]]
    why: str


@dataclass
class SupervisedState(codec.StateRecord):
    """The state of a searcher and of its rules.

    Attributes:
        method: the searcher's; ``policies``: that of each rule.
        open, ended: trials that train, and that a rule has ended while they still do, as keys.
        over: a rule has ended the search; ``end`` says how, if it may be taken back.
        heard: the metric has been reported, or the user was asked about it.
        asked: trials and length that the search is to do; None, and not in the JSON, where an end
            by a rule stands.
        shown: trials that the user was asked to look at, as keys; not in the JSON if there is none.
    """

    method: Any
    policies: list[Any]
    open: dict[str, bool] = field(default_factory=dict)
    ended: dict[str, bool] = field(default_factory=dict)
    over: bool = False
    heard: bool = False
    asked: list[int | None] | None = None
    end: PolicyEnd | None = None
    shown: dict[str, bool] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        found: dict[str, Any] = super().encode()
        found["policies"] = [codec.encode_state(own) for own in self.policies]
        if self.asked is None:
            del found["asked"], found["end"]
        if not self.shown:
            del found["shown"]
        return found

    def decode(self, value: Any) -> Self:
        rules = zip(self.policies, value["policies"], strict=True)
        end = value.get("end")
        return replace(
            self,
            method=codec.decode_state(self.method, value["method"]),
            policies=[codec.decode_state(first, own) for first, own in rules],
            open=value["open"],
            ended=value["ended"],
            over=value["over"],
            heard=value["heard"],
            asked=value.get("asked"),
            end=None if end is None else PolicyEnd(**end),
            shown=value.get("shown", {}),
        )


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

    A trial that breaks a hard constraint ends before anybody sees the report that says so. The
    first report of a trial that breaks one of mode ``stop`` halts the experiment: once its user has
    seen it and resumes the experiment, the trial goes on, behind those that break none.

    Attributes:
        slots: of each trial.
        goals: objectives and constraints; None where the metric is all.
        limits: how far the search goes by its config; None where nobody will ask for more.
        rules: ``searcher.stopping_version``.
        begin_at: how far what trials begin from is, where they begin from one checkpoint.
    """

    method: Method[Any]
    policies: Sequence[tuple[str, TrialRule[Any]]]
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

    def initial(self) -> SupervisedState:
        policies = [policy.initial() for _, policy in self.policies]
        asked = _extent(self.limits) if self.rules > 1 and self.limits is not None else None
        return SupervisedState(self.method.initial(), policies, asked=asked)

    def on_event(
        self, state: SupervisedState, event: Event
    ) -> tuple[SupervisedState, list[Action]]:
        """Ignore trials that a rule has ended, and all events after it has ended the search."""
        match event:
            case Report() if state.over:
                self._keep(state, event)
                return state, []
            case Report(trial=trial) if str(trial) in state.ended:
                return state, []
            case Report():
                return state, self._report(state, event)
            case SegmentEnd(trial=trial):
                state.open.pop(str(trial), None)
                if state.over:
                    self._keep(state, event)
                    return state, []
                if state.ended.pop(str(trial), False):
                    return state, []
            case Limits():
                further = state.asked is not None and _further(_extent(event), state.asked)
                if state.asked is not None:
                    state.asked = _extent(event)
                if state.over and state.end is not None and further:
                    return self._reopen(state, state.end, event)
                if state.over:
                    return state, []
        return state, self._tell(state, event)

    def _report(self, state: SupervisedState, report: Report) -> list[Action]:
        metrics, length = report.metrics, report.length.value
        broken, feasible = self._broken(report, "hard"), True
        if broken:
            return [Stop(report.trial, broken), *self._end(state, report.trial, "violated")]
        if self.goals is not None:
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
        state.heard = state.heard or self.metric in report.metrics
        ends, asks, by = {"trial": "", "search": ""}, list[Action](), list[int]()
        judges = zip(self.policies, state.policies, strict=True)
        for place, ((name, policy), own) in enumerate(judges):
            why = policy.judge(own, seen)
            if why and not state.heard and name not in WITHOUT_METRIC:
                state.heard = True  # asked once
                what = f"trial {seen.trial} would end by {name}, but nobody has ever reported"
                asks.append(Ask(f"{what} {self.metric!r} as a number of its validations"))
            elif why and not asks:
                ends[policy.scope] = ends[policy.scope] or f"{name}: {why}"
                by += [place] if policy.scope == "search" else []
        if ends["search"]:
            state.over = True
            if state.asked is not None:
                gone = [int(trial) for trial in state.open]
                state.end = PolicyEnd(by, gone, [codec.encode_event(report)], ends["search"])
            stops = [Stop(int(trial), ends["search"]) for trial in state.open]
            return [*stops, Shutdown(why=ends["search"])]
        actions = [*self._tell(state, report), *asks, *self._halt(state, report)]
        if not ends["trial"]:
            return actions
        others = [a for a in actions if not codec.concerns(a, report.trial)]
        ended = self._end(state, report.trial, "stopped")
        return [Stop(report.trial, ends["trial"]), *others, *ended]

    def _broken(self, report: Report, mode: Mode) -> str:
        """The constraint of a mode that a report breaks, and what shows it; "" if none."""
        one = self.goals and self.goals.broken(report.metrics, report.length.value, mode)
        if not one:
            return ""
        shown = ""
        if one.metric.startswith(RESERVED):
            from hpcdet.policy.memorization.twin_evidence import evidence  # most have no policy

            shown = evidence(one.metric, report.metrics)
        return one.told(report.metrics) + (f" ({shown})" if shown else "")

    def _halt(self, state: SupervisedState, report: Report) -> list[Action]:
        if str(report.trial) in state.shown:
            return []
        broken = self._broken(report, "stop")
        if not broken:
            return []
        state.shown[str(report.trial)] = True
        return [Halt(f"trial {report.trial} breaks {broken}")]

    def _keep(self, state: SupervisedState, event: Report | SegmentEnd) -> None:
        """Remember an event of a trial after a rule has ended the search, which may be undone."""
        end = state.end
        if end is None or event.trial not in end.gone:
            return
        violated = codec.encode_event(SegmentEnd(event.trial, "violated"))
        if violated in end.told:
            return  # it has ended for the searcher
        kept: Event = event
        if isinstance(event, Report):
            broken = self._broken(event, "hard")
            kept = SegmentEnd(event.trial, "violated") if broken else event
        end.told.append(codec.encode_event(kept))

    def _reopen(
        self, state: SupervisedState, end: PolicyEnd, limits: Limits
    ) -> tuple[SupervisedState, list[Action]]:
        """More is asked for than the search was to do when a policy ended it."""
        before = copy.deepcopy(state)
        state.over, state.end = False, None
        for place in end.by:
            policy = self.policies[place][1]
            if isinstance(policy, SearchRule):
                policy.renew(state.policies[place])
        leaving = {str(trial): True for trial in end.gone if str(trial) in state.open}
        told = [event for line in end.told if (event := codec.decode_event(line)) is not None]
        ends: dict[int, str] = {}
        for event in told:
            if isinstance(event, SegmentEnd):
                ends.setdefault(event.trial, event.reason)
        told += [SegmentEnd(trial, "stopped") for trial in end.gone if trial not in ends]
        stopped = [t for t in end.gone if ends.get(t, "stopped") in ("stopped", "violated")]
        meanwhile = list[Action]()
        for event in told:
            if isinstance(event, SegmentEnd):  # what was wanted of it before came to nothing
                meanwhile = [a for a in meanwhile if not codec.concerns(a, event.trial)]
                state.open.pop(str(event.trial), None)
            meanwhile += self._tell(state, event)
        meanwhile = [a for a in meanwhile if not any(codec.concerns(a, t) for t in stopped)]
        for trial in stopped:
            state.open.pop(str(trial), None)
        state.ended |= leaving
        then = self._tell(state, limits)
        if not any(isinstance(action, Create | Continue) for action in meanwhile + then):
            return before, [Shutdown(why=end.why)]
        if any(isinstance(action, Create | Continue) for action in then):
            meanwhile = [action for action in meanwhile if not isinstance(action, Shutdown)]
        return state, meanwhile + then

    def _end(
        self, state: SupervisedState, trial: int, reason: Literal["stopped", "violated"]
    ) -> list[Action]:
        """A trial is over, whatever becomes of it; what the searcher wants then."""
        state.ended[str(trial)] = True
        state.open.pop(str(trial), None)
        return self._tell(state, SegmentEnd(trial, reason))

    def _tell(self, state: SupervisedState, event: Event) -> list[Action]:
        state.method, actions = self.method.on_event(state.method, event)
        for action in actions:
            if isinstance(action, Create | Continue):
                state.open[str(action.trial)] = True
                state.ended.pop(str(action.trial), None)
            if isinstance(action, Create) and action.parent and self.rules > 1:
                self._inherit(state, action)
        return actions

    def _inherit(self, state: SupervisedState, child: Create) -> None:
        parent = Parent.parse(child.parent)
        unit = child.until.unit if child.until is not None else "batches"
        if parent == ORIGIN:
            parent = replace(ORIGIN, length=self.begin_at)
        for (_, policy), own in zip(self.policies, state.policies, strict=True):
            if isinstance(policy, TotalLengthRule) and parent is not None:
                policy.inherit(own, child.trial, parent, unit)


def _extent(limits: Limits) -> list[int | None]:
    length = limits.max_length
    return [limits.max_trials, length.value if length is not None else None]


def _further(now: list[int | None], before: list[int | None]) -> bool:
    """More trials, or longer ones, than before."""
    return any(a is not None and b is not None and a > b for a, b in zip(now, before, strict=True))
