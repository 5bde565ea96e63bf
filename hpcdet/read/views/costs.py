"""The cost of an experiment, and the rest of its budget."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from hpcdet.read.experiment.gather import Gathered, gather
from hpcdet.store.config import overrides
from hpcdet.store.cost import limits, spending
from hpcdet.store.cost.budget import HOUR_S, Account, Budget, account
from hpcdet.store.cost.charges import Book
from hpcdet.store.folder.layout import ExperimentPaths

View = dict[str, Any]


def spent(source: ExperimentPaths | Gathered) -> View:
    """Return the cost so far.

    Returns:
        ``slot_hours`` in total, of which ``training_slot_hours`` in attempts and
        ``overhead_slot_hours`` that workers held without a trial; ``charged_slot_hours``: the
        part charged by the scheduler's accounting, while hpcdet counts the rest;
        ``counted_slot_hours``: hpcdet's own count of everything; ``reserved_slot_hours`` that
        running allocations may still cost; ``left_slot_hours`` of the budget after all that;
        ``wall_s`` since the first allocation, None before it; ``budget {slot_hours, wall_s}`` in
        force, None without a bound.
    """
    gathered = gather(source)
    budget, found = _budget(gathered), _account(gathered)
    left = None
    if budget.slot_hours is not None:
        left = budget.slot_hours * HOUR_S - found.spent_slot_s - found.reserved_slot_s
    return {
        "slot_hours": _hours(found.spent_slot_s),
        "training_slot_hours": _hours(found.training_slot_s),
        "overhead_slot_hours": _hours(found.overhead_slot_s),
        "charged_slot_hours": _hours(found.charged_slot_s),
        "counted_slot_hours": _hours(found.counted_slot_s),
        "reserved_slot_hours": _hours(found.reserved_slot_s),
        "left_slot_hours": None if left is None else _hours(max(0.0, left)),
        "wall_s": None if found.begun is None else round(_until(gathered) - found.begun, 3),
        "budget": {"slot_hours": budget.slot_hours, "wall_s": budget.wall_s},
    }


def allocations(source: ExperimentPaths | Gathered) -> list[View]:
    """Return the cost of each allocation, by its start.

    Returns:
        ``worker`` ("" if none ever took the place), ``job, slots, start, end`` ("" while it
        lives), ``slot_hours, training_slot_hours, overhead_slot_hours``, and ``counted_slot_hours``
        by our records and ``charged_slot_hours`` by accounting, None where that has not said it.
    """
    gathered = gather(source)
    jobs = {w.paths.name: w.claim.job for w in gathered.workers if w.claim is not None}
    return [
        {
            "worker": row.held.worker,
            "job": jobs.get(row.held.worker, "") or row.job,
            "slots": row.held.slots,
            "start": _iso(row.held.start),
            "end": _iso(row.held.end) if row.held.end is not None else "",
            "slot_hours": _hours(row.training_slot_s + row.overhead_slot_s),
            "training_slot_hours": _hours(row.training_slot_s),
            "overhead_slot_hours": _hours(row.overhead_slot_s),
            "counted_slot_hours": _hours(row.counted_slot_s),
            "charged_slot_hours": None
            if row.charged_slot_s is None
            else _hours(row.charged_slot_s),
        }
        for row in _account(gathered).rows
    ]


def exhausted(source: ExperimentPaths | Gathered) -> str:
    """Return the config key of the exhausted budget that lets nothing begin; "" if none is."""
    gathered = gather(source)
    reader = spending.Spending(gathered.paths, gathered.config)
    terms = reader.terms(limits.in_force(gathered.paths, gathered.config))
    return terms.exhausted(_account(gathered), time.time()) if terms.budget else ""


def _budget(gathered: Gathered) -> Budget:
    now = limits.in_force(gathered.paths, gathered.config)
    return Budget(now.slot_hours, now.wall_s)


def _account(gathered: Gathered) -> Account:
    slots, lanes = overrides.Slots(gathered.paths, gathered.config), gathered.config.lanes
    stretches = [
        found
        for trial in gathered.trials
        for attempt in trial.attempts
        if (found := spending.stretch(attempt.claim, attempt.end, slots)) is not None
    ]
    held = [
        allocation
        for w in gathered.workers
        for of_worker in [slots.of(w.paths.name, w.claim.nodes if w.claim else ()) * lanes]
        if (allocation := spending.held(w.paths.name, w.claim, w.end, of_worker)) is not None
    ]
    return account(stretches, held, _until(gathered), Book(gathered.paths).read())


def _until(gathered: Gathered) -> float:
    """Return the end of costs: the experiment's end, else now."""
    closed = gathered.closed
    return spending.epoch(closed.at) if closed is not None and closed.at else time.time()


def _hours(slot_s: float) -> float:
    return round(slot_s / HOUR_S, 6)


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
