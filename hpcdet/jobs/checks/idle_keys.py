"""Keys of a site file that mean nothing to its scheduler, or without another key."""

from __future__ import annotations

import re

from hpcdet.schedulers import opening
from hpcdet.schedulers.common.survey import ReadsKeys
from hpcdet.site import Site

OF_SOME = frozenset({
    "capabilities.rerun", "capabilities.arrays", "capabilities.history",
    "chunk", "place", "partitions.*.chunk",
})  # fmt: skip
"""Keys that only some schedulers have a use for; their backends name those that they read."""
_PARTITION = re.compile(r"^partitions\.[^.]+")


def idle(site: Site) -> list[str]:
    """Return a sentence for each key that a file sets and that nothing at this site reads."""
    facts = opening.of(site).facts
    read = facts.reads if isinstance(facts, ReadsKeys) else frozenset()
    said = {_PARTITION.sub("partitions.*", key) for key in site.origins}
    wrong = sorted(
        key
        for key in OF_SOME - read
        if any(one == key or one.startswith(f"{key}.") for one in said)
    )
    found = [f"{key} means nothing to the scheduler {site.scheduler}" for key in wrong]
    can = site.capabilities
    if "capabilities.arrays" in read and can.arrays and can.rerun != "server":
        found.append("capabilities.arrays means nothing without rerun: server, as tasks run again")
    if site.container and site.container.stage and not site.paths.local:
        found.append("container.stage means nothing without paths.local, the disk of a node")
    return found
