"""Launch of the ranks of one attempt inside an allocation.

A step is one or more processes: the launcher's own (``srun``, ``mpirun``), or, where there is no
launcher, one per rank.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hpcdet.jobs.script import environment
from hpcdet.jobs.script.lanes import devices
from hpcdet.site.models import Launcher, Site
from hpcdet.store.config.placement import Resources
from hpcdet.store.config.resolved_config import Environment, Resolved
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths

# What Slurm says of the batch step's own place. srun replaces it; other launchers do not.
_SLURM_RANK = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASK_PID", "SLURM_GTIDS"),
    *("SLURM_STEP", "SLURM_SRUN_", "SLURM_PMI", "SLURM_LAUNCH_NODE_IPADDR"),
)
# Sizes of the allocation that srun takes for those of the step, where it is told no other.
_SLURM_SIZE = ("SLURM_GPUS", "SLURM_GRES", "SLURM_MEM_PER_", "SLURM_NTASKS_PER_GPU")
# On one node Open MPI needs no transport that opens ports; those left out would (libfabric's, too).
_SHARED_MEMORY = ("OMPI_MCA_btl", "^tcp,ofi")


@dataclass(frozen=True)
class Allocation:
    """The allocation of this worker.

    Attributes:
        job: the scheduler's id of the task (``812_3``), "" outside a scheduler.
        nodes: names of the nodes.
        restart: how often the scheduler has requeued this task.
        end_at: when it ends, epoch seconds; None if it does not.
        slurm: it is an allocation of Slurm, where a step can listen for its signals.
    """

    job: str
    nodes: tuple[str, ...]
    restart: int = 0
    end_at: float | None = None
    slurm: bool = False


@dataclass(frozen=True)
class Launch:
    """A step, ready to be started: ``argv`` once for each entry of ``processes``.

    Attributes:
        environment: complete, without what belongs to another step.
        processes: what each process has in its environment on top.
        by_launcher: the process is a launcher that starts the ranks elsewhere.
        end_signal: makes a launcher end its ranks everywhere. Where it is not SIGTERM, that is
            kept from the launcher: schedulers send it as a notice, to whatever they find.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    processes: tuple[Mapping[str, str], ...]
    by_launcher: bool
    end_signal: signal.Signals = signal.SIGTERM


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
        lane: which of the trials side by side in this allocation it is, from 0.
        identity: what ranks must find in the folder (``store.folder.held_folder``); "": nothing.
    """
    python = experiment.environment.python or site.python or sys.executable
    place = (str(paths.root), str(attempt.trial), str(attempt.number))
    same = ("--identity", identity) if identity else ()
    rank = (python, "-Pm", "hpcdet.attempt", *place, *same)
    given = with_variables(clean_environment(os.environ), experiment.environment)
    given["HPCDET_BACKEND"] = experiment.distributed.backend
    if allocation.end_at is not None:
        given["HPCDET_DEADLINE"] = f"{allocation.end_at:.3f}"
    given["HPCDET_GRACE"] = f"{site.limits.kill_wait_s:g}"
    launcher = site.view(experiment.resources.resource_pool).launcher
    side_by_side = experiment.lanes
    gpus = _granted_gpus(given) if launcher.kind == "srun" else 0
    if side_by_side > 1 and not gpus:
        given.update(devices(given, lane, side_by_side))
    if launcher.kind == "local":
        world = experiment.resources.slots_per_trial
        ranks = tuple(_local_rank(rank_, world) for rank_ in range(world))
        return Launch(rank, given, ranks, by_launcher=False)
    if launcher.kind == "mpirun":
        argv = (*_mpirun(launcher, experiment.resources), *rank)
        if experiment.resources.nodes == 1:
            given.setdefault(*_SHARED_MEMORY)
        given.update(_for_daemons(python, allocation))
        return Launch(argv, given, ({},), by_launcher=True, end_signal=signal.SIGINT)
    name = f"{attempt.trial}-{attempt.number}"
    part: Iterable[str] = ()
    if side_by_side > 1:
        part = list(_part_of(given, experiment.resources, gpus, side_by_side))
        given = {n: value for n, value in given.items() if not n.startswith(_SLURM_SIZE)}
    fabric = () if experiment.distributed.backend == "mpi" else ("--mpi=none",)
    part = (*fabric, *part)  # what the site says of it comes later, and wins
    argv = (*_srun(launcher, experiment.resources, name, part), *rank)
    return Launch(argv, given, ({},), by_launcher=True)


def listener_argv(launcher: Launcher, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a step on the first node that receives the signals Slurm sends to steps only."""
    return (
        *("srun", "--mpi=none", "--overlap", "--mem=0", "--nodes=1", "--ntasks=1", "--relative=0"),
        *("--cpus-per-task=1", "--cpu-bind=none", "--export=ALL", "--input=none"),
        *("--job-name=listener", *(arg for arg in launcher.args if arg.startswith("--account"))),
        *command,
    )


