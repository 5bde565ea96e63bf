"""``context.distributed``: ranks, and small talk between them."""

from __future__ import annotations

from typing import TypeVar

from hpcdet.train.session import Session

T = TypeVar("T")


class DistributedContext:
    """Every rank must make the same calls in the same order. Values are pickled."""

    def __init__(self, session: Session) -> None:
        self._session = session
        ranks = session.ranks
        self.rank, self.size = ranks.rank, ranks.world
        self.local_rank, self.local_size = ranks.local, ranks.local_world
        self.cross_rank = ranks.node
        self.cross_size = max(1, ranks.world // max(1, ranks.local_world))

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
        values = self._session.peers.gather(stuff)
        return values if self.rank == 0 else None

    def allgather(self, stuff: T) -> list[T]:
        """Every rank's value, everywhere."""
        return self._session.peers.allgather(stuff)

    def broadcast(self, stuff: T) -> T:
        """Rank 0's value, everywhere."""
        return self._session.peers.broadcast(stuff)

    def allgather_local(self, stuff: T) -> list[T]:
        """The values of the ranks on this node."""
        everyone = self._session.peers.allgather((self.cross_rank, stuff))
        return [value for node, value in everyone if node == self.cross_rank]

    def gather_local(self, stuff: T) -> list[T] | None:
        """The values of the ranks on this node, on the first of them."""
        values = self.allgather_local(stuff)
        return values if self.local_rank == 0 else None

    def broadcast_local(self, stuff: T) -> T:
        """The value of the first rank on this node."""
        return self.allgather_local(stuff)[0]
