"""Features of nodes, by partition, as Slurm shows them. Pure: text in, values out."""

from __future__ import annotations

from hpcdet.schedulers.common.base import NodeGroup
from hpcdet.schedulers.slurm.slurm_text import count

NODES = ("sinfo", "-h", "-o", "%P|%f|%D")


def groups(text: str) -> list[NodeGroup]:
    """The rows that ``NODES`` prints; lines that are not understood are left out."""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        nodes = count(parts[2]) if len(parts) == 3 else None
        if nodes is not None:
            name, features = parts[0], parts[1].strip("()")
            found.append(
                NodeGroup(
                    name.removesuffix("*"),
                    frozenset() if features == "null" else frozenset(features.split(",")),
                    nodes,
                    name.endswith("*"),
                )
            )
    return found
