"""Which rank this process is, from what its launcher says."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hpcdet.errors import ConfigError

PEER_LOST = os.EX_TEMPFAIL
"""Exit code of a rank whose peers are gone: nobody's fault here."""

# variable names of rank, world, local rank, local world, node; tried from top to bottom
_LAUNCHERS: tuple[tuple[str, str, str, str, str], ...] = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_COMM_WORLD_NODE_RANK",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_NODE_RANK"),
)


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

    @staticmethod
    def from_environment(env: Mapping[str, str] = os.environ) -> Ranks:
        """What the launcher says; alone, one rank of one.

        A Slurm step sets ``SLURM_STEP_ID`` (a batch script's own processes have the rest of
        ``SLURM_*`` without being ranks of anything).

        Raises:
            ConfigError: a rank that is not below the number of ranks.
        """
        found = _named(env) or _slurm(env) or Ranks()
        if not 0 <= found.rank < found.world:
            raise ConfigError(
                f"rank {found.rank} of {found.world} cannot be",
                where="environment",
                hint="RANK, WORLD_SIZE and the like are left over from another launcher",
            )
        return found


def _named(env: Mapping[str, str]) -> Ranks | None:
    for rank, world, local, local_world, node in _LAUNCHERS:
        if rank in env and world in env:
            size = int(env[world])
            # where the launcher says nothing about nodes, all ranks are taken to share one
            return Ranks(
                rank=int(env[rank]),
                world=size,
                local=int(env.get(local, env[rank])),
                local_world=int(env.get(local_world, env[world])),
                node=int(env.get(node, "0")),
            )
    return None


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
