"""Groups of an allocation's nodes: the nodes that each lane has.

Where a partition takes only jobs of more nodes than a trial has, an allocation has several groups
of a trial's size. A bad node closes its group; the lanes of the others go on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.store.config.resolved_config import Resolved


class NodeGroups:
    """The groups of one allocation, numbered from 0; most allocations are one group."""

    def __init__(self, experiment: Resolved, allocation: Allocation) -> None:
        self._allocation = allocation
        self._count = experiment.worker.node_groups
        self._each = experiment.resources.nodes
        self._lanes = experiment.lanes
        self._closed: set[int] = set()

    @property
    def all_closed(self) -> bool:
        """True if no lane may begin an attempt any more."""
        return len(self._closed) == self._count

    def free(self, busy: Collection[int]) -> int | None:
        """Return the first lane that is not busy and whose group is open; None if there is none."""
        lanes = (lane for lane in range(self._lanes) if lane not in busy)
        return next((lane for lane in lanes if self.of(lane) not in self._closed), None)

    def allocation(self, lane: int) -> Allocation:
        """Return the allocation as one lane has it, with the nodes of its group."""
        return dataclasses.replace(self._allocation, nodes=self._nodes(self.of(lane)))

    def of(self, lane: int) -> int:
        """Return the group of a lane."""
        return lane % self._count

    def place(self, lane: int) -> int:
        """Return which of the lanes of its group's nodes a lane is, from 0."""
        return lane // self._count

    def close(self, group: int) -> None:
        """Begin no attempt in a group any more."""
        self._closed.add(group)

    def close_with(self, nodes: Collection[str]) -> None:
        """Close the groups that have one of these nodes."""
        for group in range(self._count):
            if not set(nodes).isdisjoint(self._nodes(group)):
                self.close(group)

    def _nodes(self, group: int) -> tuple[str, ...]:
        if self._count == 1:
            return self._allocation.nodes
        return self._allocation.nodes[group * self._each : (group + 1) * self._each]
