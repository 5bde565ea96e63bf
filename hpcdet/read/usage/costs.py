"""The cost of an experiment, and the rest of its budget."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from hpcdet.read.experiment.digests import digests
from hpcdet.read.experiment.gather import Gathered, gather
from hpcdet.store.config import overrides
from hpcdet.store.cost import limits, spending
from hpcdet.store.cost.budget import HOUR_S, Account, Budget, account
from hpcdet.store.cost.charges import Book
from hpcdet.store.folder.layout import ExperimentPaths


@dataclass(frozen=True)
class SpentView:
    """The cost of an experiment so far, in slot hours."""

    slot_hours: float
    """All of it."""
    training_slot_hours: float
    """Of that, in attempts."""
    overhead_slot_hours: float
    """Of that, held by workers without a trial."""
    charged_slot_hours: float
    """The part charged by the scheduler's accounting; hpcdet counts the rest."""
    counted_slot_hours: float
    """hpcdet's own count of everything."""
    reserved_slot_hours: float
    """What running allocations may still cost."""
    left_slot_hours: float | None
    """Left of the budget after all that; null without a bound."""
    wall_s: float | None
    """Seconds since the first allocation; null before it."""
    budget: Budget
    """The budget in force."""


@dataclass(frozen=True)
class AllocationView:
    """The cost of one allocation."""

    worker: str
    """The worker that held it; "" if none ever took the place."""
    job: str
    """The scheduler's id of the job."""
    slots: int
    """Slots held."""
    start: str
    """Time at which it was granted."""
    end: str
    """Time of its end; "" while it lives."""
    slot_hours: float
    """Its cost: training and overhead."""
    training_slot_hours: float
    """Of that, in attempts."""
    overhead_slot_hours: float
    """Of that, without a trial."""
    counted_slot_hours: float
    """By hpcdet's records."""
    charged_slot_hours: float | None
    """By the scheduler's accounting; null where that has no charge for it yet."""


def spent(source: ExperimentPaths | Gathered, now: float | None = None) -> SpentView:
    """Return the cost so far.

    Args:
        now: epoch seconds until which what goes on is counted.
    """
    gathered = gather(source)
    budget, found = _budget(gathered), account_of(gathered, now)
    left = None
    if budget.slot_hours is not None:
        left = budget.slot_hours * HOUR_S - found.spent_slot_s - found.reserved_slot_s
    return SpentView(
        slot_hours=_hours(found.spent_slot_s),
        training_slot_hours=_hours(found.training_slot_s),
        overhead_slot_hours=_hours(found.overhead_slot_s),
        charged_slot_hours=_hours(found.charged_slot_s),
        counted_slot_hours=_hours(found.counted_slot_s),
        reserved_slot_hours=_hours(found.reserved_slot_s),
        left_slot_hours=None if left is None else _hours(max(0.0, left)),
        wall_s=None if found.begun is None else round(until(gathered, now) - found.begun, 3),
        budget=budget,
    )


def allocations(source: ExperimentPaths | Gathered) -> list[AllocationView]:
    """Return the cost of each allocation, by its start."""
    gathered = gather(source)
    jobs = {w.paths.name: w.claim.job for w in gathered.workers if w.claim is not None}
    return [
        AllocationView(
            worker=row.held.worker,
            job=jobs.get(row.held.worker, "") or row.job,
            slots=row.held.slots,
            start=_iso(row.held.start),
            end=_iso(row.held.end) if row.held.end is not None else "",
            slot_hours=_hours(row.training_slot_s + row.overhead_slot_s),
            training_slot_hours=_hours(row.training_slot_s),
            overhead_slot_hours=_hours(row.overhead_slot_s),
            counted_slot_hours=_hours(row.counted_slot_s),
            charged_slot_hours=None if row.charged_slot_s is None else _hours(row.charged_slot_s),
        )
        for row in account_of(gathered).rows
    ]


def exhausted(source: ExperimentPaths | Gathered) -> str:
    """Return the config key of the exhausted budget that lets nothing begin; "" if none is."""
    gathered = gather(source)
    reader = spending.Spending(gathered.paths, gathered.config)
    terms = reader.terms(limits.in_force(gathered.paths, gathered.config))
    return terms.exhausted(account_of(gathered), time.time()) if terms.budget else ""


def _budget(gathered: Gathered) -> Budget:
    now = limits.in_force(gathered.paths, gathered.config)
    return Budget(now.slot_hours, now.wall_s)


def account_of(gathered: Gathered, now: float | None = None) -> Account:
    """Return the balance of an experiment, up to its end or now."""
    slots, room = overrides.Slots(gathered.paths, gathered.config), gathered.config.room
    stretches = [
        spending.stretch_of(run, slots) for digest in digests(gathered) for run in digest.runs
    ]
    held = [
        allocation
        for w in gathered.workers
        for of_worker in [slots.of(w.paths.name, w.claim.nodes if w.claim else ()) * room]
        if (allocation := spending.held(w.paths.name, w.claim, w.end, of_worker)) is not None
    ]
    return account(stretches, held, until(gathered, now), Book(gathered.paths).read())


def until(gathered: Gathered, now: float | None = None) -> float:
    """Return the end of costs: the experiment's end, else now."""
    closed = gathered.closed
    if closed is not None and closed.at:
        return spending.epoch(closed.at)
    return time.time() if now is None else now


def _hours(slot_s: float) -> float:
    return round(slot_s / HOUR_S, 6)


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
