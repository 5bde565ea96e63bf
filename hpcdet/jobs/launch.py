"""How the ranks of one attempt are started inside an allocation.

A step is one or more processes: the launcher's own (``srun``, ``mpirun``), or, where there is no
launcher, one per rank.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from hpcdet.jobs import environment
from hpcdet.site.models import Launcher, Site
from hpcdet.store.config import Resolved, Resources
from hpcdet.store.layout import AttemptPaths, ExperimentPaths

# What Slurm says of the batch step's own place. srun replaces it; other launchers do not.
_SLURM_RANK = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASK_PID", "SLURM_GTIDS"),
    *("SLURM_STEP", "SLURM_SRUN_", "SLURM_PMI", "SLURM_LAUNCH_NODE_IPADDR"),
)


@dataclass(frozen=True)
class Allocation:
    """What the scheduler granted this worker.

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
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    processes: tuple[Mapping[str, str], ...]
    by_launcher: bool


def launch(
    experiment: Resolved,
    site: Site,
    paths: ExperimentPaths,
    attempt: AttemptPaths,
    allocation: Allocation,
) -> Launch:
    """How to start the ranks of an attempt with the launcher of the site."""
    python = experiment.environment.python or site.python or sys.executable
    place = (str(paths.root), str(attempt.trial), str(attempt.number))
    rank = (python, "-m", "hpcdet.attempt", *place)
    given = clean_environment(os.environ)
    given.update(experiment.environment.environment_variables)
    given["HPCDET_BACKEND"] = experiment.distributed.backend
    if allocation.end_at is not None:
        given["HPCDET_DEADLINE"] = f"{allocation.end_at:.3f}"
    launcher = site.view(experiment.resources.resource_pool).launcher
    if launcher.kind == "local":
        world = experiment.resources.slots_per_trial
        ranks = tuple(_local_rank(rank_, world) for rank_ in range(world))
        return Launch(rank, given, ranks, by_launcher=False)
    start = _srun if launcher.kind == "srun" else _mpirun
    argv = (*start(launcher, experiment.resources, f"{attempt.trial}-{attempt.number}"), *rank)
    return Launch(argv, given, ({},), by_launcher=True)


def listener_argv(launcher: Launcher, command: tuple[str, ...]) -> tuple[str, ...]:
    """A step beside all others on the first node, to hear what Slurm tells steps only."""
    return (
        *("srun", "--mpi=none", "--overlap", "--mem=0", "--nodes=1", "--ntasks=1", "--relative=0"),
        *("--cpus-per-task=1", "--cpu-bind=none", "--export=ALL", "--input=none"),
        *("--job-name=listener", *(arg for arg in launcher.args if arg.startswith("--account"))),
        *command,
    )


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


def _srun(launcher: Launcher, resources: Resources, name: str) -> tuple[str, ...]:
    per_node = resources.slots_per_node or resources.slots_per_trial // resources.nodes
    options = [
        "--mpi=none",
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
    return ("srun", *options, *launcher.args)


def _mpirun(launcher: Launcher, resources: Resources, name: str) -> tuple[str, ...]:
    per_node = resources.slots_per_node or resources.slots_per_trial // resources.nodes
    return (
        *("mpirun", "-np", str(resources.slots_per_trial)),
        *("--map-by", f"ppr:{per_node}:node", "--bind-to", "none"),
        *launcher.args,
    )


def _mebibytes(amount: int) -> int:
    return math.ceil(amount / 2**20)
