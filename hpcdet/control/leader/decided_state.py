"""The decided state of an experiment: the fold over the decisions of all terms.

Pure: no file, no clock. The searcher's state is part of it and is restored by replaying every
recorded event to the searcher.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcdet.control.leader.trial_plan import TrialPlan
from hpcdet.errors import HpcdetError
from hpcdet.search.api import codec, events
from hpcdet.store.config import overrides
from hpcdet.store.folder.records import Action, Control
from hpcdet.store.fs.journal import Line
from hpcdet.store.trials.controls import BY_USER

FOLD = 4
"""To be raised when the same records fold into another state: older snapshots are not read then."""


RECENT = 100
"""So many of the trials that have ended are still of interest for how their nodes are."""


def program(method: events.Method[Any]) -> dict[str, Any]:
    """Identify the program of a snapshot; another one may fold the records differently."""
    return {"fold": FOLD, "searcher": {"name": method.name, "version": method.version}}


@dataclass
class Decided:
    """The decided state of an experiment; ``take`` adds one record of the chain.

    Attributes:
        owed: actions that the searcher wants after the last event, not recorded yet.
        broken: why the searcher failed on an event; it gets no more events until ``resume``.
        asks: what the searcher wants the user to look at; likewise.
        halted: nothing is submitted until ``resume``, and why.
        state: the last ``state`` record, with its why.
        notified: events that a hook has been run for.
        at_once: canceled without saving first.
        overrides: what users have changed of the config, dotted key to value.
        throttles: how many tasks of a job may run at once, where that is not as it was submitted.
        held: what waits in the queue is not to start until ``release``.
        holds: jobs whose hold was changed after they were submitted, and to what.
        follows: folders of the experiments, relative to this one, that have to end well first.
        after: ids of the jobs that have to.
        unsaid: the user has changed the limits of the search, which it has not been told.
        longer: greatest lengths that it has been told instead of the config's, ascending.
        open: numbers of the trials whose end the searcher has not been told.
        given_up: those that were, also if they were given another chance since.
        recent: those that ended last.
        touched: those of which something else may be wanted than their files say.
        submissions: the number of the last one of the experiment that this is a fork of.
        unlaunched: the last tasks that the scheduler could not launch, and canceled or holds
            (``submission``, ``run``, ``nodes``, ``why``).
    """

    method: events.Method[Any]
    search: Any = None
    started: bool = False
    plans: dict[int, TrialPlan] = field(default_factory=dict)
    owed: list[events.Action] = field(default_factory=list)
    shutdown: events.Shutdown | None = None
    broken: str = ""
    asks: str = ""
    halted: str = ""
    paused: bool = False
    canceled: bool = False
    at_once: bool = False
    commands: int = 0
    overrides: dict[str, Any] = field(default_factory=dict)
    state: tuple[str, str] = ("", "")
    notified: set[str] = field(default_factory=set)
    throttles: dict[str, int] = field(default_factory=dict)
    resumed_after: int = 0
    held: bool = False
    holds: dict[str, bool] = field(default_factory=dict)
    follows: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    unsaid: bool = False
    longer: list[int] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    given_up: list[int] = field(default_factory=list)
    recent: list[int] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)
    submissions: int = 0
    unlaunched: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.search = self.method.initial()

    def encode(self) -> dict[str, Any] | None:
        """Return the state as plain JSON; None if the searcher has failed or actions are owed."""
        if self.broken or self.owed:
            return None
        plain = {name: getattr(self, name) for name in _PLAIN}
        shutdown = self.shutdown and codec.encode_action(self.shutdown)
        return {
            **plain,
            "search": codec.encode_state(self.search),
            "plans": [plan.encode() for plan in self.plans.values()],
            "shutdown": shutdown,
            "notified": sorted(self.notified),
            "state": list(self.state),
        }

    @classmethod
    def decode(cls, method: events.Method[Any], value: Mapping[str, Any]) -> Decided:
        """The inverse of ``encode``."""
        found = cls(method)
        for name in _PLAIN & value.keys():
            setattr(found, name, value[name])
        found.search = codec.decode_state(found.search, value["search"])
        found.plans = {plain["number"]: TrialPlan.decode(plain) for plain in value["plans"]}
        shutdown = codec.decode_action(value["shutdown"]) if value["shutdown"] else None
        found.shutdown = shutdown if isinstance(shutdown, events.Shutdown) else None
        found.open = {plan.number for plan in found.plans.values() if not plan.ended}
        # a snapshot was written when what is wanted of those that have ended had been done
        found.touched = set(found.open)
        found.notified = set(value["notified"])
        found.state = (value["state"][0], value["state"][1])
        return found

    def take(self, line: Line) -> None:
        """Add the next record. Kinds that this version does not know change nothing."""
        handler = _HANDLERS.get(line["kind"])
        if handler is not None:
            handler(self, line)

    def hear(self, event: events.Event) -> None:
        """Add the record of an event to the state and pass the event to the searcher."""
        self.owed = []
        if isinstance(event, events.Report):
            self.plans[event.trial].told = event.length.value
            self.touched.add(event.trial)
        elif isinstance(event, events.Start):
            self.started = True
        elif isinstance(event, events.SegmentEnd):
            self.plans[event.trial].ended = event.reason
            self.open.discard(event.trial)
            self.recent = [*self.recent[1 - RECENT :], event.trial]
            self.touched.add(event.trial)
        elif isinstance(event, events.Limits):
            self.unsaid = False
            if event.max_length is not None and overrides.MAX_LENGTH in self.overrides:
                self.longer = sorted({*self.longer, event.max_length.value})
        self._tell(event)

    def control(self, plan: TrialPlan) -> Control:
        """Return the control that should be in force for a trial (without term and time)."""
        action, why = self._wanted(plan)
        now = action == "kill" and plan.now
        return Control(
            action, plan.until, plan.allowed, why, plan.since, list(plan.rewinds), now=now
        )

    def _wanted(self, plan: TrialPlan) -> tuple[Action, str]:
        if plan.failed:
            return "fail", plan.failed
        if plan.killed:
            return "kill", "canceled by its user"
        if plan.searcher == "stop":
            return "stop", plan.why
        if plan.paused or (self.paused and not plan.alone):
            return "pause", BY_USER
        if plan.searcher == "pause" and self.shutdown is not None:
            return "stop", "the search is over"
        if plan.searcher == "pause":
            return "pause", plan.why
        return "run", ""

    @property
    def deaf(self) -> bool:
        """True while the searcher gets no events, until ``resume``."""
        return bool(self.broken or self.asks)

    @property
    def aimless(self) -> bool:
        """True if, with nothing running, no event can come though the search is not over."""
        calm = self.deaf or self.canceled or self.paused or self.unsaid
        if not self.started or self.shutdown is not None or calm:
            return False
        waits = (self.plans[number] for number in self.open)
        return all(p.searcher == "pause" and not (p.paused or p.killed or p.failed) for p in waits)

    @property
    def alone(self) -> list[int]:
        """The trials that run though the experiment as a whole is paused."""
        if not self.paused:
            return []
        return [n for n in sorted(self.open) if self._wanted(self.plans[n])[0] == "run"]

    def action(self, plan: TrialPlan) -> Action:
        """Return the action that the control in force should ask of a trial."""
        return self._wanted(plan)[0]

    def _tell(self, event: events.Event) -> None:
        if self.broken:
            return  # its state is not what was decided any more
        try:
            self.search, actions = self.method.on_event(self.search, event)
            self.owed = list(actions)
        except Exception as error:  # the searcher may be user code
            kind = "" if isinstance(error, HpcdetError) else f"{type(error).__name__}: "
            self.broken = f"searcher {self.method.name}: {kind}{error}"

    def _take_event(self, line: Line) -> None:
        event = codec.decode_event(line["event"])
        if event is not None:
            self.hear(event)

    def _take_action(self, line: Line) -> None:
        action = codec.decode_action(line["action"])
        if self.owed and action is not None:
            self._settle(action)
        if isinstance(action, events.Shutdown) or self.shutdown is not None:
            self.touched |= self.open  # those that are paused go with the search, or stay with it
        if action is not None and not isinstance(action, events.Shutdown | events.Ask):
            self.touched.add(action.trial)
        match action:
            case events.Create(trial, params, seed, until, parent):
                self.shutdown = None
                plan = TrialPlan(trial, dict(params), seed, until, parent, killed=self.canceled)
                self.plans.setdefault(trial, plan)
                self._reopen(trial)
            case events.Continue(trial, until, why):
                self.shutdown = None
                plan = self.plans[trial]
                plan.until = until or plan.until
                plan.searcher, plan.why, plan.ended = "run", why, ""
                self._reopen(trial)
            case events.Pause(trial, why):
                self.plans[trial].searcher, self.plans[trial].why = "pause", why
            case events.Stop(trial, why):
                self.plans[trial].searcher, self.plans[trial].why = "stop", why
            case events.Shutdown() as shutdown:
                self.shutdown = shutdown
            case events.Ask(why):
                self.asks = why

    def _settle(self, recorded: events.Action) -> None:
        """Drop a recorded action, and any that should precede it, from what is owed.

        If the searcher decides differently today, its former version did not want the actions
        that it skipped. One that it took and that is not wanted today replaces the one wanted of
        the same trial, or else the next action. Only a question stays owed, and replaces nothing:
        it changes no trial, and the user has not been asked yet.
        """
        one = codec.subject(recorded)
        place = next((n for n, owed in enumerate(self.owed) if codec.subject(owed) == one), None)
        if place is not None:
            asks = [owed for owed in self.owed[:place] if isinstance(owed, events.Ask)]
            self.owed[: place + 1] = asks
        elif not isinstance(recorded, events.Ask):
            others = [owed for owed in self.owed if not isinstance(owed, events.Ask)]
            replaced = [owed for owed in others if codec.concerns(owed, one[1])] or others[:1]
            self.owed = [owed for owed in self.owed if owed not in replaced]

    def _take_clone(self, line: Line) -> None:
        self.plans[line["trial"]].origin = line["origin"]

    def _take_forked(self, line: Line) -> None:
        self.submissions = line.get("submissions", 0)
        self.longer = list(line.get("longer", ()))

    def _take_adopt(self, line: Line) -> None:
        """Adopt the trials of another experiment; for those that go on, no past failure counts."""
        for text, parent in line["parents"].items():
            plan = self.plans[int(text)]
            plan.parent, plan.origin = parent, None
            plan.failed = plan.given_up = ""
            plan.allowed = plan.base = 0
            plan.ended = ""  # one that was given up and then retried goes on, too
            self._reopen(plan.number)
        for number in line.get("killed", ()):  # as former versions recorded it
            self.plans[number].killed = True
        for text, known in line.get("carried", {}).items():
            for name, value in known.items():
                setattr(self.plans[int(text)], name, value)
        self.given_up = [number for number in self.given_up if self.plans[number].failed]
        self.touched |= self.plans.keys()

    def _take_retry(self, line: Line) -> None:
        plan = self.plans[line["trial"]]
        plan.allowed = line["attempts"]
        self.touched.add(plan.number)
        if "base" in line:  # a user's, as former versions recorded it
            self._begin_again(plan, line["base"])

    def _reopen(self, trial: int) -> None:
        if not self.plans[trial].ended:
            self.open.add(trial)
            self.touched.add(trial)

    def _begin_again(self, plan: TrialPlan, attempts: int) -> None:
        """Let a trial begin again at the user's request: its attempts so far no longer count."""
        plan.allowed, plan.base = attempts + 1, attempts
        plan.ended = plan.failed = plan.given_up = ""
        plan.killed = plan.now = False
        self._reopen(plan.number)

    def _take_fail(self, line: Line) -> None:
        plan = self.plans[line["trial"]]
        plan.failed, plan.given_up = line["why"], line.get("reason", "failed")
        self.given_up.append(plan.number)
        self.touched.add(plan.number)

    def _take_command(self, line: Line) -> None:
        self.commands = line["seq"]
        if line.get("refused"):
            return
        trial, verb, arguments = line.get("trial", 0), line["verb"], line.get("arguments", {})
        chosen = [plan for plan in self.plans.values() if trial in (0, plan.number)]
        self.touched |= self.open | ({trial} & self.plans.keys())
        if verb == "cancel":
            now = bool(arguments.get("now"))
            self.canceled = self.canceled or not trial
            self.at_once = self.at_once or (now and not trial)
            for plan in chosen:
                plan.killed = plan.killed or not plan.ended
                plan.now = plan.now or (now and plan.killed)
        elif verb in ("pause", "resume"):
            for plan in chosen:
                plan.paused = bool(trial) and verb == "pause"
                plan.alone = bool(trial) and verb == "resume" and self.paused
            if not trial:
                self.paused = verb == "pause"
        elif verb in ("hold", "release"):
            self.held = verb == "hold"
        elif verb == "after":
            self.follows += arguments.get("experiments", [])
            self.after += arguments.get("jobs", [])
        if verb == "resume" and not trial:
            self.follows, self.after = [], []  # a user who resumes it wants it now
        if verb in ("resume", "retry"):
            self.halted = self.asks = ""
            self.resumed_after = line.get("submissions", 0)
        self._change(line, verb, arguments)

    def _change(self, line: Line, verb: str, arguments: Mapping[str, Any]) -> None:
        """Apply a command's changes of the config, the nodes, and where its trials go on from."""
        changed = overrides.asked(verb, arguments)
        self.overrides = {**self.overrides, **changed}
        self.unsaid = self.unsaid or not overrides.OF_SEARCH.isdisjoint(changed)
        for number, attempts in line.get("again", ()):
            self._begin_again(self.plans[number], attempts)
        for number, name, attempt in line.get("rewinds", ()):
            self.plans[number].rewinds.append([name, attempt])
        if any(key in overrides.LATER for key in changed):
            # an allocation that was asked for before is not what these trials want now
            for number in line.get("trials", ()):
                self.plans[number].since = line.get("submissions", 0) + 1
                self.touched.add(number)

    def _take_held(self, line: Line) -> None:
        self.holds[line["job"]] = line["on"]

    def _take_unlaunched(self, line: Line) -> None:
        keys = ("submission", "run", "nodes", "why")
        self.unlaunched = [*self.unlaunched[1 - RECENT :], {key: line[key] for key in keys}]

    def _take_state(self, line: Line) -> None:
        self.state = (line["state"], line.get("why", ""))
        if line.get("by") == "scheduler":
            self.halted = line["why"]

    def _take_notify(self, line: Line) -> None:
        self.notified.add(line["event"])

    def _take_throttle(self, line: Line) -> None:
        self.throttles[line["job"]] = line["running"]


_OTHERWISE = {"method", "search", "owed", "broken", "plans", "shutdown", "notified", "state"}
_OTHERWISE |= {"open", "touched"}
_PLAIN = {each.name for each in dataclasses.fields(Decided)} - _OTHERWISE

_HANDLERS: dict[str, Callable[[Decided, Line], None]] = {
    "event": Decided._take_event,
    "action": Decided._take_action,
    "clone": Decided._take_clone,
    "forked": Decided._take_forked,
    "adopt": Decided._take_adopt,
    "retry": Decided._take_retry,
    "fail": Decided._take_fail,
    "command": Decided._take_command,
    "held": Decided._take_held,
    "unlaunched": Decided._take_unlaunched,
    "state": Decided._take_state,
    "notify": Decided._take_notify,
    "throttle": Decided._take_throttle,
}
