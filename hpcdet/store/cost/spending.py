"""The spending of an experiment by its files, and claims that stay within its limits.

A worker writes the claim first, with what it reserves, and then takes the next number under
``reservations/`` by exclusive creation: one order that all processes see. The claim holds if it
fits after those with lower numbers, and is released if not; two simultaneous claims cannot miss
each other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hpcdet.store.config.overrides import Slots
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.cost import limits
from hpcdet.store.cost.attempt_costs import AttemptCosts, Key
from hpcdet.store.cost.budget import Account, Budget, GrantedAllocation, Stretch, Terms, account
from hpcdet.store.cost.charges import Book
from hpcdet.store.cost.cost_records import Reservation, RunLimits
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Claim, End, WorkerClaim, WorkerEnd
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import files, packed


def _nobody() -> None:
    """Do nothing: there is no lease to keep meanwhile."""


@dataclass
class Spending:
    """The reader of one experiment's costs; attempts and workers that have ended are read once.

    ``stay``: called for each trial and worker that is read, to keep the lease meanwhile.
    ``clock``: real seconds, as the times of files are.
    """

    paths: ExperimentPaths
    resolved: Resolved
    stay: Callable[[], None] = _nobody
    clock: Callable[[], float] = time.monotonic
    _left: dict[str, GrantedAllocation] = field(default_factory=dict)
    _under: RunLimits | None = None
    slots: Slots = field(init=False)
    book: Book = field(init=False)
    ledger: AttemptCosts = field(init=False)

    def __post_init__(self) -> None:
        self.slots = Slots(self.paths, self.resolved)
        self.book = Book(self.paths)
        self.ledger = AttemptCosts(
            self.paths, lambda claim, end: stretch(claim, end, self.slots), self.stay, self.clock
        )

    @property
    def limits(self) -> RunLimits:
        """The limits in force now."""
        return limits.in_force(self.paths, self.resolved)

    def terms(self, limits: RunLimits) -> Terms:
        """Return the terms on which trials begin under these limits."""
        budget = Budget(limits.slot_hours, limits.wall_s)
        resolved = self.resolved
        return Terms(budget, resolved.resources.slots_per_trial, resolved.worker.min_segment_s)

    def account(self, now: float | None = None) -> Account:
        """Return the balance; ``now`` in epoch seconds."""
        now = time.time() if now is None else now
        found = self._stretches().values()
        return account(found, self._allocations(), now, self.book.read())

    def room(self) -> float:
        """Return how many more trials the budget lets begin; infinity without one."""
        terms = self.terms(self.limits)
        if not terms.budget:
            return math.inf
        return terms.room(self.account(), time.time()) if terms.budget else math.inf

    def admit(self, end_at: float | None, now: float) -> float | None:
        """Return the slot-seconds that one more claim would reserve; infinity without any bound.

        None: no trial may begin now. 0: only the number of concurrent trials is limited.

        Args:
            end_at: when the allocation ends, epoch seconds; None: it does not.
            now: epoch seconds that the claim will carry: ``keep`` judges the claim as of then, as
                waiting workers cost something at every moment.
        """
        limits = self.limits
        terms, most = self.terms(limits), limits.max_concurrent_trials
        if not terms.budget and not most:
            return math.inf
        account = self.account(now)
        if most and account.running >= most:
            return None
        if not terms.budget:
            return 0.0
        left_s = math.inf if end_at is None else end_at - now
        waiting = 1 if terms.budget.slot_hours is None else self.ledger.waiting()
        seconds = terms.grant(account, waiting, left_s, now)
        return seconds * terms.slots if seconds > 0 else None

    def keep(self, attempt: AttemptPaths, claim: Claim) -> bool:
        """True if a claim that was just made holds; if not, it has been released."""
        limits = self.limits
        if not (self.terms(limits).budget or limits.max_concurrent_trials):
            return True
        mine = Reservation(attempt.trial, attempt.number, claim.worker, files.now())
        number = max(packed.numbers(self.paths.reservation(0).parent, ".json"), default=0) + 1
        while not mine.write_once(self.paths.reservation(number)):
            number += 1
        who = (attempt.trial, attempt.number)
        before = self._account_before(number, who, epoch(claim.at))
        most = limits.max_concurrent_trials
        reserved = claim.reserved_slot_s or 0.0
        fits = before is not None and self.terms(limits).fits(before, reserved)
        if fits and before is not None and not (most and before.running >= most):
            return True
        why = "others were first to claim what the limits leave"
        End("released", error=why, closed_by=claim.worker, at=files.now()).write_once(attempt.end)
        return False

    def _account_before(self, number: int, mine: Key, now: float) -> Account | None:
        """Return the balance before a reservation; None if an earlier one is not visible yet."""
        if not self.ledger.hear(number - 1):
            return None
        found = self._stretches()
        before = self.ledger.reserved[: number - 1]
        earlier = {(record.trial, record.attempt) for record in before}
        if not all(self.ledger.late(key, found) for key in earlier):
            return None
        counted = [
            stretch
            for key, stretch in found.items()
            if key != mine
            and (stretch.end is not None or stretch.reserved_slot_s is None or key in earlier)
        ]
        return account(counted, self._allocations(), now, self.book.read())

    def _stretches(self) -> dict[Key, Stretch]:
        if (under := self.limits) != self._under:
            self._under = under
            self.ledger.doubt()  # perhaps there was none before, and claims had no numbers
        return self.ledger.stretches()

    def _allocations(self) -> list[GrantedAllocation]:
        found = []
        for worker in self.paths.workers():
            self.stay()
            held = self._left.get(worker.name) or self._held(worker)
            if held is None:
                continue
            found.append(held)
            if held.end is not None:
                self._left[worker.name] = held
        return found

    def _held(self, worker: WorkerPaths) -> GrantedAllocation | None:
        claim, end = WorkerClaim.read(worker.claim), WorkerEnd.read(worker.end)
        nodes = claim.nodes if claim else ()
        slots = self.slots.of(worker.name, nodes) * self.resolved.room
        return held(worker.name, claim, end, slots)


Run = tuple[str, list[str], float, float | None, float | None]
"""The worker of an attempt, its nodes, start, end, and the slot-seconds that were reserved."""


def run(claim: Claim | None, end: End | None) -> Run | None:
    """Return what an attempt's records say of its cost; None if it never ran."""
    if claim is None or not claim.at or (end is not None and end.reason == "released"):
        return None
    ended = epoch(end.at) if end is not None and end.at else None
    return claim.worker, claim.nodes, epoch(claim.at), ended, claim.reserved_slot_s


def stretch(claim: Claim | None, end: End | None, slots: Slots) -> Stretch | None:
    """Return the stretch of an attempt from its records; None if it never ran."""
    found = run(claim, end)
    return None if found is None else stretch_of(found, slots)


def stretch_of(found: Sequence[Any], slots: Slots) -> Stretch:
    """Return the stretch of a ``Run``."""
    worker, nodes, start, end, reserved = found
    return Stretch(worker, slots.of(worker, nodes), start, end, reserved)


def held(
    name: str, claim: WorkerClaim | None, end: WorkerEnd | None, slots: int
) -> GrantedAllocation | None:
    """Return the allocation of a worker with ``slots`` slots from its records."""
    if claim is None or not claim.at:
        return None
    ended = epoch(end.at) if end is not None and end.at else None
    return GrantedAllocation(name, slots, epoch(claim.at), ended)


def epoch(time: str) -> float:
    """Return the epoch seconds of an ISO time."""
    return datetime.fromisoformat(time).timestamp()
