"""The holder of the lease: its hands (scheduler, searcher) and its memory."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdet.control.leader.decided_state import Decided
from hpcdet.control.leader.decision_log import DecisionLog
from hpcdet.control.leader.journal_cache import JournalFacts
from hpcdet.control.leader.lost_workers import Watch
from hpcdet.control.leader.trial_cache import Sight
from hpcdet.errors import IntegrityError
from hpcdet.schedulers.common.base import Scheduler, Submission
from hpcdet.search.api import events
from hpcdet.site.models import Site
from hpcdet.store.config import overrides, resolved_config
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.cost.spending import Spending
from hpcdet.store.decisions import chain
from hpcdet.store.decisions.lease import Lease
from hpcdet.store.folder import home
from hpcdet.store.folder.held_folder import Held, hold
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent
from hpcdet.store.trials import history

SWEEP_S = 120.0

LEND_EVERY_S = 600.0
LEND_S = 20.0
"""A holder that cannot submit, and would have to, gives way so often and for so long."""

Build = Callable[[ExperimentPaths, Intent, Resolved, Site], Submission]


class Fenced(Exception):
    """The term is over; no decision made under it may be acted upon any more."""


@dataclass
class Pulse:
    """A callback for long waits in a searcher, by which the holder keeps the lease.

    A beat that the file system refuses raises nothing, as an exception would count as the
    searcher's failure; the next call tries again.
    """

    beat: Callable[[], object] = lambda: None

    def __call__(self) -> None:
        with contextlib.suppress(OSError):
            self.beat()


@dataclass(frozen=True)
class Hands:
    """The tools that a holder acts with, replaceable in tests.

    Attributes:
        build: renders the script of an intent (``jobs.script.submission.build``).
        clock: seconds that never go back; ``sleep`` lets them pass.
        known: recorded hyperparameters of trials, for ``method`` when it is told everything again.
        sweep: removes checkpoints that no rule keeps once an experiment is over.
        pulse: what ``method`` calls while it waits for a process of its own.
        held: the experiment's folder, which these came from.
    """

    resolved: Resolved
    site: Site
    scheduler: Scheduler
    method: events.Method[Any]
    build: Build
    clock: Callable[[], float] = time.monotonic
    known: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    sweep: Callable[[ExperimentPaths], None] | None = None
    pulse: Pulse = field(default_factory=Pulse)
    held: Held | None = None
    sleep: Callable[[float], None] = time.sleep

    @classmethod
    def of(cls, paths: ExperimentPaths) -> Hands:
        """Open the tools that the experiment's files name."""
        from hpcdet.jobs.script import submission
        from hpcdet.schedulers.opening import open_scheduler
        from hpcdet.search.searcher_factory import searcher
        from hpcdet.site_files.load_site import from_resolved

        held = hold(paths.root)  # what is checked is what runs: the program, the hook
        opened = held.paths
        resolved = resolved_config.load(opened.config)
        known: dict[int, Mapping[str, Any]] = {}
        site, pulse = from_resolved(opened.site), Pulse()
        past = history.of(opened)
        return cls(
            resolved,
            site,
            open_scheduler(site),
            searcher(resolved, opened.code, known, site.lease_ttl_s / 2, past, pulse),
            submission.build,
            known=known,
            sweep=functools.partial(_sweep, site.python or sys.executable),
            pulse=pulse,
            held=held,
        )


def _sweep(python: str, paths: ExperimentPaths) -> None:
    """Remove checkpoints in a process of its own, in the tower with torch. Best effort."""
    command = [python, "-Pm", "hpcdet.checkpoint", "sweep", str(paths.root)]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SWEEP_S,
        )


