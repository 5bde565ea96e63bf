"""The nodes that the lanes of one allocation have."""

from __future__ import annotations

from typing import Any

from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.store.config import resolved_config
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.worker.allocation.node_groups import NodeGroups
from tests import experiments as x

NODES = ("n1", "n2", "n3", "n4")


def resolved(trials: int, worker: dict[str, int], **resources: Any) -> Resolved:
    return resolved_config.resolve(x.config(trials=trials, worker=worker, resources=resources))


def test_lanes_take_turns_over_the_groups_and_a_closed_one_takes_nothing() -> None:
    two = resolved(9, {"node_groups": 2, "lanes": 1}, slots_per_trial=2, nodes=2, slots_per_node=1)
    assert (two.lanes, two.lanes_per_node, two.allocation.nodes) == (2, 1, 4)
    groups = NodeGroups(two, Allocation("7", NODES))
    assert [groups.allocation(lane).nodes for lane in (0, 1)] == [NODES[:2], NODES[2:]]
    assert [groups.free(busy) for busy in ([], [0], [1], [0, 1])] == [0, 1, 0, None]
    groups.close_with(["n9", "n3"])
    assert groups.free([]) == 0 and groups.free([0]) is None and not groups.all_closed
    groups.close(groups.of(0))
    assert groups.free([]) is None and groups.all_closed


def test_each_node_has_as_many_lanes_as_trials_may_run() -> None:
    five = resolved(5, {"node_groups": 3, "lanes": 4}, slots_per_trial=2, slots_per_node=2)
    assert (five.lanes, five.lanes_per_node, five.room) == (5, 2, 6)
    assert (five.allocation.slots_per_node, five.allocation.slots_per_trial) == (4, 12)
    groups = NodeGroups(five, Allocation("7", NODES[:3]))
    places = [(groups.allocation(lane).nodes[0], groups.place(lane)) for lane in range(5)]
    assert places == [("n1", 0), ("n2", 0), ("n3", 0), ("n1", 1), ("n2", 1)]


def test_one_group_is_the_whole_allocation() -> None:
    """As many nodes as were granted, which may be fewer than asked for."""
    small = resolved(1, {}, slots_per_trial=4, nodes=4, slots_per_node=1)
    groups = NodeGroups(small, Allocation("7", NODES[:3]))
    assert groups.allocation(0).nodes == NODES[:3]
