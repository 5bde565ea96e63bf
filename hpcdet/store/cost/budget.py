"""The budget of an experiment and its spending, slots times seconds. Pure arithmetic.

An attempt costs its slots from claim to end, an allocation what its worker held beyond that
(overhead). These are counted here, until the scheduler's accounting has a charge for the
allocation, which replaces them. A claim reserves the most that the attempt may cost, so that
attempts that run together stay within the budget; if the attempt ends sooner, the rest is free
again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

HOUR_S = 3600.0


@dataclass(frozen=True)
class Budget:
    """The budget of an experiment; None: no bound."""

    slot_hours: float | None = None
    """Slots times hours."""
    wall_s: float | None = None
    """Seconds from its first allocation."""

    def __bool__(self) -> bool:
        return self.slot_hours is not None or self.wall_s is not None

    def __str__(self) -> str:
        parts = [] if self.slot_hours is None else [f"{self.slot_hours:g} slot hours"]
        parts += [] if self.wall_s is None else [f"{self.wall_s:g} s of wall time"]
        return " and ".join(parts) or "none"


@dataclass(frozen=True)
class Stretch:
    """The time and slots of an attempt, in epoch seconds; ``end`` is None while it runs.

    ``reserved_slot_s``: the most that it may cost; None: unknown.
    """

    worker: str
    slots: int
    start: float
    end: float | None = None
    reserved_slot_s: float | None = None

    def cost(self, now: float) -> float:
        """Slot-seconds so far."""
        return self.slots * max(0.0, (now if self.end is None else self.end) - self.start)

    def to_come(self, now: float) -> float:
        """Return the slot-seconds that it has reserved and not used yet."""
        if self.end is not None or self.reserved_slot_s is None:
            return 0.0
        return max(0.0, self.reserved_slot_s - self.cost(now))


@dataclass(frozen=True)
class GrantedAllocation:
    """The allocation that the scheduler granted a worker, with all its slots."""

    worker: str
    slots: int
    start: float
    end: float | None = None

    def cost(self, now: float) -> float:
        """Slot-seconds so far."""
        return self.slots * max(0.0, (now if self.end is None else self.end) - self.start)


@dataclass(frozen=True)
class Charge:
    """A charge of the scheduler's accounting for an allocation that is over.

    Attributes:
        worker: who held it; "" if no worker ever took the place.
        job: the scheduler's id of the task, ``12_3``; with ``start`` it tells runs apart.
        start, end: epoch seconds by the scheduler's clock.
        slot_s: slot-seconds.
    """

    worker: str
    job: str
    slots: int
    start: float
    end: float
    slot_s: float


@dataclass(frozen=True)
class AllocationCost:
    """The cost of one allocation, in slot-seconds.

    Attributes:
        counted_slot_s: by the worker's own records.
        charged_slot_s: by the scheduler's accounting; None if it has no charge (yet).
    """

    held: GrantedAllocation
    training_slot_s: float
    overhead_slot_s: float
    counted_slot_s: float = 0.0
    charged_slot_s: float | None = None
    job: str = ""


@dataclass(frozen=True)
class Account:
    """The balance of an experiment in slot-seconds; ``begun``: start of the first allocation.

    Attributes:
        reserved_slot_s: what those that run may still cost.
        charged_slot_s: how much of what is spent the scheduler's accounting has charged; the rest
            is counted by the workers' records.
        counted_slot_s: what these say of everything, charged for or not.
    """

    training_slot_s: float = 0.0
    overhead_slot_s: float = 0.0
    reserved_slot_s: float = 0.0
    running: int = 0
    begun: float | None = None
    rows: tuple[AllocationCost, ...] = ()
    charged_slot_s: float = 0.0
    counted_slot_s: float = 0.0

    @property
    def spent_slot_s(self) -> float:
        return self.training_slot_s + self.overhead_slot_s


def account(
    stretches: Iterable[Stretch],
    allocations: Iterable[GrantedAllocation],
    now: float,
    charges: Sequence[Charge] = (),
) -> Account:
    """Sum up all costs. The charge for an allocation replaces what was counted of it."""
    charged = {charge.worker: charge for charge in charges if charge.worker}
    unclaimed = [charge for charge in charges if not charge.worker]
    counted: dict[str, float] = defaultdict(float)
    reserved = 0.0
    running = 0
    for stretch in stretches:
        running += stretch.end is None
        over = charged.get(stretch.worker)
        if over is not None and stretch.end is None:  # and the attempt is not closed yet
            stretch = replace(stretch, end=max(stretch.start, over.end))
        counted[stretch.worker] += stretch.cost(now)
        reserved += stretch.to_come(now)
    held = {each.worker: each for each in allocations}
    rows = [
        _row(each, counted[each.worker], charged.get(each.worker), now) for each in held.values()
    ]
    rows += [
        AllocationCost(
            GrantedAllocation("", one.slots, one.start, one.end),
            0.0,
            one.slot_s,
            0.0,
            one.slot_s,
            one.job,
        )
        for one in unclaimed
    ]
    rows.sort(key=lambda row: (row.held.start, row.held.worker))
    elsewhere = sum(cost for worker, cost in counted.items() if worker not in held)
    return Account(
        elsewhere + sum(row.training_slot_s for row in rows),
        sum(row.overhead_slot_s for row in rows),
        reserved,
        running,
        rows[0].held.start if rows else None,
        tuple(rows),
        sum(row.charged_slot_s or 0.0 for row in rows),
        elsewhere + sum(row.counted_slot_s for row in rows),
    )


def _row(
    held: GrantedAllocation, training: float, charge: Charge | None, now: float
) -> AllocationCost:
    whole = max(held.cost(now), training)
    if charge is None:
        return AllocationCost(held, training, whole - training, whole)
    within = min(training, charge.slot_s)
    return AllocationCost(held, within, charge.slot_s - within, whole, charge.slot_s, charge.job)


@dataclass(frozen=True)
class Terms:
    """The terms on which a trial may begin.

    Attributes:
        slots: of one trial.
        least_s: a shorter stretch than this is not worth beginning.
    """

    budget: Budget
    slots: int
    least_s: float

    @property
    def useful_s(self) -> float:
        """The shortest stretch worth beginning: ``least_s``, but at most half of the budget."""
        budget = self.budget
        whole = [] if budget.wall_s is None else [budget.wall_s]
        if budget.slot_hours is not None:
            whole.append(budget.slot_hours * HOUR_S / self.slots)
        return min([max(self.least_s, 1.0), *(bound / 2 for bound in whole)])

    def slot_s_left(self, account: Account) -> float:
        """Return the slot-seconds that are neither spent nor reserved; may be negative."""
        if self.budget.slot_hours is None:
            return math.inf
        return self.budget.slot_hours * HOUR_S - account.spent_slot_s - account.reserved_slot_s

    def wall_s_left(self, account: Account, now: float) -> float:
        """Return the seconds left of the experiment's wall time."""
        if self.budget.wall_s is None:
            return math.inf
        return self.budget.wall_s - (now - account.begun if account.begun is not None else 0.0)

    def room(self, account: Account, now: float) -> float:
        """Return how many more trials could begin now; infinity without a budget."""
        if self.wall_s_left(account, now) < self.useful_s:
            return 0
        left = self.slot_s_left(account)
        if math.isinf(left):
            return left
        return max(0, math.floor(left / (self.useful_s * self.slots) + 1e-9))

    def exhausted(self, account: Account, now: float) -> str:
        """Return the config key of the bound that is used up; "" if a trial may still begin."""
        if self.wall_s_left(account, now) < self.useful_s:
            return "budget.wall_s"
        return "" if self.room(account, now) else "budget.slot_hours"

    def grant(self, account: Account, waiting: int, left_s: float, now: float) -> float:
        """Return the seconds that one more trial may run from now; 0: it must not begin.

        The rest of the budget is shared evenly with the other waiting trials, unless the shares
        would be too short to be useful.

        Args:
            waiting: trials that could begin now, this one among them.
            left_s: until its allocation ends.
        """
        if self.room(account, now) < 1:
            return 0.0
        share = self.slot_s_left(account) / self.slots / max(1, waiting)
        whole = max(share, self.useful_s)
        return min(whole, self.wall_s_left(account, now), left_s)

    def fits(self, account: Account, reserved_slot_s: float) -> bool:
        """True if a claim that was made stays within the budget, after those before it."""
        return reserved_slot_s <= self.slot_s_left(account) + 1e-6
