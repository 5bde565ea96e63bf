"""Features of nodes, by partition, as Slurm shows them. Pure: text in, values out."""

from __future__ import annotations

from hpcdet.schedulers.common.allocation import ShownNode
from hpcdet.schedulers.common.base import NodeGroup
from hpcdet.schedulers.slurm.answers.slurm_text import count

NODES = ("sinfo", "-h", "-o", "%P|%f|%D")


def node(text: str) -> ShownNode | None:
    """The answer of ``scontrol --oneliner show node``; None if it is not understood."""
    words = dict(word.partition("=")[::2] for word in text.split())
    if "NodeHostName" not in words or "ActiveFeatures" not in words:
        return None
    return ShownNode(words["NodeHostName"], _features(words["ActiveFeatures"]))


def groups(text: str) -> list[NodeGroup]:
    """The rows that ``NODES`` prints; lines that are not understood are left out."""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        nodes = count(parts[2]) if len(parts) == 3 else None
        if nodes is not None:
            name = parts[0]
            found.append(
                NodeGroup(
                    name.removesuffix("*"),
                    _features(parts[1]),
                    nodes,
                    name.endswith("*"),
                )
            )
    return found


def _features(text: str) -> frozenset[str]:
    return frozenset() if text == "(null)" else frozenset(text.split(","))
