"""Without a launcher: each rank is a process of the worker, on this node."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdet.launchers.common import Launch, NurseryRequest, RankDeath, StepRequest


class NoLauncher:
    """``common.RankLauncher`` for ranks that the worker starts itself."""

    command = ""
    starters: frozenset[str] = frozenset()
    contains = False
    divides = False
    alone: tuple[str, ...] = ()

    def step(self, request: StepRequest) -> Launch:
        """See ``common.RankLauncher``."""
        ranks = tuple(_rank(number, request.ranks) for number in range(request.ranks))
        return Launch(
            request.rank, request.environ, ranks, False, rank=request.rank, forked=(ranks,)
        )

    def nursery(self, request: NurseryRequest) -> Launch | str:
        """See ``common.RankLauncher``."""
        return Launch(request.process, request.environ, ({},), by_launcher=False)

    def listener(self, args: Sequence[str], command: Sequence[str]) -> tuple[str, ...]:
        """See ``common.RankLauncher``."""
        return ()

    def objection_to_mpi(self, args: Sequence[str]) -> tuple[str, str]:
        """See ``common.RankLauncher``."""
        hint = "site file: launcher: {kind: mpirun} (docs/guides/sites.md); or backend: auto"
        return "this launcher starts processes without MPI", hint

    def death(self, said: str) -> RankDeath | None:
        """See ``common.RankLauncher``."""
        return None

    def first_failed(self, said: str) -> int | None:
        """See ``common.RankLauncher``."""
        return None

    def lost_node(self, said: str) -> bool:
        """See ``common.RankLauncher``."""
        return False


def _rank(rank: int, world: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world),
        "NODE_RANK": "0",
    }


LAUNCHER = NoLauncher()
