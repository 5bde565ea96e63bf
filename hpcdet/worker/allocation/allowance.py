"""The time that one attempt may run: to its allocation's end or its reservation's, if sooner."""

from __future__ import annotations

import dataclasses

from hpcdet.jobs.script.launch import Allocation
from hpcdet.store.cost.spending import epoch
from hpcdet.store.folder.layout import AttemptPaths
from hpcdet.store.folder.records import Claim


def within(allocation: Allocation, attempt: AttemptPaths, slots: int) -> Allocation:
    """Return the allocation, ended where the attempt's reservation ends if that is sooner."""
    claim = Claim.read(attempt.claim)
    if claim is None or not claim.reserved_slot_s:
        return allocation
    end = epoch(claim.at) + claim.reserved_slot_s / slots
    if allocation.end_at is not None and allocation.end_at <= end:
        return allocation
    return dataclasses.replace(allocation, end_at=end)
