"""The launch of the processes from which ranks are forked; or why ranks start without them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hpcdet import launch_modules
from hpcdet.jobs.script import interpreters
from hpcdet.jobs.script.launch import rank_environment
from hpcdet.launchers import opening as launchers
from hpcdet.launchers.common import Launch, NurseryRequest
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.site.models import Site
from hpcdet.store.config import numerics
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.layout import ExperimentPaths

_ROOM = "-" * 4096
"""The room for the command lines of ranks, which name the experiment's folder."""
_SCRIPT = re.compile(r"python(3(\.\d+)?)?")
_FREE = re.compile(
    r"(LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|NODE_RANK|HPCDET_.*|\w+_VISIBLE_DEVICES"
    r"|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK"
)
"""Names of variables that are read when a rank asks for them, not while libraries are loaded."""


def nursery(
    experiment: Resolved, site: Site, paths: ExperimentPaths, allocation: Allocation
) -> Launch | str:
    """Return how to start a nursery on each node, or why ranks start without."""
    if why := _objection(experiment):
        return why
    need, view = experiment.resources, site.view(experiment.resources.resource_pool)
    python = interpreters.of_jobs(experiment, site)
    module = ("-Pm", "hpcdet.nursery", *experiment.worker.warm_imports, _ROOM)
    return launchers.launcher(launchers.kind_of(site, view)).nursery(
        NurseryRequest(
            process=(python, *module),
            environ=loaded_with(rank_environment(experiment, site, paths, allocation), experiment),
            nodes=need.nodes,
            ranks_per_node=need.slots_per_node or need.slots_per_trial // need.nodes,
            cpus_per_rank=need.cpus_per_slot,
            memory_per_node=need.memory_per_slot,
            lanes=experiment.lanes_per_node,
            mpi=experiment.distributed.backend == "mpi",
            args=tuple(view.launcher.args),
            command=view.launcher.command or "",
        )
    )


def _objection(experiment: Resolved) -> str:
    """Return why no rank of an experiment can be forked, or none gains by it; "" if they do."""
    worker, need = experiment.worker, experiment.resources
    if worker.warm == "off":
        return "worker.warm: off"
    if experiment.environment.image:
        return "each trial has its container"
    if not _is_ours(experiment.entrypoint):
        return "the entrypoint starts another program"
    if worker.node_groups > 1:
        return "the allocation has several groups of nodes"
    alone = worker.mode == "per_trial" or experiment.searcher.max_trials == 1
    if alone and need.slots_per_trial <= need.nodes:
        return "one rank on each node, of one trial: nothing is shared"
    return ""


def _is_ours(entrypoint: str | list[str]) -> bool:
    """True for a class, or a script that runs in the rank's own process."""
    if isinstance(entrypoint, str) and launch_modules.CLASS.fullmatch(entrypoint):
        return True
    argv = launch_modules.words(entrypoint)
    if (launch := launch_modules.at_front(argv)) is not None:
        if launch.trial:
            return True
        argv = launch.command or argv
    return bool(argv) and _SCRIPT.fullmatch(argv[0]) is not None


def loaded_with(environ: Mapping[str, str], experiment: Resolved) -> dict[str, str]:
    """Return the variables with which libraries are loaded in a rank that starts with these."""
    wanted = experiment.reproducibility
    return {**environ, **numerics.imposed(wanted.threads, wanted.device)}


def difference(one: Mapping[str, str], other: Mapping[str, str], prefix: str) -> str:
    """Return a variable that differs and may be read while libraries are loaded; "" for none.

    Args:
        prefix: of the variables that the launcher sets, which no library reads while it is loaded.
    """
    names = sorted(one.keys() | other.keys())
    differing = (name for name in names if one.get(name) != other.get(name))
    own = (prefix,) if prefix else ()
    loaded = (name for name in differing if not name.startswith(own))
    return next((name for name in loaded if not _FREE.fullmatch(name)), "")
