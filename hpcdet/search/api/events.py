"""Events for searchers and actions from them.

A searcher does no I/O, reads no clock and no global random numbers; its state is JSON. The same
events in the same order give the same actions, on any machine, so its state is the replay of
the decisions journal. Unknown events are ignored. That an attempt was preempted, lost or ran out
of time is no event: the trial goes on elsewhere, and its reports come as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from hpcdet.units import Length

State = dict[str, Any]
S = TypeVar("S")


@dataclass(frozen=True)
class Start:
    """The search begins. Always the first event, once."""


@dataclass(frozen=True)
class Report:
    """A trial reported validation metrics after ``length`` of training.

    The lengths of one trial are told in ascending order, each once. ``seconds``: slot-seconds
    that its attempts have taken up to then, stretches that had to be trained again included.
    """

    trial: int
    length: Length
    metrics: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class SegmentEnd:
    """A trial will not train further by itself.

    ``reason``: ``target`` (reached the length asked for), ``stopped`` (as a ``Stop`` asked),
    ``failed`` (``max_restarts`` used up), ``invalid_hp``, ``user_exit`` (the code ended by
    itself before the target), ``canceled``, ``violated`` (it broke a hard constraint: nothing that
    it has shown counts).
    """

    trial: int
    reason: Literal[
        "target", "stopped", "failed", "invalid_hp", "user_exit", "canceled", "violated"
    ]


@dataclass(frozen=True)
class Limits:
    """The user has changed how far the search goes: the values that hold from now on.

    A search that is over may open again: ``Create`` or ``Continue`` after a ``Shutdown`` takes
    that back. ``max_concurrent`` 0 means no limit, ``max_length`` None that the code decides.
    """

    max_trials: int
    max_concurrent: int
    max_length: Length | None = None


Event = Start | Report | SegmentEnd | Limits


@dataclass(frozen=True)
class Create:
    """Make trial ``trial`` (numbered from 1 by the searcher) and train it until ``until``.

    ``until`` is None where the config has no length: the user's code knows when it is done.
    ``parent``: an earlier trial from whose checkpoint it begins, as ``3@400 batches``
    (``store.trials.parents``); its lengths go on from there.
    """

    trial: int
    params: Mapping[str, Any]
    seed: int
    until: Length | None
    parent: str = ""
    why: str = ""


@dataclass(frozen=True)
class Continue:
    """Train a trial that was paused, or reached its target, further, until ``until``.

    ``until`` None is as far as was asked for before: one that has been trained that far ends
    again at once.
    """

    trial: int
    until: Length | None
    why: str = ""


@dataclass(frozen=True)
class Pause:
    """Save a running trial and free its place; ``Continue`` brings it back.

    It does not run from this moment on; what it reports while it leaves is told all the same.
    """

    trial: int
    why: str = ""


@dataclass(frozen=True)
class Stop:
    """End a trial for good."""

    trial: int
    why: str = ""


@dataclass(frozen=True)
class Shutdown:
    """The search is over once no trial is running.

    Those that are paused end as ``stopped`` then. ``failed`` is true when no trial succeeded.
    """

    failed: bool = False
    why: str = ""


@dataclass(frozen=True)
class Ask:
    """Something looks so wrong that a person should look at it before more is spent.

    The experiment is paused with these words: trials go on as they were told to, and nothing is
    told to the searcher, until ``hpcdet resume``. Then it goes on as if nothing had been asked.
    """

    why: str


@dataclass(frozen=True)
class Halt(Ask):
    """Ask as ``Ask`` does, while all trials save and leave."""


Action = Create | Continue | Pause | Stop | Shutdown | Ask


class Method(Protocol[S]):
    """A search method whose state is an ``S``: JSON, or a ``codec.StateRecord`` of it.

    ``name`` and ``version`` are recorded with its decisions.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    def initial(self) -> S:
        """State before the first event."""

    def on_event(self, state: S, event: Event) -> tuple[S, list[Action]]:
        """The state after an event and what the searcher wants now.

        ``state`` may be changed in place; after an exception it is not used any more.
        """


class Searcher(Method[State], Protocol):
    """A search method whose state is plain JSON, as those of users are."""