def with_variables(given: Mapping[str, str], wanted: Environment) -> dict[str, str]:
    """The variables of a training process, with those of ``environment`` on top.

    They differ for processes that see accelerators.
    """
    found = {**given, **wanted.environment_variables}
    return found | (wanted.cuda_variables if devices(found, 0, 1) else wanted.cpu_variables)


def clean_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Without rank, PMI and binding variables; the allocation's own (``SLURM_JOB_ID``) stay."""
    kept = environment.for_step(variables)
    return {name: value for name, value in kept.items() if not name.startswith(_SLURM_RANK)}


def _local_rank(rank: int, world: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world),
        "NODE_RANK": "0",
    }


def _srun(
    launcher: Launcher, resources: Resources, name: str, part: Iterable[str]
) -> tuple[str, ...]:
    per_node = resources.slots_per_node or resources.slots_per_trial // resources.nodes
    options = [
        f"--nodes={resources.nodes}",
        f"--ntasks={resources.slots_per_trial}",
        f"--ntasks-per-node={per_node}",
        f"--cpus-per-task={resources.cpus_per_slot}",
        "--exact",  # only what it asks for: else it waits for all that the listener holds
        "--cpu-bind=none",
        "--kill-on-bad-exit=1",  # a dead rank must not leave the others waiting for it
        "--wait=60",
        "--export=ALL",  # the job itself was submitted with an empty environment
        "--input=none",
        f"--job-name={name}",
    ]
    if resources.memory_per_slot:
        options.append(f"--mem={_mebibytes(resources.memory_per_slot * per_node)}M")
    return ("srun", *options, *part, *launcher.args)


def _part_of(
    environ: Mapping[str, str], resources: Resources, gpus: int, lanes: int
) -> Iterator[str]:
    """Yield the options without which a step takes the whole allocation and others wait.

    Args:
        gpus: that Slurm has granted on this node, however they were asked for.
    """
    if not resources.memory_per_slot:
        if whole := environ.get("SLURM_MEM_PER_NODE"):
            yield f"--mem={int(whole) // lanes}M"
        elif per_cpu := environ.get("SLURM_MEM_PER_CPU"):
            yield f"--mem-per-cpu={per_cpu}M"
        else:
            yield "--mem=0"
    if gpus >= lanes:
        yield f"--gres=gpu:{gpus // lanes}"
    elif gpus:
        yield from ("--overlap", f"--gres=gpu:{gpus}")


def _granted_gpus(environ: Mapping[str, str]) -> int:
    count = environ.get("SLURM_GPUS_ON_NODE", "")
    return int(count) if count.isdecimal() else 0


def _mpirun(launcher: Launcher, resources: Resources) -> tuple[str, ...]:
    per_node = resources.slots_per_node or resources.slots_per_trial // resources.nodes
    return (
        *("mpirun", "-np", str(resources.slots_per_trial)),
        # what is free has been counted by the scheduler, or by the local backend
        *("--map-by", f"ppr:{per_node}:node:OVERSUBSCRIBE", "--bind-to", "none"),
        *launcher.args,
    )


def _for_daemons(python: str, allocation: Allocation) -> dict[str, str]:
    """Return the variables with which Open MPI starts its daemons on other nodes by ``srun``."""
    if not allocation.slurm:
        return {}
    daemon = f"{python} -Pm hpcdet.worker.remote"
    return {
        "OMPI_MCA_orte_launch_agent": f"{daemon} orted",
        "PRTE_MCA_prte_launch_agent": f"{daemon} prted",
        "SRUN_EXPORT_ENV": "ALL",  # the job itself was submitted with an empty environment
        "SLURM_CPU_BIND": "none",
        "SLURM_OVERLAP": "1",  # a step beside the listener, and beside other lanes
    }


def _mebibytes(amount: int) -> int:
    return math.ceil(amount / 2**20)
