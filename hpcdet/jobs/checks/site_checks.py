"""Checks of an experiment at a site, before it is submitted."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import socket
import sys
from dataclasses import replace
from pathlib import Path

from hpcdet.errors import ConfigError, Unavailable
from hpcdet.jobs.checks import queue_limits, quota
from hpcdet.jobs.create import image_checks
from hpcdet.jobs.create.code_drift import code_differs
from hpcdet.jobs.script import interpreters, requirements
from hpcdet.launchers import opening as launchers
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.base import HasFeatures, PartitionInfo, Queues
from hpcdet.schedulers.common.request import NodeRequest
from hpcdet.schedulers.opening import open_scheduler
from hpcdet.site import PartitionView, Site, folders, shell_variables
from hpcdet.site.partitions import Partition
from hpcdet.store.config import mpi_torch
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder import trust
from hpcdet.units import clock_time

__all__ = ["code_differs", "login_node", "preflight", "refuse_impossible"]

_LOGIN = re.compile(r"^(?:login|head|front|submit|access|gateway)", re.IGNORECASE)
SUSPENDS = "suspends jobs (PreemptMode SUSPEND or GANG), which is not supported"
CHOOSE_ANOTHER = "choose a partition where jobs are requeued or canceled instead"


def preflight(
    experiment: Resolved,
    site: Site,
    root: Path,
    *,
    submits: bool = True,
    required: NodeRequest | None = None,
) -> list[str]:
    """Look at an experiment that is about to be submitted.

    Args:
        root: the folder of experiments.
        submits: False if it is only looked at or prepared: a scheduler that does not answer
            is then a warning.
        required: what a policy requires of nodes.

    Returns:
        Warnings, one sentence each.

    Raises:
        ConfigError: it can never run here: no such partition, or one that suspends jobs, nodes or
            a walltime outside its bounds, a name that is too long, more slots than a node has, no
            backend, options that the scheduler cannot take, MPI from a launcher that has none, an
            image or staged data that cannot be had; or, unasked, ``local`` on a login node or a
            preemptible partition.
        Unavailable: the scheduler does not answer. Said now, not after the experiment is made.
    """
    said = refuse_impossible(experiment, site, submits=submits, required=required)
    view = site.view(experiment.resources.resource_pool)
    image_checks.refuse_unusable(experiment, site, view, root)
    queue_limits.refuse_long_name(experiment, site)
    said += queue_limits.refuse_preemptible(experiment, site)
    said += queue_limits.warnings(experiment, site, view)
    said += _fabric(experiment, site, view)
    said += [f"site {site.name}: {text}" for text in shell_variables.unset(site)]
    size = quota.former(root, experiment.name)
    stores = [place for place in (root, folders.scratch(site, root)) if place]
    fits = [text for place in stores for text in quota.warnings(experiment, site, place, size)]
    said += [text for place in stores for text in trust.exchangeable(place)]
    return [*said, *_keeps(experiment, site, root), *dict.fromkeys(fits), *without_submitter(site)]


def refuse_impossible(
    experiment: Resolved, site: Site, *, submits: bool = True, required: NodeRequest | None = None
) -> list[str]:
    """Refuse resources that the site can never give; arguments and errors as of ``preflight``.

    Returns:
        Warnings of a partition that is down, or of a scheduler that does not answer.
    """
    if site.fallback and (sign := login_node()):
        raise ConfigError(
            f"this looks like a login node ({sign}) and there is no scheduler here",
            where="site local",
            hint="jobs would run here: use --site local if that is intended",
        )
    if required is not None:
        requirements.refuse_undoing(experiment, site, required)
    refuse_by_file(experiment, site)
    view = site.view(experiment.resources.resource_pool)
    said: list[str] = []
    chosen: list[PartitionInfo] = []
    try:
        chosen = _partitions(site, view)
        _refuse_nowhere(experiment, site, view, required)
    except Unavailable as error:
        if submits:
            hint = error.hint or "try again later; --site local runs it on this machine"
            raise Unavailable(error.what, where=f"site {site.name}", hint=hint) from error
        said.append(f"the scheduler does not answer: {error.what}")
    if chosen and not any(partition.up for partition in chosen):
        names = ", ".join(partition.name for partition in chosen)
        said.append(f"partition {names} is down: jobs wait there until it is up")
    # of several, the scheduler takes the first that fits
    queue_limits.one_of(chosen or [None], lambda one: _refuse_too_much(experiment, view, one))
    if experiment.worker.node_groups > 1 and launchers.kind_of(site, view) == "local":
        raise ConfigError(
            f"trials on {experiment.allocation.nodes} nodes, and the launcher local has one",
            where="worker.node_groups",
            hint="site file: launcher: {kind: mpirun} (docs/guides/sites.md)",
        )
    return said


def refuse_by_file(experiment: Resolved, site: Site) -> None:
    """Refuse requests beyond the site file, without a question to the scheduler.

    Raises:
        ConfigError: a wrong pool, option, number of nodes or walltime.
    """
    queue_limits.refuse_pool(experiment.resources.resource_pool, site)
    opening.of(site).script.check(experiment.user_options(site.scheduler))
    queue_limits.refuse_beyond_all(experiment.allocation, site)


def login_node() -> str:
    """Return the signs that this host is a login node; empty if there are none."""
    name = socket.gethostname()
    if _LOGIN.match(name):
        return f"its name is {name}"
    return "it has environment modules" if os.environ.get("LMOD_CMD") else ""


def partitions(site: Site) -> list[PartitionInfo]:
    """Return the partitions of a site. Raises as ``open_scheduler`` and ``Queues``."""
    scheduler = open_scheduler(site)
    return scheduler.partitions() if isinstance(scheduler, Queues) else []


def _partitions(site: Site, view: PartitionView) -> list[PartitionInfo]:
    """The partitions of a job as the scheduler knows them; []: no default one, or no scheduler."""
    open_scheduler(site)  # refuses a site without a backend
    name = view.directives.get("partition")
    there = {info.name: info for info in partitions(site)}
    if name is None:
        name = next((info.name for info in there.values() if info.default), None)
    if not there or name is None:
        return []
    chosen = str(name).split(",")
    if unknown := [part for part in chosen if part not in there]:
        raise ConfigError(
            f"there is no partition {unknown[0]}",
            where="resources.resource_pool",
            hint=f"partitions here: {', '.join(sorted(there))}",
        )
    for part in chosen:
        if there[part].suspends:
            what = f"partition {part} {SUSPENDS}"
            raise ConfigError(what, where="resources.resource_pool", hint=CHOOSE_ANOTHER)
    return [there[part] for part in chosen]


def _refuse_nowhere(
    experiment: Resolved, site: Site, view: PartitionView, required: NodeRequest | None
) -> None:
    """Refuse jobs under a policy that no nodes could ever take. Raises PolicyRefused: P17."""
    scheduler = open_scheduler(site)
    if required is None or not isinstance(scheduler, HasFeatures):
        return
    user = experiment.user_options(site.scheduler)
    asked = opening.of(site).script.place(experiment.resources.resource_pool, user)
    place = required.settings.get("partition") or asked or view.directives.get("partition")
    need = experiment.allocation.least_nodes
    requirements.refuse_unsatisfiable(
        required, str(place) if place else None, need, scheduler.node_groups()
    )


def _refuse_too_much(
    experiment: Resolved, view: PartitionView, partition: PartitionInfo | None
) -> None:
    need, job, lanes = experiment.resources, experiment.allocation, experiment.lanes_per_node
    limits = [view.max_walltime_s, partition.max_walltime_s if partition else None]
    limit = min((value for value in limits if value is not None), default=None)
    name = partition.name if partition else view.name or "default"
    if need.walltime_s is not None and limit is not None and need.walltime_s > limit:
        raise ConfigError(
            f"{clock_time(need.walltime_s)} is over the limit of partition {name}",
            where="resources.walltime_s",
            hint=f"at most {clock_time(limit)}; trials go on in the next allocation by themselves",
        )
    slots = job.slots_per_node
    if view.slots_per_node is not None and slots > view.slots_per_node:
        raise ConfigError(
            f"{slots} slots on one node; those of {name} have {view.slots_per_node}",
            where="resources.slots_per_node" if lanes == 1 else "worker.lanes",
            hint="spread the trial over more nodes: resources.nodes"
            if lanes == 1
            else f"{need.slots_per_node} for each of {lanes} trials; auto finds what fits",
        )
    cpus = slots * need.cpus_per_slot
    if view.cpus_per_node is not None and cpus > view.cpus_per_node:
        raise ConfigError(
            f"{cpus} cores on one node; those of {name} have {view.cpus_per_node}",
            where="resources.cpus_per_slot" if lanes == 1 else "worker.lanes",
        )
    if partition is None:
        return
    if job.least_nodes > partition.widest:
        raise ConfigError(
            f"{job.least_nodes} nodes; partition {name} gives a job at most {partition.widest}",
            where="resources.nodes",
        )
    least = Partition(min_nodes=partition.min_nodes, min_walltime_s=partition.min_walltime_s)
    queue_limits.refuse_beyond(job, replace(view, name=name, bounds=least, max_walltime_s=None))


def _fabric(experiment: Resolved, site: Site, view: PartitionView) -> list[str]:
    """Check that ranks with MPI can be started, as far as is visible from here."""
    if experiment.distributed.backend != "mpi" or experiment.resources.slots_per_trial == 1:
        return []
    where = "distributed.backend: mpi"
    launcher = launchers.launcher(launchers.kind_of(site, view))
    what, hint = launcher.objection_to_mpi(view.launcher.args)
    if what:
        raise ConfigError(what, where=where, hint=hint)
    if interpreters.of_ranks(experiment, site) != sys.executable:
        return []
    if why := mpi_torch.objection():
        raise ConfigError(why, where=where, hint=mpi_torch.repair())
    if importlib.util.find_spec("mpi4py") is None:
        return ["mpi4py is not installed here; ranks need it: python -m pip install 'hpcdet[mpi]'"]
    return []


def _keeps(experiment: Resolved, site: Site, root: Path) -> list[str]:
    """Check that the files outlive the run."""
    days, purged = site.paths.purge_days, folders.folder(site.paths.scratch)
    walltime = experiment.resources.walltime_s
    if days is None or purged is None or walltime is None:
        return []
    apart = folders.scratch(site, root)
    if apart is None and not root.resolve().is_relative_to(purged.resolve()):
        return []
    searcher = experiment.searcher
    rounds = math.ceil(searcher.max_trials / max(1, searcher.max_concurrent_trials))
    if rounds * walltime < days * 86400 / 2:
        return []
    if apart is not None:
        return [
            f"{apart} is purged after {days} days, and with time in the queue the run may take "
            "longer: old logs go, and a trial that has waited so long goes on from what the "
            "checkpoint policy keeps on project storage"
        ]
    return [
        f"{root} is purged after {days} days, and with time in the queue the run may take longer; "
        "HPCDET_ROOT puts experiments elsewhere"
    ]


def without_submitter(site: Site) -> list[str]:
    """Check that some process will be able to decide what comes next."""
    if not site.capabilities.nobody_submits:
        return []
    return [
        "at this site workers cannot submit, and there may be no other process to do it: spare "
        "tasks wait in the queue (worker.spares); once they are used up a sentinel job tells you, "
        "and `hpcdet resume` submits more"
    ]
