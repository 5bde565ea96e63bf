"""What an experiment has cost and what it may still cost: slots times seconds. Pure arithmetic.

An attempt costs its slots from claim to end, an allocation what its worker held beyond that
(overhead). A claim reserves what the attempt may cost at most, so that those that run together
stay within the budget; where the attempt ends sooner, the rest is free again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

HOUR_S = 3600.0


@dataclass(frozen=True)
class Budget:
    """What an experiment may cost; None: no bound. ``wall_s`` counts from its first allocation."""

    slot_hours: float | None = None
    wall_s: float | None = None

    def __bool__(self) -> bool:
        return self.slot_hours is not None or self.wall_s is not None

    def __str__(self) -> str:
        parts = [] if self.slot_hours is None else [f"{self.slot_hours:g} slot hours"]
        parts += [] if self.wall_s is None else [f"{self.wall_s:g} s of wall time"]
        return " and ".join(parts) or "none"


@dataclass(frozen=True)
class Stretch:
    """An attempt. Times in epoch seconds; ``end`` is None while it runs.

    ``reserved_slot_s``: the most that it may cost; None: nobody knows.
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
        """Slot-seconds that it has reserved and not used yet."""
        if self.end is not None or self.reserved_slot_s is None:
            return 0.0
        return max(0.0, self.reserved_slot_s - self.cost(now))


@dataclass(frozen=True)
class Held:
    """What the scheduler granted a worker, with all its slots."""

    worker: str
    slots: int
    start: float
    end: float | None = None

    def cost(self, now: float) -> float:
        """Slot-seconds so far."""
        return self.slots * max(0.0, (now if self.end is None else self.end) - self.start)


@dataclass(frozen=True)
class Row:
    """What one allocation has cost, in slot-seconds."""

    held: Held
    training_slot_s: float
    overhead_slot_s: float


@dataclass(frozen=True)
class Account:
    """How things stand. Slot-seconds; ``begun`` is when the first allocation started.

    ``reserved_slot_s``: what those that run may still cost.
    """

    training_slot_s: float = 0.0
    overhead_slot_s: float = 0.0
    reserved_slot_s: float = 0.0
    running: int = 0
    begun: float | None = None
    rows: tuple[Row, ...] = ()

    @property
    def spent_slot_s(self) -> float:
        return self.training_slot_s + self.overhead_slot_s


def account(stretches: Iterable[Stretch], allocations: Iterable[Held], now: float) -> Account:
    """Add everything up."""
    by_worker: dict[str, float] = defaultdict(float)
    training = reserved = 0.0
    running = 0
    for stretch in stretches:
        cost = stretch.cost(now)
        by_worker[stretch.worker] += cost
        training += cost
        reserved += stretch.to_come(now)
        running += stretch.end is None
    rows = tuple(
        Row(held, by_worker[held.worker], max(0.0, held.cost(now) - by_worker[held.worker]))
        for held in sorted(allocations, key=lambda held: (held.start, held.worker))
    )
    return Account(
        training,
        sum(row.overhead_slot_s for row in rows),
        reserved,
        running,
        rows[0].held.start if rows else None,
        rows,
    )


@dataclass(frozen=True)
class Terms:
    """On what terms a trial is begun.

    Attributes:
        slots: of one trial.
        least_s: a shorter stretch than this is not worth beginning.
    """

    budget: Budget
    slots: int
    least_s: float

    @property
    def useful_s(self) -> float:
        """Of a budget that is small itself, half is worth beginning."""
        budget = self.budget
        whole = [] if budget.wall_s is None else [budget.wall_s]
        if budget.slot_hours is not None:
            whole.append(budget.slot_hours * HOUR_S / self.slots)
        return min([max(self.least_s, 1.0), *(bound / 2 for bound in whole)])

    def slot_s_left(self, account: Account) -> float:
        """Slot-seconds that are neither spent nor reserved; may be below nothing."""
        if self.budget.slot_hours is None:
            return math.inf
        return self.budget.slot_hours * HOUR_S - account.spent_slot_s - account.reserved_slot_s

    def wall_s_left(self, account: Account, now: float) -> float:
        """Seconds until the end of the whole experiment's time."""
        if self.budget.wall_s is None:
            return math.inf
        return self.budget.wall_s - (now - account.begun if account.begun is not None else 0.0)

    def room(self, account: Account, now: float) -> float:
        """How many more trials could begin now; infinity without a budget."""
        if self.wall_s_left(account, now) < self.useful_s:
            return 0
        left = self.slot_s_left(account)
        if math.isinf(left):
            return left
        return max(0, math.floor(left / (self.useful_s * self.slots) + 1e-9))

    def exhausted(self, account: Account, now: float) -> str:
        """The config's key of the bound that lets nothing begin; "" if something may."""
        if self.wall_s_left(account, now) < self.useful_s:
            return "budget.wall_s"
        return "" if self.room(account, now) else "budget.slot_hours"

    def grant(self, account: Account, waiting: int, left_s: float, now: float) -> float:
        """Seconds that one more trial may run from now on; 0: it is not to begin.

        What is left is shared evenly with the other ones that wait, unless the shares would be
        too short to be of use.

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
        """Whether a claim that was made stays within the budget, after those before it."""
        return reserved_slot_s <= self.slot_s_left(account) + 1e-6
