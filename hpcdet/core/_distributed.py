"""``context.distributed``: ranks, and small talk between them."""

from __future__ import annotations

from typing import Any, TypeVar

from hpcdet.errors import UsageError
from hpcdet.process.ranks import Ranks
from hpcdet.train.comm.collectives import Peers

T = TypeVar("T")
_WHERE = "context.distributed"


class DistributedContext:
    """Every rank must make the same calls in the same order.

    Values may consist of None, bool, int, float, str, bytes, list, tuple, dict, numpy arrays and
    tensors; all else is a ``TypeError`` on all ranks, as it is where one rank is alone. What
    arrives is a copy, on the rank that has sent it, too; tensors arrive in main memory.

    Made by code written for Determined, it says which rank this process is; ranks are started by
    hpcdet (or by who sets ``RANK`` and ``WORLD_SIZE``), so that it must say the same.

    Args:
        rank, size: of all ranks; ``local_rank``, ``local_size``: of those on this node.
        cross_rank, cross_size: of the nodes.
        chief_ip, pub_port, pull_port, port_offset, force_tcp: Determined's; not needed.

    Raises:
        UsageError: this process was started as another rank.
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        local_rank: int,
        local_size: int,
        cross_rank: int,
        cross_size: int,
        chief_ip: str | None = None,
        pub_port: int = 0,
        pull_port: int = 0,
        port_offset: int = 0,
        force_tcp: bool = False,
    ) -> None:
        self._peers: Peers | None = None
        self._nodes: list[int] | None = None  # of each rank, once it has been asked
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local_rank, local_size
        self.cross_rank, self.cross_size = cross_rank, cross_size
        ranks = Ranks.from_environment()
        if (rank, size) != (ranks.rank, ranks.world):
            raise UsageError(
                f"the caller gives rank {rank} of {size}, and this process is rank {ranks.rank} "
                f"of {ranks.world}",
                where="DistributedContext",
                hint="leave it out and let the entrypoint be the script of one rank: hpcdet "
                "starts resources.slots_per_trial of them",
            )

    @classmethod
    def of(cls, ranks: Ranks, peers: Peers | None = None) -> DistributedContext:
        """Make the context of this process's ranks.

        Args:
            peers: None before ``core.init`` has brought the ranks together.
        """
        made = cls.__new__(cls)
        made._peers, made._nodes = peers, None
        made.rank, made.size = ranks.rank, ranks.world
        made.local_rank, made.local_size = ranks.local, ranks.local_world
        made.cross_rank = ranks.node
        made.cross_size = max(1, ranks.world // max(1, ranks.local_world))
        return made

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None) -> DistributedContext:
        """Determined's: what ``core.init`` takes as ``distributed``, and needs not.

        The ranks are those of the launcher, whoever it is; ``chief_ip`` is not needed.
        """
        return cls.of(Ranks.from_environment())

    from_deepspeed = from_torch_distributed

    @classmethod
    def from_horovod(cls, hvd: Any, chief_ip: str | None = None) -> DistributedContext:
        """Same as ``from_torch_distributed``."""
        return cls.of(Ranks.from_environment())

    def join(self, peers: Peers) -> None:
        """Made before ``core.init``, it can talk from now on."""
        self._peers = peers

    def close(self) -> None:
        """Determined's; leaving ``core.init`` is what counts."""

    def get_rank(self) -> int:
        return self.rank

    def get_size(self) -> int:
        return self.size

    def get_local_rank(self) -> int:
        return self.local_rank

    def get_num_agents(self) -> int:
        """Nodes of this trial."""
        return self.cross_size

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    def gather(self, stuff: T) -> list[T] | None:
        """Every rank's value on rank 0, None elsewhere."""
        values = self._talk().gather(stuff, f"{_WHERE}.gather")
        return values if self.rank == 0 else None

    def allgather(self, stuff: T) -> list[T]:
        """Every rank's value, everywhere."""
        return self._talk().allgather(stuff, f"{_WHERE}.allgather")

    def broadcast(self, stuff: T) -> T:
        """Rank 0's value, everywhere."""
        return self._talk().broadcast(stuff, f"{_WHERE}.broadcast")

    def allgather_local(self, stuff: T) -> list[T]:
        """The values of the ranks on this node."""
        return self._local(stuff, "allgather_local")

    def gather_local(self, stuff: T) -> list[T] | None:
        """The values of the ranks on this node, on the first of them."""
        values = self._local(stuff, "gather_local")
        return values if self.local_rank == 0 else None

    def broadcast_local(self, stuff: T | None = None) -> T | None:
        """The value of the first rank on this node."""
        return self._local(stuff if self.local_rank == 0 else None, "broadcast_local")[0]

    def _local(self, stuff: T, method: str) -> list[T]:
        if self._nodes is None:
            self._nodes = self._talk().allgather(self.cross_rank)
        everyone = self._talk().allgather(stuff, f"{_WHERE}.{method}")
        pairs = zip(self._nodes, everyone, strict=True)
        return [value for node, value in pairs if node == self.cross_rank]

    def _talk(self) -> Peers:
        if self._peers is None:
            raise UsageError("the ranks have not met yet", where="distributed", hint="core.init()")
        return self._peers
