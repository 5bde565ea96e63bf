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
    found, servers = dict(pbs_text.sections(queues, "Queue")), pbs_text.sections(server, "Server")
    return {**found, "": servers[0][1] if servers else {}}


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
            max_walltime_s=_most(name, "walltime", known),
            nodes=nodes,
            up=queue.get("enabled") == queue.get("started") == "True",
            default=name == default,
            max_nodes=_most(name, "nodect", known),
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


def kill_wait(name: str, known: Attributes, unset_s: float) -> tuple[float, str]:
    """The seconds between TERM and KILL in a queue, the least of those it leads to; and its words.

    Args:
        unset_s: where a queue says nothing.
    """
    delays = [one.get("kill_delay", "") for one in behind(name, known)] or [""]
    waits = min(float(delay) if delay.isdecimal() else unset_s for delay in delays)
    said = ", ".join(delay or "unset" for delay in delays)
    return waits, f"kill_delay={said} of {name or 'a queue'}"


def _most(name: str, resource: str, known: Attributes) -> int | None:
    """The most of a resource in a queue, or in the widest of those it leads to."""

    def most(queue: Mapping[str, str]) -> float | None:
        return pbs_text.seconds(queue.get(f"resources_max.{resource}", ""))

    theirs = [most(one) for one in behind(name, known)]
    limits = [most(known.get(name, {})), most(known.get("", {}))]
    if theirs and None not in theirs:
        limits.append(max(limit for limit in theirs if limit is not None))
    found = [limit for limit in limits if limit is not None]
    return int(min(found)) if found else None


def _least(name: str, resource: str, known: Attributes) -> float:
    """Return the least request of a resource that one of the destinations accepts."""

    def least(queue: Mapping[str, str]) -> float:
        return pbs_text.seconds(queue.get(f"resources_min.{resource}", "")) or 0.0

    return max(least(known.get(name, {})), min(map(least, behind(name, known)), default=0.0))


def groups(known: Attributes, shown: list[ShownNode]) -> list[NodeGroup]:
    """Hosts by their resources, for each queue: any of them may run its jobs, as far as known."""
    counts = Counter(host.features for host in shown)
    return [
        NodeGroup(queue.name, features, count, queue.default)
        for queue in partitions(known, len(shown))
        for features, count in counts.items()
    ]