@dataclass
class SchedulerPace:
    """A holder's knowledge of the scheduler; times are by ``Hands.clock``.

    Attributes:
        throttled_until: it is not asked to take jobs before.
        full_until: nor for what it has refused of a kind, `worker`, `sentinel` or `hold`.
        width: widest array that it is asked to take: a limit halves it, and one that is taken
            doubles it; ``widest``: that it takes at all, as far as its refusals tell.
        charges_at: accounting is not asked before.
        unheeded_since: since when running trials are asked to leave.
        took: submissions of which a worker is known to have claimed a trial; ``claims``: the
            attempts, by trial and number, that this is known from.
        kept: jobs that may not begin for a limit of the site, and which.
        full_since: since when no more are submitted for such a limit; "": they are.
        stranded: experiments that could go on now by such a limit, and have no job to do so.
        woke: when those were woken last.
    """

    throttled_until: float = 0.0
    full_until: dict[str, float] = field(default_factory=dict)
    width: int = 1 << 30
    widest: int = 1 << 30
    charges_at: float = 0.0
    unheeded_since: float | None = None
    took: set[int] = field(default_factory=set)
    claims: set[tuple[int, int]] = field(default_factory=set)
    kept: dict[str, str] = field(default_factory=dict)
    full_since: str = ""
    stranded: Sequence[Path] = ()
    woke: dict[Path, float] = field(default_factory=dict)


