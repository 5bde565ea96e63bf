"""Queues and hosts, as ``qstat -Qf``, ``qstat -Bf`` and ``pbsnodes -a`` show them. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping

from hpcdet.schedulers.common.allocation import ShownNode
from hpcdet.schedulers.common.base import NodeGroup, PartitionInfo
from hpcdet.schedulers.pbs_family import pbs_text

Attributes = Mapping[str, Mapping[str, str]]
"""Attributes of the queues by their names, and of the server under ""."""


def attributes(server: str, queues: str) -> dict[str, dict[str, str]]:
    """Attributes that ``qstat -Bf`` and ``qstat -Qf`` print."""
    found = pbs_text.sections(queues, "Queue")
    return {**found, "": next(iter(pbs_text.sections(server, "Server").values()), {})}


_NAMES = frozenset({"host", "vnode", "arch"})
_AMOUNT = re.compile(r"[0-9.]+[kmgtpKMGTP]?[bwBW]?")


def _tells(key: str, value: str) -> bool:
    """True for what a host has or is, and not how much of it or what it is called."""
    return key not in _NAMES and not _AMOUNT.fullmatch(value)


def hosts(text: str) -> list[ShownNode]:
    """The hosts that ``pbsnodes -a -F json`` shows, those that are down too.

    Of a host with several vnodes, what all of them have: a chunk lies in one.
    """
    try:
        shown = json.loads(text, strict=False).get("nodes", {})
    except (ValueError, AttributeError):
        return []
    found: dict[str, frozenset[str]] = {}
    for name, values in shown.items():
        if not isinstance(values, dict):
            continue
        has = values.get("resources_available", {})
        host = str(has.get("host", name))
        own = frozenset(f"{key}={value}" for key, value in has.items() if _tells(key, str(value)))
        found[host] = found.get(host, own) & own
    return [ShownNode(host, features) for host, features in found.items()]


def partitions(known: Attributes, nodes: int) -> list[PartitionInfo]:
    """The queues that jobs may be submitted to.

    Args:
        nodes: hosts of the cluster.
    """
    default = known.get("", {}).get("default_queue", "")
    return [
        PartitionInfo(
            name=name,
            max_walltime_s=_longest(name, known),
            nodes=nodes,
            up=queue.get("enabled") == queue.get("started") == "True",
            default=name == default,
            max_nodes=_widest(name, known),
            min_nodes=int(_least(name, "nodect", known) or 1),
            min_walltime_s=int(_least(name, "walltime", known)) or None,
        )
        for name, queue in known.items()
        if name and queue.get("from_route_only") != "True"
    ]


def behind(name: str, known: Attributes) -> list[Mapping[str, str]]:
    """The execution queues that a queue leads to, itself if it is one."""
    queue = known.get(name, {})
    if queue.get("queue_type", "").lower().startswith("r"):
        names = (one.strip() for one in queue.get("route_destinations", "").split(","))
        return [known[one] for one in names if one in known and one != name]
    return [queue]


def _longest(name: str, known: Attributes) -> int | None:
    """The longest walltime in a queue, or in the widest of those it leads to."""
    own = pbs_text.seconds(known.get(name, {}).get("resources_max.walltime", ""))
    server = pbs_text.seconds(known.get("", {}).get("resources_max.walltime", ""))
    texts = [one.get("resources_max.walltime", "") for one in behind(name, known)]
    limits = [limit for text in texts if (limit := pbs_text.seconds(text)) is not None]
    theirs = max(limits) if limits and len(limits) == len(texts) else None
    found = [limit for limit in (own, server, theirs) if limit is not None]
    return int(min(found)) if found else None


def _least(name: str, resource: str, known: Attributes) -> float:
    """Return the least request of a resource that one of the destinations accepts."""

    def least(queue: Mapping[str, str]) -> float:
        return pbs_text.seconds(queue.get(f"resources_min.{resource}", "")) or 0.0

    return max(least(known.get(name, {})), min(map(least, behind(name, known)), default=0.0))


def _widest(name: str, known: Attributes) -> int | None:
    texts = [one.get("resources_max.nodect", "") for one in behind(name, known)]
    limits = [int(text) for text in texts if text.isdecimal()]
    return max(limits) if limits and len(limits) == len(texts) else None


def groups(known: Attributes, shown: list[ShownNode]) -> list[NodeGroup]:
    """Hosts by their resources, for each queue: any of them may run its jobs, as far as known."""
    counts = Counter(host.features for host in shown)
    return [
        NodeGroup(queue.name, features, count, queue.default)
        for queue in partitions(known, len(shown))
        for features, count in counts.items()
    ]
