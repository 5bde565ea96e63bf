"""A worker's hand on the crank: the search goes on with nobody at home."""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections.abc import Callable

from hpcdet.control import controller
from hpcdet.site import Site
from hpcdet.store import journal, lease
from hpcdet.store.layout import ExperimentPaths

_LOCAL_S = 1.0
_LOOK_S = 10.0
_AFTER_ERROR_S = 30.0


class Crank:
    """Turns it every few seconds, if nobody else holds the lease.

    Where workers cannot submit this is the login daemon's business; without one, they do all but
    the submitting.

    The scheduler is not asked more often for that: its answers are shared by all processes of
    the user (``schedulers.polling``).

    Attributes:
        every_s: seconds between looks.
    """

    def __init__(self, paths: ExperimentPaths, site: Site, log: journal.Writer) -> None:
        self._paths = paths
        self._log = log
        can = site.capabilities
        self._submits = can.submit_from_compute
        # where nobody submits once the user has gone home, workers decide all the same
        self._allowed = can.submit_from_compute or can.nobody_submits
        self.every_s = min(_LOOK_S, max(_LOCAL_S, site.limits.poll_min_s))
        self._ttl_s = site.lease_ttl_s
        self._next = 0.0
        self._holder: controller.Holder | None = None

    def turn(self, *, now: bool = False) -> bool:
        """A turn, if one is due or asked for ``now``; True if it was ours to make.

        An error in it is the search's trouble, not the running trial's: it is said in the job's
        log, and tried again later.
        """
        if not self._allowed or not (now or time.monotonic() >= self._next):
            return False
        self._next = time.monotonic() + self.every_s
        try:
            if self._holder is None:
                self._holder = controller.Holder.open(self._paths, "worker", submits=self._submits)
            turn = controller.advance(self._paths, self._holder)
        except Exception:
            traceback.print_exc(file=sys.stderr)
            self._next = time.monotonic() + max(_AFTER_ERROR_S, self.every_s)
            return False
        if turn.actions:
            with contextlib.suppress(OSError):  # for people only
                self._log.append("turn", actions=turn.actions)
        return turn.held or turn.closed

    def last_turn(self, wait: Callable[[float], None]) -> None:
        """See to it that somebody turns after this worker's end, which may be the last one's.

        A holder that was killed keeps the lease until its time to live is over: wait for that,
        or for a sign that it lives and will see the end itself.

        Args:
            wait: sleeps, less long if something happens.
        """
        if not self._allowed:
            return
        before = lease.last(self._paths)
        limit = time.monotonic() + self._ttl_s + self.every_s
        while not self.turn(now=True) and time.monotonic() < limit:
            if lease.last(self._paths) != before:
                return
            wait(self.every_s)

    def close(self) -> None:
        """Let the lease go, so that the next one need not wait for it to expire."""
        if self._holder is not None:
            self._holder.close()
            self._holder = None
