"""Launch of the ranks of one attempt inside an allocation, by the site's launcher."""

from __future__ import annotations

import os
from collections.abc import Mapping

import hpcdet
from hpcdet.jobs.script import contained, environment, interpreters
from hpcdet.jobs.script.lanes import devices
from hpcdet.launchers import opening as launchers
from hpcdet.launchers.common import Launch, StepRequest
from hpcdet.schedulers import opening as schedulers
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.site.models import Site
from hpcdet.store.config import numerics
from hpcdet.store.config.resolved_config import Environment, Resolved
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.trials import staged_data


def launch(
    experiment: Resolved,
    site: Site,
    paths: ExperimentPaths,
    attempt: AttemptPaths,
    allocation: Allocation,
    lane: int = 0,
    identity: str = "",
) -> Launch:
    """Return how to start the ranks of an attempt with the site's launcher.

    Args:
        allocation: where it runs: the nodes of its group, where there are several.
        lane: which of the trials side by side on these nodes it is, from 0.
        identity: what ranks must find in the folder (``store.folder.held_folder``); "": nothing.

    Raises:
        ConfigError: there is no image for this node, or it cannot be read.
    """
    python = interpreters.of_jobs(experiment, site)
    place = (str(paths.root), str(attempt.trial), str(attempt.number))
    same = ("--identity", identity) if identity else ()
    view = site.view(experiment.resources.resource_pool)
    launcher = launchers.launcher(launchers.kind_of(site, view))
    inside = schedulers.of(site).inside
    image = contained.image(experiment, site)
    given = rank_environment(experiment, site, paths, allocation)
    gpus = inside.granted_gpus(given) if launcher.divides else 0
    if experiment.lanes_per_node > 1 and not gpus:
        given.update(devices(given, lane, experiment.lanes_per_node))
    rank: tuple[str, ...] = ("-Pm", "hpcdet.attempt", *place, *same)
    args = tuple(view.launcher.args)
    if image is not None:
        rank = (*rank, "--hpcdet", hpcdet.__version__)
        given[contained.DIGEST] = contained.digest_now(image, paths)
        inner = contained.command(image, experiment, site, paths, rank, given)
        rank, args = inner.command, (*args, *inner.step_args)
    else:
        rank = (python, *rank)
    need = experiment.resources
    per_node = need.slots_per_node or need.slots_per_trial // need.nodes
    memory = need.memory_per_slot
    return launcher.step(
        StepRequest(
            rank=rank,
            environ=given,
            nodes=need.nodes,
            ranks=need.slots_per_trial,
            ranks_per_node=per_node,
            cpus_per_rank=need.cpus_per_slot,
            memory_per_node=memory and memory * per_node,
            name=f"{attempt.trial}-{attempt.number}",
            lanes=experiment.lanes_per_node,
            hosts=allocation.nodes if experiment.worker.node_groups > 1 else (),
            gpus=gpus,
            mpi=experiment.distributed.backend == "mpi",
            args=args,
            command=view.launcher.command or "",
            daemons=inside.daemons(python, allocation),
            python=python,
            folder=attempt.root,
        )
    )


def rank_environment(
    experiment: Resolved, site: Site, paths: ExperimentPaths, allocation: Allocation
) -> dict[str, str]:
    """Return the environment that all ranks have in common, whichever trial they are of."""
    hidden = numerics.imposed(None, experiment.reproducibility.device)
    seen = {**environment.for_step(os.environ, site), **hidden}
    given = with_variables(seen, experiment.environment)
    given["HPCDET_BACKEND"] = experiment.distributed.backend
    if allocation.end_at is not None:
        given["HPCDET_DEADLINE"] = f"{allocation.end_at:.3f}"
    given["HPCDET_GRACE"] = f"{site.limits.kill_wait_s:g}"
    image = contained.image(experiment, site)
    if site.paths.local and (experiment.staged or contained.is_staged(image)):
        given[staged_data.PLACE] = site.paths.local
        given[staged_data.JOB] = f"{paths.id} {allocation.job} {allocation.restart}"
    return given


def with_variables(given: Mapping[str, str], wanted: Environment) -> dict[str, str]:
    """The variables of a training process, with those of ``environment`` on top.

    They differ for processes that see accelerators.
    """
    found = {**given, **wanted.environment_variables}
    return found | (wanted.cuda_variables if devices(found, 0, 1) else wanted.cpu_variables)
