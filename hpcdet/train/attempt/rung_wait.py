"""Waiting at a rung until the search has decided, where the next rung would come before that.

A trial that is to go on is told nothing, so it trains on while the decision on what it has
reported is made. ``searcher.wait_at_rungs_s`` bounds a wait instead: the holder of the lease then
says in a control (``records.Control.heard``) up to which rung it has decided.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hpcdet.process.location import AttemptLocation
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.decisions import wakeup
from hpcdet.train.attempt.control_reader import Wanted
from hpcdet.train.comm.agreement import Cause, Orders, agree
from hpcdet.train.comm.collectives import Peers
from hpcdet.train.telemetry.tracker import Tracker
from hpcdet.units import Length, Unit, Units

_LOOK_S = 0.2


class RungWait:
    """The waits at rungs, as one rank sees them; only rank 0 reads decisions.

    Attributes:
        bound_s: the longest wait at one rung; 0: none.
    """

    def __init__(
        self, place: AttemptLocation, config: Resolved, wanted: Wanted, tracker: Tracker
    ) -> None:
        self.bound_s = config.searcher.wait_at_rungs_s if place.experiment is not None else 0
        self._place, self._wanted, self._tracker = place, wanted, tracker
        self._rung: Length | None = None
        self._next: Length | None = None
        self._begun: tuple[float, Units] | None = None
        self._now: Units | None = None
        self._waited_s = 0.0
        self._past = 0  # the last rung that it has waited at

    def begin(self, units: Units) -> None:
        """Note the end of the attempt's first step: later ones tell the pace of training."""
        self._begun = (time.monotonic(), units)

    def report(self, units: Units, rungs: Sequence[Length]) -> None:
        """Rank 0 has reported a validation: the highest rung behind is what is decided upon.

        Args:
            rungs: ascending; nothing is decided at the last.
        """
        behind = [n for n, rung in enumerate(rungs) if units.reached(rung)]
        self._rung = None
        if self.bound_s and behind and behind[-1] + 1 < len(rungs):
            rung, self._next = rungs[behind[-1]], rungs[behind[-1] + 1]
            self._rung, self._now = rung if rung.value > self._past else None, units

    def due(self) -> bool:
        """Whether a decision is awaited before which, as it seems, the next rung would come."""
        if self._rung is None or self._next is None:
            return False
        if self._wanted.heard >= self._rung.value:
            self._rung = None
            return False
        unit_s = self._unit_s(self._rung.unit)
        return unit_s is None or unit_s * (self._next.value - self._rung.value) <= self.bound_s

    def _unit_s(self, unit: Unit) -> float | None:
        """Seconds of this attempt for one unit of length, validations included; None: unknown."""
        if self._begun is None or self._now is None:
            return None
        since, units = self._begun
        trained = self._now.of(unit) - units.of(unit)
        return (time.monotonic() - since - self._waited_s) / trained if trained > 0 else None

    def wait(self, peers: Peers, leave: Callable[[], Cause | None]) -> Cause | None:
        """Wait until the decision is there, the bound is over or all are to leave: why, then.

        All ranks call together.

        Args:
            leave: why this rank is to leave, looked for again at each call.
        """
        begun = now = time.monotonic()
        rung = self._rung if self.due() else None
        if rung is not None and self._place.experiment is not None:
            wakeup.give(self._place.experiment, f"trial-{self._place.trial.number}")
        while True:
            cause = leave()
            awaited = rung is not None and self._wanted.heard < rung.value
            more = awaited and now - begun < self.bound_s
            agreed = agree(peers, Orders(cause, wait=more))
            if agreed.leave is not None or not agreed.wait:
                break
            time.sleep(_LOOK_S)
            now = time.monotonic()
        if rung is not None:
            self._rung, self._past = None, rung.value
            self._waited_s += now - begun
            outcome = agreed.leave or ("bound" if awaited else "decided")
            seconds = round(now - begun, 3)
            self._tracker.record("waited", rung=rung.value, seconds=seconds, until=outcome)
        return agreed.leave
