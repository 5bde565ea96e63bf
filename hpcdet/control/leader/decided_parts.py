"""The parts of the decided state, by who decides: the searcher, users, and the jobs' holder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from hpcdet.control.leader.trial_plan import TrialPlan
from hpcdet.search.api import codec, events
from hpcdet.search.api.codec import PASSING, StateRecord


@dataclass
class SearcherPart(StateRecord):
    """The decisions of the searcher, and the events that it knows.

    Attributes:
        search: its state.
        shutdown: it has ended the search.
        asks: what it wants the user to look at; it gets no more events until ``resume``.
        halts: trials save and leave until then, too; not in the JSON if they do not.
        unsaid: the user has changed the limits of the search, which it has not been told.
        longer: greatest lengths that it has been told instead of the config's, ascending.
        owed: actions that it wants after the last event, not recorded yet.
        broken: why it failed on an event; it gets no more events until ``resume``.
    """

    search: Any
    started: bool = False
    shutdown: events.Shutdown | None = None
    asks: str = ""
    unsaid: bool = False
    longer: list[int] = field(default_factory=list)
    owed: list[events.Action] = field(default_factory=list, metadata=PASSING)
    broken: str = field(default="", metadata=PASSING)
    halts: bool = False

    def encode(self) -> dict[str, Any]:
        shutdown = codec.encode_action(self.shutdown) if self.shutdown else None
        found = {**super().encode(), "shutdown": shutdown}
        if not self.halts:
            del found["halts"]
        return found

    def decode(self, value: Any) -> Self:
        found = super().decode(value)
        shutdown = codec.decode_action(value["shutdown"]) if value["shutdown"] else None
        found.shutdown = shutdown if isinstance(shutdown, events.Shutdown) else None
        return found

    @property
    def deaf(self) -> bool:
        """True while the searcher gets no events, until ``resume``."""
        return bool(self.broken or self.asks)


@dataclass
class TrialsPart(StateRecord):
    """The plans of all trials.

    Attributes:
        given_up: those that were, also if they were given another chance since.
        recent: those that ended last.
        open: numbers of the trials whose end the searcher has not been told.
        touched: those of which something else may be wanted than their files say.
    """

    plans: dict[int, TrialPlan] = field(default_factory=dict)
    given_up: list[int] = field(default_factory=list)
    recent: list[int] = field(default_factory=list)
    open: set[int] = field(default_factory=set, metadata=PASSING)
    touched: set[int] = field(default_factory=set, metadata=PASSING)

    def encode(self) -> dict[str, Any]:
        return {**super().encode(), "plans": [plan.encode() for plan in self.plans.values()]}

    def decode(self, value: Any) -> Self:
        found = super().decode(value)
        found.plans = {plain["number"]: TrialPlan.decode(plain) for plain in value["plans"]}
        found.open = {plan.number for plan in found.plans.values() if not plan.ended}
        # a snapshot was written when what is wanted of those that have ended had been done
        found.touched = set(found.open)
        return found

    def reopen(self, trial: int) -> None:
        """Let a trial go on that has not ended, or no longer has."""
        if not self.plans[trial].ended:
            self.open.add(trial)
            self.touched.add(trial)

    def begin_again(self, trial: int, attempts: int) -> None:
        """Let a trial begin again at the user's request: its attempts so far no longer count."""
        plan = self.plans[trial]
        plan.allowed, plan.base = attempts + 1, attempts
        plan.ended = plan.failed = plan.given_up = ""
        plan.killed = plan.now = False
        self.reopen(trial)


@dataclass
class UserPart(StateRecord):
    """The wishes of users.

    Attributes:
        commands: number of the last one that was obeyed.
        at_once: canceled without saving first.
        overrides: what they have changed of the config, dotted key to value.
        held: what waits in the queue is not to start until ``release``.
        follows: folders of the experiments, relative to this one, that have to end well first.
        after: ids of the jobs that have to.
        resumed_after: the last submission at the last ``resume`` or ``retry``.
    """

    paused: bool = False
    canceled: bool = False
    at_once: bool = False
    commands: int = 0
    overrides: dict[str, Any] = field(default_factory=dict)
    held: bool = False
    follows: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    resumed_after: int = 0


ALL = -1
"""In ``JobsPart.cancels``: all tasks of a job."""


@dataclass
class JobsPart(StateRecord):
    """The decisions on jobs.

    Attributes:
        halted: nothing is submitted until ``resume``, and why.
        throttles: how many tasks of a job may run at once, where that is not as it was submitted.
        holds: jobs whose hold was changed after they were submitted, and to what.
        submissions: the number of the last one of the experiment that this is a fork of.
        unlaunched: the last tasks that the scheduler could not launch, and canceled or holds
            (``submission``, ``run``, ``nodes``, ``why``).
        cancels: the tasks of jobs that were canceled; ``ALL`` stands for the job.
    """

    halted: str = ""
    throttles: dict[str, int] = field(default_factory=dict)
    holds: dict[str, bool] = field(default_factory=dict)
    submissions: int = 0
    unlaunched: list[dict[str, Any]] = field(default_factory=list)
    cancels: dict[str, list[int]] = field(default_factory=dict)
