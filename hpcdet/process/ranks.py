"""The rank of this process, from its launcher's environment variables."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcdet.errors import ConfigError

JOB_CGROUP = re.compile(r"job_\d+|.*pbs.*\d+.*|\d+\.[\w.-]+")
"""The folder of a job among cgroups: Slurm's ``job_12``, PBS's by its id."""
PEER_LOST = os.EX_TEMPFAIL
"""Exit code of a rank whose peers are gone: nobody's fault here."""

# variable names of rank, world, local rank, local world, node; tried from top to bottom. Open MPI
# numbers no nodes: its NODE_RANK counts the processes of all jobs on one
_LAUNCHERS: tuple[tuple[str, str, str, str, str], ...] = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ""),
)
# what `srun --mpi=pmi2` sets, too: it does not know nodes, and Slurm's own variables do
_PLAIN_PMI = ("PMI_RANK", "PMI_SIZE", "", "", "")


@dataclass(frozen=True)
class Ranks:
    """One rank among ``world``; ``local`` of ``local_world`` on its ``node``."""

    rank: int = 0
    world: int = 1
    local: int = 0
    local_world: int = 1
    node: int = 0

    @property
    def chief(self) -> bool:
        """The one that writes what all have in common."""
        return self.rank == 0

    def variables(self) -> dict[str, str]:
        """Return the variables that torch's launcher would have set for this rank."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(self.local),
            "LOCAL_WORLD_SIZE": str(self.local_world),
            "NODE_RANK": str(self.node),
        }

    @staticmethod
    def from_environment(env: Mapping[str, str] = os.environ) -> Ranks:
        """Return the ranks by the launcher's variables; without any, one rank of one.

        A Slurm step sets ``SLURM_STEP_ID`` (a batch script's own processes have the rest of
        ``SLURM_*`` without being ranks of anything).

        Raises:
            ConfigError: a rank that is not below the number of ranks.
        """
        named = (_named(env, names) for names in _LAUNCHERS)
        found = next(filter(None, named), None) or _slurm(env) or _named(env, _PLAIN_PMI) or Ranks()
        if not 0 <= found.rank < found.world:
            raise ConfigError(
                f"rank {found.rank} of {found.world} cannot be",
                where="environment",
                hint="RANK, WORLD_SIZE and the like are left over from another launcher",
            )
        return found


def node_name(env: Mapping[str, str] = os.environ) -> str:
    """Return the scheduler's name of this rank's node; without a scheduler, the host's."""
    return env.get("SLURMD_NODENAME") or socket.gethostname()


def node_of_step() -> int:
    """Return the number of this node among those of the step, from 0."""
    return int(os.environ.get("SLURM_NODEID", "0"))


def renumber() -> None:
    """Name this process, which a process of the step has forked, as the step's own."""
    if "SLURM_TASK_PID" in os.environ:
        os.environ["SLURM_TASK_PID"] = str(os.getpid())


def node_names(env: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of the nodes of all ranks, one of each; none where they are unknown."""
    if (file := env.get("PBS_NODEFILE")) and Path(file).is_file():
        return list(dict.fromkeys(Path(file).read_text().split()))
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"):
        if name in env:
            return expand(env[name])
    return []


def _named(env: Mapping[str, str], names: tuple[str, str, str, str, str]) -> Ranks | None:
    rank, world, local, local_world, node = names
    if rank not in env or world not in env or (names in _LAUNCHERS[1:] and local not in env):
        return None
    # where the launcher says nothing about nodes, all ranks are taken to share one
    number, here = int(env[rank]), int(env.get(local_world, env[world]))
    return Ranks(
        rank=number,
        world=int(env[world]),
        local=int(env.get(local, env[rank])),
        local_world=here,
        # nodes are filled one after the other
        node=int(env[node]) if node in env else number // here,
    )


def _slurm(env: Mapping[str, str]) -> Ranks | None:
    if not env.get("SLURM_STEP_ID", "").isdigit() or "SLURM_PROCID" not in env:
        return None
    node = int(env.get("SLURM_NODEID", "0"))
    return Ranks(
        rank=int(env["SLURM_PROCID"]),
        world=int(env.get("SLURM_STEP_NUM_TASKS") or env.get("SLURM_NTASKS", "1")),
        local=int(env.get("SLURM_LOCALID", "0")),
        local_world=_tasks(env.get("SLURM_STEP_TASKS_PER_NODE", "1"), node),
        node=node,
    )


def _tasks(text: str, node: int) -> int:
    """The tasks on one node in Slurm's compressed list: ``2(x3),1``."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match:
            counts += [int(match[1])] * int(match[2] or 1)
    return counts[node] if node < len(counts) else 1


def expand(nodes: str) -> list[str]:
    """The names in a list as Slurm writes it: ``gpu[1-3,07],login``."""
    found: list[str] = []
    for part in re.findall(r"(?:\[[^]]*\]|[^,\[])+", nodes):
        found += _expand_one(part)
    return found


def _expand_one(part: str) -> list[str]:
    start, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, _, end = rest.partition("]")
    numbers: list[str] = []
    for each in inside.split(","):
        first, _, last = each.partition("-")
        span = range(int(first), int(last or first) + 1)
        numbers += [f"{number:0{len(first)}d}" for number in span]
    return [start + number + tail for number in numbers for tail in _expand_one(end)]
