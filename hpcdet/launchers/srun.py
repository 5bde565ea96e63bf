"""``srun``: each step is one of Slurm's."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from hpcdet.launchers.common import Launch, NurseryRequest, RankDeath, StepRequest

# Sizes of the allocation that srun takes for those of the step, where it is told no other.
_SIZE = ("SLURM_GPUS", "SLURM_GRES", "SLURM_MEM_PER_", "SLURM_NTASKS_PER_GPU")
_KILLED = re.compile(r"srun: error: \S+ tasks? \S+: Killed")
_EXITED = re.compile(r"srun: error: \S+ tasks? (\d+)\S*: Exited with exit code")
_NO_MPI = "--mpi=none"
_WHOLE = re.compile(r"--(account|qos|mpi|quiet|verbose|time|overlap|cpu-bind=none|export=ALL)\b")
"""Arguments that mean the same for a step of nurseries as for one of ranks."""
_BINDS = (
    "SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_GPU_BIND", "SLURM_NTASKS_PER_GPU",
    "SLURM_MEM_BIND", "SLURM_HINT", "SLURM_TASK_PROLOG",
)  # fmt: skip
"""Variables by which srun gives each task something of its own."""


class Srun:
    """``common.RankLauncher`` for ``srun``."""

    command = "srun"
    starters = frozenset({"srun"})
    contains = True
    divides = True
    alone = (_NO_MPI, "--ntasks=1", "--input=none")

    def step(self, request: StepRequest) -> Launch:
        """See ``common.RankLauncher``."""
        options = [
            f"--nodes={request.nodes}",
            f"--ntasks={request.ranks}",
            f"--ntasks-per-node={request.ranks_per_node}",
            f"--cpus-per-task={request.cpus_per_rank}",
            "--exact",  # only what it asks for: else it waits for all that the listener holds
            "--cpu-bind=none",
            "--kill-on-bad-exit=1",  # a dead rank must not leave the others waiting for it
            "--wait=60",
            "--export=ALL",  # the job itself was submitted with an empty environment
            "--input=none",
            f"--job-name={request.name}",
        ]
        if request.memory_per_node:
            options.append(f"--mem={math.ceil(request.memory_per_node / 2**20)}M")
        if not request.mpi:  # what the site says of it comes later, and wins
            options.append(_NO_MPI)
        environ = request.environ
        if request.hosts:
            options.append(f"--nodelist={','.join(request.hosts)}")
        if request.lanes > 1 or request.hosts:
            options += _part(environ, request)
            environ = {n: value for n, value in environ.items() if not n.startswith(_SIZE)}
        argv = (request.command or self.command, *options, *request.args, *request.rank)
        forked = tuple(_of_node(request, node) for node in range(request.nodes))
        rank = request.rank
        return Launch(
            argv, environ, ({},), by_launcher=True, rank=rank, forked=forked, prefix="SLURM_"
        )

    def nursery(self, request: NurseryRequest) -> Launch | str:
        """See ``common.RankLauncher``."""
        if why := _own_step(request):
            return why
        options = [
            f"--nodes={request.nodes}",
            f"--ntasks={request.nodes}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={request.ranks_per_node * request.cpus_per_rank}",
            *("--overlap", "--mem=0"),  # it holds nothing that a later step would wait for
            *("--cpu-bind=none", "--kill-on-bad-exit=1", "--export=ALL", "--input=all"),
            *("--job-name=nursery", _NO_MPI),
        ]
        argv = (request.command or self.command, *options, *request.args, *request.process)
        return Launch(argv, request.environ, ({},), by_launcher=True)

    def listener(self, args: Sequence[str], command: Sequence[str]) -> tuple[str, ...]:
        """See ``common.RankLauncher``."""
        return (
            *("srun", _NO_MPI, "--overlap", "--mem=0", "--nodes=1", "--ntasks=1", "--relative=0"),
            *("--cpus-per-task=1", "--cpu-bind=none", "--export=ALL", "--input=all"),
            *("--job-name=listener", *(arg for arg in args if arg.startswith("--account"))),
            *command,
        )

    def objection_to_mpi(self, args: Sequence[str]) -> tuple[str, str]:
        """See ``common.RankLauncher``."""
        if _NO_MPI not in args:
            return "", ""
        return (
            f"the site's launcher has {_NO_MPI}, which keeps MPI from srun's ranks",
            "--mpi=pmix or --mpi=pmi2 (`srun --mpi=list` names what there is)",
        )

    def death(self, said: str) -> RankDeath | None:
        """See ``common.RankLauncher``.

        Only SIGKILL counts, and only before any other exit: srun itself sends those that follow.
        """
        killed, exited = _KILLED.search(said), _EXITED.search(said)
        if killed and (not exited or killed.start() < exited.start()):
            return RankDeath("SIGKILL")
        return None

    def first_failed(self, said: str) -> int | None:
        """See ``common.RankLauncher``."""
        found = _EXITED.search(said)
        return int(found[1]) if found else None

    def lost_node(self, said: str) -> bool:
        """Slurm itself ends the step then."""
        return False


def _own_step(request: NurseryRequest) -> str:
    """Return why each trial has to be a step of its own; "" if it need not."""
    if request.mpi:
        return "MPI has to begin with the step"
    if request.memory_per_node:
        return "a step bounds the memory of its trial (resources.memory_per_slot)"
    if request.lanes > 1:
        return "a step gives each of several trials its part of the node"
    odd = (arg for arg in request.args if not _WHOLE.match(arg))
    if (arg := next(odd, "")) or (arg := next(filter(request.environ.get, _BINDS), "")):
        return f"{arg} may give each rank something of its own"
    return ""


def _of_node(request: StepRequest, node: int) -> tuple[Mapping[str, str], ...]:
    """Return the variables of the ranks of a node, as those of a step of their own have them."""
    each, first = request.ranks_per_node, node * request.ranks_per_node
    of_all = {
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(request.ranks)),
        "SLURM_STEP_NUM_TASKS": str(request.ranks),
        "SLURM_NTASKS_PER_NODE": str(each),
        "SLURM_CPUS_PER_TASK": str(request.cpus_per_rank),
        "SLURM_STEP_TASKS_PER_NODE": f"{each}(x{request.nodes})"
        if request.nodes > 1
        else f"{each}",
    }
    return tuple(
        {**of_all, "SLURM_PROCID": str(first + local), "SLURM_LOCALID": str(local)}
        for local in range(each)
    )


def _part(environ: Mapping[str, str], request: StepRequest) -> Iterator[str]:
    """Yield the options without which a step takes the whole allocation and others wait."""
    lanes, gpus = request.lanes, request.gpus
    if not request.memory_per_node:
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


LAUNCHER = Srun()
