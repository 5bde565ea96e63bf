"""Which rank writes which leaf of the shared state."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from hpcdet.checkpoint.state.tree import Leaf


def partition(leaves: Sequence[Leaf], world: int) -> list[list[Leaf]]:
    """The leaves of each rank, balanced by bytes, each list in the order of ``leaves``.

    A pure function of the structure and the number of ranks: every rank computes the same
    answer without asking the others. The largest leaf goes first, each to the rank that has
    the least so far. Leaves that are parts already are not dealt out: each is its rank's.
    """
    leaves = [leaf for leaf in leaves if leaf.part is None]
    loads = [(0, rank) for rank in range(world)]
    owner: dict[str, int] = {}
    for leaf in sorted(leaves, key=lambda leaf: (-leaf.nbytes, leaf.name)):
        load, rank = heapq.heappop(loads)
        owner[leaf.name] = rank
        heapq.heappush(loads, (load + leaf.nbytes, rank))
    return [[leaf for leaf in leaves if owner[leaf.name] == rank] for rank in range(world)]


def share(leaves: Sequence[Leaf], rank: int, world: int) -> list[Leaf]:
    """The leaves that a rank writes: its share of the common ones, and its parts of the others."""
    mine = {leaf.name for leaf in partition(leaves, world)[rank]}
    return [leaf for leaf in leaves if leaf.name in mine or (leaf.part and leaf.shape[0])]
