"""Records of what an experiment may cost and has cost: limits, reservations, charges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hpcdet.store.fs.json_record import JsonRecord


@dataclass(frozen=True)
class RunLimits(JsonRecord):
    """``limits/0001.json``: the limits that users have set, as workers read them.

    Attributes:
        max_concurrent_trials: trials that may run at once; 0: no limit but the searcher's.
        slot_hours, wall_s: the budget; None: no bound.
        longer: what the search was made longer to, once after the other, in its unit of length:
            rungs above those of the config.
    """

    max_concurrent_trials: int = 0
    slot_hours: float | None = None
    wall_s: float | None = None
    longer: list[int] = field(default_factory=list)
    term: int = 0
    at: str = ""


@dataclass(frozen=True)
class Reservation(JsonRecord):
    """``reservations/000001.json``: a claim's place in the order in which limits are applied."""

    trial: int
    attempt: int
    worker: str
    at: str = ""


@dataclass(frozen=True)
class Charges(JsonRecord):
    """``charges/0001.json``: charges of the scheduler's accounting for ended allocations.

    Attributes:
        allocations: the fields of ``budget.Charge``, one mapping for each.
        settled: numbers of the submissions that get no further charges.
    """

    allocations: list[dict[str, Any]] = field(default_factory=list)
    settled: list[int] = field(default_factory=list)
    at: str = ""
