"""How long one attempt may run: until its allocation ends, or what it reserved is used up."""

from __future__ import annotations

import dataclasses

from hpcdet.jobs.script.launch import Allocation
from hpcdet.store.cost.spending import epoch
from hpcdet.store.folder.layout import AttemptPaths
from hpcdet.store.folder.records import Claim


def within(allocation: Allocation, attempt: AttemptPaths, slots: int) -> Allocation:
    """The allocation as the attempt has it: with its own end, where that comes sooner."""
    claim = Claim.read(attempt.claim)
    if claim is None or not claim.reserved_slot_s:
        return allocation
    end = epoch(claim.at) + claim.reserved_slot_s / slots
    if allocation.end_at is not None and allocation.end_at <= end:
        return allocation
    return dataclasses.replace(allocation, end_at=end)
