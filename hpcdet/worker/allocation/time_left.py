"""The time that an allocation has left, and that one attempt in it may run."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass, field

from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.store.cost.spending import epoch
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.records import Claim


@dataclass(frozen=True)
class Remaining:
    """The time left of an allocation in seconds; infinite if it has no end.

    Attributes:
        end_at: when the scheduler ends it, epoch seconds; None: it does not.
        signal_lead_s: how long before that ranks should be told to leave.
        started: when its worker was up, epoch seconds.
    """

    end_at: float | None
    signal_lead_s: float
    started: float = field(default_factory=time.time)

    @property
    def left_s(self) -> float:
        return self.end_at - time.time() if self.end_at is not None else math.inf

    @property
    def length_s(self) -> float:
        return self.end_at - self.started if self.end_at is not None else math.inf

    @property
    def lead_s(self) -> float:
        """Seconds before the end at which ranks are notified; at most half of the allocation."""
        return min(self.signal_lead_s, self.length_s / 2)

    @property
    def is_last(self) -> bool:
        """True if it is time to leave by this process's clock; a scheduler may send no signal."""
        return self.left_s < self.lead_s

    def suffices(self, least_s: float) -> bool:
        """True if ``least_s`` are left; an allocation shorter than that is used at least once."""
        return self.left_s > min(least_s, self.length_s / 2)


def of_attempt(allocation: Allocation, attempt: AttemptPaths, slots: int) -> Allocation:
    """Return the allocation, ended where the attempt's reservation ends if that is sooner."""
    claim = Claim.read(attempt.claim)
    if claim is None or not claim.reserved_slot_s:
        return allocation
    end = epoch(claim.at) + claim.reserved_slot_s / slots
    if allocation.end_at is not None and allocation.end_at <= end:
        return allocation
    return dataclasses.replace(allocation, end_at=end)
