"""``context.distributed``: ranks, and small talk between them."""

from __future__ import annotations

from typing import Any, TypeVar

from hpcdet.errors import UsageError
from hpcdet.train.peers import Peers
from hpcdet.train.ranks import Ranks

T = TypeVar("T")


class DistributedContext:
    """Every rank must make the same calls in the same order. Values are pickled.

    Args:
        peers: None before ``core.init`` has brought the ranks together.
    """

    def __init__(self, ranks: Ranks, peers: Peers | None = None) -> None:
        self._peers = peers
        self.rank, self.size = ranks.rank, ranks.world
        self.local_rank, self.local_size = ranks.local, ranks.local_world
        self.cross_rank = ranks.node
        self.cross_size = max(1, ranks.world // max(1, ranks.local_world))

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None) -> DistributedContext:
        """Determined's: what ``core.init`` takes as ``distributed``, and needs not.

        The ranks are those of the launcher, whoever it is; ``chief_ip`` is not needed.
        """
        return cls(Ranks.from_environment())

    @classmethod
    def from_deepspeed(cls, chief_ip: str | None = None) -> DistributedContext:
        """As ``from_torch_distributed``."""
        return cls(Ranks.from_environment())

    @classmethod
    def from_horovod(cls, hvd: Any, chief_ip: str | None = None) -> DistributedContext:
        """As ``from_torch_distributed``."""
        return cls(Ranks.from_environment())

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
        values = self._talk().gather(stuff)
        return values if self.rank == 0 else None

    def allgather(self, stuff: T) -> list[T]:
        """Every rank's value, everywhere."""
        return self._talk().allgather(stuff)

    def broadcast(self, stuff: T) -> T:
        """Rank 0's value, everywhere."""
        return self._talk().broadcast(stuff)

    def allgather_local(self, stuff: T) -> list[T]:
        """The values of the ranks on this node."""
        everyone = self._talk().allgather((self.cross_rank, stuff))
        return [value for node, value in everyone if node == self.cross_rank]

    def gather_local(self, stuff: T) -> list[T] | None:
        """The values of the ranks on this node, on the first of them."""
        values = self.allgather_local(stuff)
        return values if self.local_rank == 0 else None

    def broadcast_local(self, stuff: T | None = None) -> T | None:
        """The value of the first rank on this node."""
        return self.allgather_local(stuff)[0]

    def _talk(self) -> Peers:
        if self._peers is None:
            raise UsageError("the ranks have not met yet", where="distributed", hint="core.init()")
        return self._peers
