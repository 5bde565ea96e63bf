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
        return Launch(argv, environ, ({},), by_launcher=True)

    def nursery(self, request: NurseryRequest) -> Launch | str:
        """See ``common.RankLauncher``."""
        return "srun: each trial is a step of its own"

    def listener(self, args: Sequence[str], command: Sequence[str]) -> tuple[str, ...]:
        """See ``common.RankLauncher``."""
        return (
            *("srun", _NO_MPI, "--overlap", "--mem=0", "--nodes=1", "--ntasks=1", "--relative=0"),
            *("--cpus-per-task=1", "--cpu-bind=none", "--export=ALL", "--input=none"),
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
