"""Turns of the crank by a worker, so that the search needs no process on a login node."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from hpcdet.control.turn import controller
from hpcdet.site import Site
from hpcdet.store.decisions import lease, wakeup
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import journal
from hpcdet.worker.allocation.notice import Notices
from hpcdet.worker.turns.storage_retry import insist, within

_LOCAL_S = 1.0
_LOOK_S = 10.0
_AFTER_ERROR_S = 30.0
_LONGEST_S = 300.0
"""More than a hook, a command of the scheduler and the last tidying up take, each at its limit."""


@dataclass(frozen=True)
class _Outcome:
    """The outcome of a turn.

    Attributes:
        ours: this worker held the lease, or the experiment is over.
        closes: the turn was ours and has closed the experiment.
        strands: as ``controller.Turn.strands``.
    """

    ours: bool
    closes: bool = False
    failed: bool = False
    actions: tuple[str, ...] = ()
    strands: bool = False


class WorkerCrank:
    """Turns the crank every few seconds while no other process holds the lease.

    Where workers cannot submit, the login daemon turns it; without one, workers do all but the
    submitting.

    Turns are made in a thread of their own, which alone owns the holder and its files: a hook or
    a scheduler command may hang for minutes, and ranks must be told to leave meanwhile. The worker
    only requests turns, and waits for one only where it needs the outcome.

    The scheduler is not asked more often because of this: its answers are shared by all processes
    of the user (``schedulers.common.polling``).

    Attributes:
        every_s: seconds between looks.
        closed: a turn of this worker has closed the experiment.
    """

    def __init__(
        self, paths: ExperimentPaths, site: Site, log: journal.Writer, notices: Notices
    ) -> None:
        self._paths = paths
        self._log = log
        self._who = log.path.parent.name
        self._notices = notices
        can = site.capabilities
        self._submits = can.submit_from_compute
        # where no process can submit later, workers decide all the same
        self._allowed = can.submit_from_compute or can.nobody_submits
        self.every_s = min(_LOOK_S, max(_LOCAL_S, site.limits.poll_min_s))
        self._ttl_s = site.lease_ttl_s
        self._kill_wait_s = site.limits.kill_wait_s
        self.closed = False
        self._next = 0.0
        self._asked = 0
        self._made = 0
        self._last = _Outcome(False)
        self._turner: _Turner | None = None
        self._waits = False
        self._nudged_at = 0.0

    @property
    def decides(self) -> bool:
        """True if this worker held the lease at its last turn."""
        return self._last.ours

    @property
    def turns(self) -> int:
        """The number of turns made so far; after a change there may be new work."""
        self._collect()
        return self._made

    def turn(self, *, now: bool = False) -> None:
        """Request a turn if one is due or wanted ``now``; never waits for it.

        It looks at the trials that nudges tell of, as who begins or ends an attempt leaves one.

        An error in a turn concerns the search, not the running trial: it goes to the job's log,
        and the turn is tried again later.
        """
        self._collect()
        if now and not self._allowed:
            wakeup.give(self._paths, self._who)
        self._waits = self._waits or now
        now = now or self._is_nudged()
        behind = self._asked - self._made
        due = time.monotonic() >= self._next and not behind
        # the first of two has begun, perhaps too early to see why this one is asked for
        if self._allowed and (due or (now and behind < 2)):
            self._ask()

    def _is_nudged(self) -> bool:
        """True if another worker has left a nudge while this worker holds the lease."""
        if not self.decides or time.monotonic() < self._nudged_at:
            return False
        self._nudged_at = time.monotonic() + wakeup.EVERY_S
        return wakeup.take(self._paths)

    def turned(self, limit_s: float = _LONGEST_S) -> bool:
        """Request a turn of all trials and wait for its end; True if this worker made it.

        Args:
            limit_s: seconds to wait at most; after a notice half of the time until the
                scheduler kills, as there is more to do than this.
        """
        if not self._allowed:
            return False
        ticket = self._ask(everything=True)
        over = self._wait(lambda: self._made >= ticket, min(limit_s, _LONGEST_S))
        return over and self._last.ours

    def last_turn(self) -> bool:
        """Ensure that a turn follows this worker's end, as it may be the last worker.

        A holder that was killed keeps the lease until it expires: wait for that, or for a sign
        that the holder lives and will see the end itself. After a notice there is time for one
        turn only.

        Returns:
            False if trials may wait for a worker that could not be submitted.
        """
        if not self._allowed:
            return True
        try:
            return self._last_turn()
        except OSError:  # the storage stays unavailable
            return False

    def _last_turn(self) -> bool:
        left_s = within(self._ttl_s + self.every_s, self._notices.heard)
        before = insist(lambda: lease.last(self._paths), left_s)
        while not self.turned() and left_s() > 0:
            with contextlib.suppress(OSError):  # who cannot look does not know
                if lease.last(self._paths) != before:
                    return True
            self._notices.wait(self.every_s)
        return self._last.ours and not self._last.strands

    def close(self) -> None:
        """Release the lease, so that the next holder need not wait for it to expire.

        A turn that hangs is abandoned after its time limit; the lease then expires.
        """
        if self._turner is not None:
            self._turner.end()
            self._wait(self._turner.ended.is_set, _LONGEST_S)
            self._collect()

    def _ask(self, *, everything: bool = False) -> int:
        if self._turner is None:
            self._turner = _Turner(self._paths, self._submits, self._notices.wake)
        self._next = time.monotonic() + self.every_s
        self._asked += 1
        self._turner.ask(everything=everything)
        return self._asked

    def _wait(self, over: Callable[[], bool], limit_s: float) -> bool:
        began = time.monotonic()
        while not over():
            limit = min(limit_s, self._kill_wait_s / 2) if self._notices.heard() else limit_s
            left = began + limit - time.monotonic()
            if left <= 0:
                return False
            self._notices.wait(left)
            self._collect()
        return True

    def _collect(self) -> None:
        """Journal the thread's outcomes here, as the worker's journal has one writer."""
        while self._turner is not None and (outcome := self._turner.outcome()) is not None:
            self._made += 1
            self._last = outcome
            self.closed = self.closed or outcome.closes
            if self._waits and not (outcome.ours or outcome.failed):
                wakeup.give(self._paths, self._who)
            self._waits = self._waits and outcome.failed
            if outcome.failed:
                self._next = time.monotonic() + max(_AFTER_ERROR_S, self.every_s)
            if outcome.actions:
                with contextlib.suppress(OSError):  # for people only
                    self._log.append("turn", actions=outcome.actions)


class _Turner:
    """The thread that makes the turns; a daemon thread, so that a hung turn blocks no exit.

    Args:
        submits: the holder may submit, too.
        wake: called from the thread after each turn, and at its end.
    """

    def __init__(self, paths: ExperimentPaths, submits: bool, wake: Callable[[], None]) -> None:
        self.ended = threading.Event()
        self._paths = paths
        self._submits = submits
        self._wake = wake
        self._wishes: queue.SimpleQueue[bool | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._holder: controller.Holder | None = None
        threading.Thread(target=self._run, name="crank", daemon=True).start()

    def ask(self, *, everything: bool) -> None:
        """Request a turn. ``everything``: as of ``controller.advance``."""
        self._wishes.put(everything)

    def end(self) -> None:
        self._wishes.put(None)

    def outcome(self) -> _Outcome | None:
        """Return the outcome of the next finished turn; None if there is none yet."""
        with contextlib.suppress(queue.Empty):
            return self._outcomes.get_nowait()
        return None

    def _run(self) -> None:
        try:
            while (everything := self._wishes.get()) is not None:
                self._outcomes.put(self._turn(everything))
                self._wake()
            if self._holder is not None:
                self._holder.close()
        finally:
            self.ended.set()
            self._wake()

    def _turn(self, everything: bool) -> _Outcome:
        try:
            if self._holder is None:
                self._holder = controller.Holder.open(self._paths, "worker", submits=self._submits)
            turn = controller.advance(self._paths, self._holder, everything=everything)
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return _Outcome(False, failed=True)
        closes = turn.held and turn.closed
        ours = turn.held or turn.closed
        return _Outcome(ours, closes, actions=turn.actions, strands=turn.strands)
