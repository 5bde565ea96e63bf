"""The decided state of an experiment: the fold over the decisions of all terms.

Pure: no file, no clock. The searcher's state is part of it and is restored by replaying every
recorded event to the searcher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcdet.control.leader.decided_parts import JobsPart, SearcherPart, TrialsPart, UserPart
from hpcdet.control.leader.trial_plan import TrialPlan
from hpcdet.errors import HpcdetError, IntegrityError
from hpcdet.search.api import codec, events
from hpcdet.search.api.codec import PART, PASSING
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
class Decided(codec.StateRecord):
    """The decided state of an experiment; ``take`` adds one record of the chain.

    Attributes:
        state: the last ``state`` record, with its why.
        notified: events that a hook has been run for.
    """

    method: events.Method[Any] = field(metadata=PASSING)
    searcher: SearcherPart = field(init=False, metadata=PART)
    trials: TrialsPart = field(default_factory=TrialsPart, metadata=PART)
    user: UserPart = field(default_factory=UserPart, metadata=PART)
    jobs: JobsPart = field(default_factory=JobsPart, metadata=PART)
    state: tuple[str, str] = ("", "")
    notified: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.searcher = SearcherPart(self.method.initial())

    def encode(self) -> dict[str, Any] | None:
        """Return the state as plain JSON; None if the searcher has failed or actions are owed."""
        if self.searcher.broken or self.searcher.owed:
            return None
        return {**super().encode(), "notified": sorted(self.notified), "state": list(self.state)}

    def decode(self, value: Mapping[str, Any]) -> Decided:
        """The inverse of ``encode``."""
        found = Decided(self.method)
        found.searcher = self.searcher.decode(value)
        found.trials, found.user = self.trials.decode(value), self.user.decode(value)
        found.jobs = self.jobs.decode(value)
        found.state, found.notified = (value["state"][0], value["state"][1]), set(value["notified"])
        return found

    def take(self, line: Line) -> None:
        """Add the next record. Kinds that this version does not know change nothing.

        Raises:
            IntegrityError: it is about a trial that no record before it made.
        """
        handler = _HANDLERS.get(line["kind"])
        if handler is None:
            return
        try:
            handler(self, line)
        except KeyError as error:
            trial = line.get("trial", line.get("event", {}).get("trial"))
            if error.args != (trial,):
                raise
            what = f"a {line['kind']} of trial {trial} is recorded, and not that it was made"
            hint = "put the records back from a backup"
            raise IntegrityError(what, where="decisions", hint=hint) from error

    def hear(self, event: events.Event) -> None:
        """Add the record of an event to the state and pass the event to the searcher."""
        self.searcher.owed = []
        if isinstance(event, events.Report):
            self.trials.plans[event.trial].told = event.length.value
            self.trials.touched.add(event.trial)
        elif isinstance(event, events.Start):
            self.searcher.started = True
        elif isinstance(event, events.SegmentEnd):
            self.trials.plans[event.trial].ended = event.reason
            self.trials.open.discard(event.trial)
            self.trials.recent = [*self.trials.recent[1 - RECENT :], event.trial]
            self.trials.touched.add(event.trial)
        elif isinstance(event, events.Limits):
            self.searcher.unsaid = False
            if event.max_length is not None and overrides.MAX_LENGTH in self.user.overrides:
                self.searcher.longer = sorted({*self.searcher.longer, event.max_length.value})
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
        if plan.paused or (self.user.paused and not plan.alone):
            return "pause", BY_USER
        if self.searcher.halts:
            return "pause", self.searcher.asks
        if plan.searcher == "pause" and self.searcher.shutdown is not None:
            return "stop", "; ".join(filter(None, (plan.why, "the search is over")))
        if plan.searcher == "pause":
            return "pause", plan.why
        return "run", ""

    @property
    def aimless(self) -> bool:
        """True if, with nothing running, no event can come though the search is not over."""
        calm = self.searcher.deaf or self.user.canceled or self.user.paused or self.searcher.unsaid
        if not self.searcher.started or self.searcher.shutdown is not None or calm:
            return False
        waits = (self.trials.plans[number] for number in self.trials.open)
        return all(p.searcher == "pause" and not (p.paused or p.killed or p.failed) for p in waits)

    @property
    def alone(self) -> list[int]:
        """The trials that run though the experiment as a whole is paused."""
        if not self.user.paused:
            return []
        plans = (self.trials.plans[number] for number in sorted(self.trials.open))
        return [plan.number for plan in plans if self.action(plan) == "run"]

    def action(self, plan: TrialPlan) -> Action:
        """Return the action that the control in force should ask of a trial."""
        return self._wanted(plan)[0]

    def _tell(self, event: events.Event) -> None:
        if self.searcher.broken:
            return  # its state is not what was decided any more
        try:
            self.searcher.search, actions = self.method.on_event(self.searcher.search, event)
            self.searcher.owed = list(actions)
        except Exception as error:  # the searcher may be user code
            kind = "" if isinstance(error, HpcdetError) else f"{type(error).__name__}: "
            self.searcher.broken = f"searcher {self.method.name}: {kind}{error}"

    def _take_event(self, line: Line) -> None:
        event = codec.decode_event(line["event"])
        if event is not None:
            self.hear(event)

    def _take_action(self, line: Line) -> None:
        action = codec.decode_action(line["action"])
        if self.searcher.owed and action is not None:
            self._settle(action)
        if isinstance(action, events.Shutdown) or self.searcher.shutdown is not None:
            # those that are paused go with the search, or stay with it
            self.trials.touched |= self.trials.open
        if isinstance(action, events.Shutdown):  # of a search made longer: those that had gone
            plans = self.trials.plans.values()
            self.trials.touched |= {plan.number for plan in plans if plan.searcher == "pause"}
        if action is not None and not isinstance(action, events.Shutdown | events.Ask):
            self.trials.touched.add(action.trial)
        match action:
            case events.Create(trial, params, seed, until, parent):
                self.searcher.shutdown = None
                killed = self.user.canceled
                plan = TrialPlan(trial, dict(params), seed, until, parent, killed=killed)
                self.trials.plans.setdefault(trial, plan)
                self.trials.reopen(trial)
            case events.Continue(trial, until, why):
                self.searcher.shutdown = None
                plan = self.trials.plans[trial]
                plan.until = until or plan.until
                plan.searcher, plan.why, plan.ended = "run", why, ""
                self.trials.reopen(trial)
            case events.Pause(trial, why):
                self.trials.plans[trial].searcher, self.trials.plans[trial].why = "pause", why
            case events.Stop(trial, why):
                self.trials.plans[trial].searcher, self.trials.plans[trial].why = "stop", why
            case events.Shutdown() as shutdown:
                self.searcher.shutdown = shutdown
            case events.Ask(why):
                self.searcher.asks = why
                self.searcher.halts = isinstance(action, events.Halt)
                self.trials.touched |= self.trials.open if self.searcher.halts else set()

    def _settle(self, recorded: events.Action) -> None:
        """Drop a recorded action, and any that should precede it, from what is owed.

        If the searcher decides differently today, its former version did not want the actions
        that it skipped. One that it took and that is not wanted today replaces the one wanted of
        the same trial, or else the next action. Only a question stays owed, and replaces nothing:
        it changes no trial, and the user has not been asked yet.
        """
        one, owed = codec.subject(recorded), self.searcher.owed
        place = next((n for n, each in enumerate(owed) if codec.subject(each) == one), None)
        if place is not None:
            owed[: place + 1] = [each for each in owed[:place] if isinstance(each, events.Ask)]
        elif not isinstance(recorded, events.Ask):
            others = [each for each in owed if not isinstance(each, events.Ask)]
            replaced = [each for each in others if codec.concerns(each, one[1])] or others[:1]
            self.searcher.owed = [each for each in owed if each not in replaced]

    def _take_clone(self, line: Line) -> None:
        self.trials.plans[line["trial"]].origin = line["origin"]

    def _take_forked(self, line: Line) -> None:
        self.jobs.submissions = line.get("submissions", 0)
        self.searcher.longer = list(line.get("longer", ()))

    def _take_adopt(self, line: Line) -> None:
        """Adopt the trials of another experiment; for those that go on, no past failure counts."""
        for text, parent in line["parents"].items():
            plan = self.trials.plans[int(text)]
            plan.parent, plan.origin = parent, None
            plan.failed = plan.given_up = ""
            plan.allowed = plan.base = 0
            plan.ended = ""  # one that was given up and then retried goes on, too
            self.trials.reopen(plan.number)
        for number in line.get("killed", ()):  # as former versions recorded it
            self.trials.plans[number].killed = True
        for text, known in line.get("carried", {}).items():
            for name, value in known.items():
                setattr(self.trials.plans[int(text)], name, value)
        given_up = self.trials.given_up
        self.trials.given_up = [n for n in given_up if self.trials.plans[n].failed]
        self.trials.touched |= self.trials.plans.keys()

    def _take_retry(self, line: Line) -> None:
        plan = self.trials.plans[line["trial"]]
        plan.allowed = line["attempts"]
        self.trials.touched.add(plan.number)
        if "base" in line:  # a user's, as former versions recorded it
            self.trials.begin_again(plan.number, line["base"])

    def _take_fail(self, line: Line) -> None:
        plan = self.trials.plans[line["trial"]]
        plan.failed, plan.given_up = line["why"], line.get("reason", "failed")
        self.trials.given_up.append(plan.number)
        self.trials.touched.add(plan.number)

    def _take_command(self, line: Line) -> None:
        self.user.commands = line["seq"]
        if line.get("refused"):
            return
        trial, verb, arguments = line.get("trial", 0), line["verb"], line.get("arguments", {})
        chosen = [plan for plan in self.trials.plans.values() if trial in (0, plan.number)]
        self.trials.touched |= self.trials.open | ({trial} & self.trials.plans.keys())
        if verb == "cancel":
            now = bool(arguments.get("now"))
            self.user.canceled = self.user.canceled or not trial
            self.user.at_once = self.user.at_once or (now and not trial)
            for plan in chosen:
                plan.killed = plan.killed or not plan.ended
                plan.now = plan.now or (now and plan.killed)
        elif verb in ("pause", "resume"):
            for plan in chosen:
                plan.paused = bool(trial) and verb == "pause"
                plan.alone = bool(trial) and verb == "resume" and self.user.paused
            if not trial:
                self.user.paused = verb == "pause"
        elif verb in ("hold", "release"):
            self.user.held = verb == "hold"
        elif verb == "after":
            self.user.follows += arguments.get("experiments", [])
            self.user.after += arguments.get("jobs", [])
        if verb == "resume" and not trial:
            self.user.follows, self.user.after = [], []  # a user who resumes it wants it now
        if verb in ("resume", "retry"):
            self.jobs.halted = self.searcher.asks = ""
            self.searcher.halts = False
            self.user.resumed_after = line.get("submissions", 0)
        self._change(line, verb, arguments)

    def _change(self, line: Line, verb: str, arguments: Mapping[str, Any]) -> None:
        """Apply a command's changes of the config, the nodes, and where its trials go on from."""
        changed = overrides.asked(verb, arguments)
        self.user.overrides = {**self.user.overrides, **changed}
        self.searcher.unsaid = self.searcher.unsaid or not overrides.OF_SEARCH.isdisjoint(changed)
        for number, attempts in line.get("again", ()):
            self.trials.begin_again(number, attempts)
        for number, name, attempt in line.get("rewinds", ()):
            self.trials.plans[number].rewinds.append([name, attempt])
        if any(key in overrides.LATER for key in changed):
            # an allocation that was asked for before is not what these trials want now
            for number in line.get("trials", ()):
                self.trials.plans[number].since = line.get("submissions", 0) + 1
                self.trials.touched.add(number)

    def _take_held(self, line: Line) -> None:
        self.jobs.holds[line["job"]] = line["on"]

    def _take_unlaunched(self, line: Line) -> None:
        keys = ("submission", "run", "nodes", "why")
        last = self.jobs.unlaunched[1 - RECENT :]
        self.jobs.unlaunched = [*last, {key: line[key] for key in keys}]

    def _take_state(self, line: Line) -> None:
        self.state = (line["state"], line.get("why", ""))
        if line.get("by") == "scheduler":
            self.jobs.halted = line["why"]

    def _take_notify(self, line: Line) -> None:
        self.notified.add(line["event"])

    def _take_throttle(self, line: Line) -> None:
        self.jobs.throttles[line["job"]] = line["running"]

    def _take_canceled(self, line: Line) -> None:
        self.jobs.cancels.setdefault(line["job"], []).append(line["task"])


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
    "canceled": Decided._take_canceled,
}