@dataclass
class Holder:
    """A process that may hold the lease; keep one per process and experiment for all turns.

    Attributes:
        kind: daemon, worker, wait, submit, command and others: who this is.
        hold: submissions are prepared only, for a person to give to the scheduler.
        submits: False where jobs cannot be submitted from: everything else is done.
        unmet: this turn wanted a submission that it may not make.
        left_message: this turn has left a message to be sent.
        actions, sent: what this turn has done, for people; the tasks that it has submitted.
        pace: how the scheduler is dealt with.
        written: what this holder has made sure of in its term, to spare reading it again.
        told_to_leave: trials that are asked for anything but to run.
        to_pack: trials that have ended, and since when that is known; ``packed``: of which nothing
            is left to pack.
        beside: ends what runs beside the turns, with the term.
    """

    paths: ExperimentPaths
    kind: str
    hands: Hands
    hold: bool = False
    submits: bool = True
    unmet: bool = False
    left_message: bool = False
    actions: list[str] = field(default_factory=list)
    sent: int = 0
    pace: SchedulerPace = field(default_factory=SchedulerPace)
    written: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    told_to_leave: set[int] = field(default_factory=set)
    to_pack: dict[int, float] = field(default_factory=dict)
    packed: set[int] = field(default_factory=set)
    beside: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        hands = self.hands
        self.spending = Spending(self.paths, hands.resolved, self.stay)
        self.lease = Lease(self.paths, self.kind, hands.site.lease_ttl_s, hands.clock)
        hands.pulse.beat = self.lease.verify  # not Fenced: a searcher's are its failures
        self._log: DecisionLog | None = None
        self._laid: tuple[dict[str, Any], Resolved] | None = None
        self._unreadable = False
        self._stay_at = 0.0
        self._lends_at = self._lent_until = 0.0
        self._forget()

    @classmethod
    def open(
        cls, paths: ExperimentPaths, kind: str, *, hold: bool = False, submits: bool = True
    ) -> Holder:
        """Open a holder for an experiment from its config and site files.

        Raises:
            ConfigError: the experiment's config or site cannot be read, or names a scheduler
                or searcher that does not exist here.
            UsageError: it is a copy of another one (``store.folder.home``).
        """
        home.refuse_copy(paths)
        return cls(paths, kind, Hands.of(paths), hold, submits)

    @property
    def name(self) -> str:
        return f"{self.kind} {socket.gethostname()}:{os.getpid()}"

    @property
    def decided(self) -> Decided:
        """The decided state; only while the lease is held."""
        return self.log.decided

    @property
    def log(self) -> DecisionLog:
        """The decisions of the term; only while the lease is held."""
        assert self._log is not None
        return self._log

    def begin(self) -> bool:
        """Take or keep the lease; a new term starts from the decisions of all former terms.

        Raises:
            IntegrityError: these cannot be read.
        """
        self.actions = []
        self.sent = 0
        self.unmet = self.left_message = False
        if self.hands.clock() < self._lent_until:
            return False
        if self._unreadable and (why := chain.gap(self.paths)):
            # no term for nothing: each leaves files behind, and others wait for its end
            self.actions.append(why)
            return False
        self._unreadable = False
        if not self.lease.try_acquire():
            self._forget()
            return False
        if self._log is not None and self._log.chain.term == self.lease.term:
            return True
        self._forget()
        hands = self.hands
        self._stay_at = hands.clock() + self.lease.ttl_s / 10
        with _uncollected():
            try:
                self._log = DecisionLog(self.paths, self.lease.term, self.name, self.hands.method)
            except IntegrityError:
                self._unreadable = True
                raise
            self._log.recall(hands.known, self.stay)
        self._log.settle()
        self.commit()
        return True

    def ask_again(self) -> None:
        """Replay all events to a searcher that has failed, as it may have been repaired.

        Raises:
            Fenced: not all of it can be read; the term was left, and none is taken until it can.
        """
        try:
            lines = chain.whole(self.paths)
        except IntegrityError as error:
            self.actions.append(str(error))
            self._unreadable = True
            self.close()
            raise Fenced from error
        self.log.decided = Decided(self.hands.method)
        self.log.fold(lines, self.hands.known, self.stay)
        self.log.settle()
        self.commit()

    def stay(self) -> None:
        """Keep the lease during long work: call it once for each trial in a loop over them.

        Raises:
            Fenced: the term is over.
        """
        now = self.hands.clock()
        if now >= self._stay_at:
            self._stay_at = now + self.lease.ttl_s / 10
            self.commit()  # and others see how far it has come
            if not self.lease.verify():
                self._forget()
                raise Fenced

    @property
    def resolved(self) -> Resolved:
        """The experiment's config with the users' changes."""
        changes = self.decided.user.overrides  # another dict whenever they change
        if self._laid is None or self._laid[0] is not changes:
            self._laid = changes, overrides.lay(self.hands.resolved, changes)
        return self._laid[1]

    def fence(self) -> None:
        """Check the lease right before each side effect. Raises Fenced once the term is over.

        All decisions are durable when this returns.
        """
        self.commit()
        if not self.lease.verify():
            self._forget()
            raise Fenced

    def record(self, kind: str, **fields: Any) -> None:
        """Record a decision: durable when this returns, and part of the decided state."""
        self.log.note(kind, **fields)
        self.commit()

    def tell(self, event: events.Event, **about: Any) -> None:
        """Pass an event to the searcher and record the actions that it wants.

        Durable with the next ``commit``, which every ``fence`` does, as reports are many.
        """
        self.log.tell(event, **about)
        self.stay()

    def commit(self) -> None:
        """Make all decisions durable."""
        if self._log is not None:
            self._log.chain.commit()

    def lend(self) -> None:
        """Release the lease briefly from time to time, for a process that may submit to take it."""
        now = self.hands.clock()
        if now >= self._lends_at:
            self._lends_at, self._lent_until = now + LEND_EVERY_S, now + LEND_S
            self.close()

    def close(self) -> None:
        """Release the lease; the next turn takes it again if it is free then."""
        self._forget()
        with contextlib.suppress(OSError):  # then the term has to expire
            self.lease.release()

    def _forget(self) -> None:
        """Forget all state: what was seen or decided may not have been acted upon."""
        hands = self.hands
        if self._log is not None:
            self._log.chain.close()
        self._log = None
        self.beside.close()
        self.written.clear()
        self.told_to_leave.clear()
        self.to_pack.clear()
        self.packed.clear()
        self.facts = JournalFacts(self.paths, hands.resolved)
        self.sight = Sight(self.paths)
        view = hands.site.view(hands.resolved.resources.resource_pool)
        self.watch = Watch(
            *(self.paths, hands.site, hands.scheduler, hands.clock),
            preemptible=view.bounds.preemptible,
        )


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Disable the garbage collector, which would scan all that is read again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
