"""Lanes: several trials side by side in one allocation.

All trials of an experiment have one shape, and so has each allocation: ``lanes`` times that of a
trial, on one node; and as many groups of such nodes as the least job of a partition takes. So one
array serves them all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpcdet.errors import ConfigError
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.machine import accelerators
from hpcdet.site.models import PartitionView, Site
from hpcdet.store.config import overrides
from hpcdet.store.config.placement import Resources
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.records import Intent

if TYPE_CHECKING:
    from hpcdet.config.load.load_config import LoadedConfig

KEY = "worker.lanes"
GROUPS = "worker.node_groups"
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def of_intent(experiment: Resolved, intent: Intent) -> int:
    """Trials side by side in the allocations of a submission: what users changed may differ."""
    return overrides.lay(experiment, intent.overrides).lanes


def tasks(trials: int, lanes: int) -> int:
    """Array tasks for so many trials."""
    return math.ceil(trials / lanes)


def settled(loaded: LoadedConfig, site: Site) -> LoadedConfig:
    """The config with a number for ``worker.lanes: auto``: as many trials as fit into a node.

    Where the partition takes jobs of more nodes than a trial has, the allocation has several groups
    of nodes. A worker that takes one trial, and a trial of a changing size, have one group.

    Raises:
        ConfigError: the site does not say what a node of the partition has.
    """
    need, worker = loaded.config.resources, loaded.config.worker
    view = site.view(need.resource_pool)
    if worker.lanes == "auto":
        loaded = loaded.with_value(KEY, _fitting(need, site, view), "derived")
    groups = math.ceil((view.bounds.min_nodes or 1) / need.nodes)
    alone = worker.mode == "per_trial" or need.min_slots_per_trial is not None
    if groups > worker.node_groups and not alone:
        loaded = loaded.with_value(GROUPS, groups, "derived")
    return loaded


def _fitting(need: Resources, site: Site, view: PartitionView) -> int:
    cpus = need.slots_per_node * need.cpus_per_slot
    found = []
    if view.slots_per_node is not None:
        found.append(view.slots_per_node // need.slots_per_node)
    if view.cpus_per_node is not None:
        found.append(view.cpus_per_node // cpus)
    if not found and (slots := opening.of(site).facts.slots_here(site)) is not None:
        found.append(slots // need.slots_per_node)
    if not found:
        raise ConfigError(
            f"site {site.name} does not say what a node of {view.name or 'its partition'} has",
            where=KEY,
            hint="write a number, or slots_per_node or cpus_per_node of the partition in the site",
        )
    return max(1, min(found))


def devices(environ: Mapping[str, str], lane: int, lanes: int) -> dict[str, str]:
    """Return variables that show one lane its own accelerators only; {} without accelerators.

    Each lane gets an equal part of those that this process sees. Where there are fewer than
    lanes, several share one.
    """
    name = next((name for name in _VISIBLE if name in environ), "")
    seen = [text for part in environ.get(name, "").split(",") if (text := part.strip())]
    if not name:
        name, seen = _VISIBLE[0], accelerators()
    return {name: ",".join(_part(seen, lane, lanes))} if seen else {}


def _part(devices: Sequence[str], lane: int, lanes: int) -> Sequence[str]:
    count = len(devices)
    if count < lanes:
        return [devices[lane % count]]
    return devices[lane * count // lanes : (lane + 1) * count // lanes]
