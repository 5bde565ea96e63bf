"""Objects of the user's that go into checkpoints beside what is known anyway."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpcdet.data import rng
from hpcdet.data.stream_readers import State, Stateful
from hpcdet.errors import UsageError
from hpcdet.train.comm.collectives import Peers


@dataclass(frozen=True)
class _Entry:
    item: Stateful
    per_rank: bool


class Registry:
    """Objects with ``state_dict`` and ``load_state_dict``, by name.

    Attributes:
        generators: random generators of the user's own, by name.
    """

    def __init__(self) -> None:
        self.generators: dict[str, rng.Generator] = {}
        self._entries: dict[str, _Entry] = {}

    def add(self, name: str, item: Any, *, per_rank: bool) -> None:
        """Take an object in, or a random generator.

        Raises:
            UsageError: it cannot say its state, or the name is taken.
        """
        if isinstance(item, rng.Generator):
            self.generators[name] = item
            return
        if not isinstance(item, Stateful):
            raise UsageError(
                f"a {type(item).__name__} has no state_dict and load_state_dict",
                where=f"register_state({name!r})",
                hint="add both; state_dict gives plain values, arrays and tensors",
            )
        if name in self._entries:
            raise UsageError("the name is taken", where=f"register_state({name!r})")
        self._entries[name] = _Entry(item, per_rank)

    def __iter__(self) -> Iterator[Any]:
        return (entry.item for entry in self._entries.values())

    def shared(self, peers: Peers | None) -> State:
        """For all ranks; of objects that each rank has for itself, rank 0's state.

        Args:
            peers: None where rank 0 saves alone.
        """
        states = {name: one.item.state_dict() for name, one in self._entries.items()}
        own = {name: states[name] for name, one in self._entries.items() if one.per_rank}
        if own and peers is not None and peers.ranks.world > 1:
            states |= peers.broadcast(own, "the state of what was registered")
        return states

    def private(self) -> State:
        """Return the state that belongs to this rank alone."""
        entries = self._entries.items()
        return {name: one.item.state_dict() for name, one in entries if one.per_rank}

    def load(self, shared: State, private: State | None) -> None:
        """Put back what is there: this rank's own state goes before rank 0's."""
        for name, one in self._entries.items():
            if private is not None and name in private:
                one.item.load_state_dict(private[name])
            elif name in shared:
                one.item.load_state_dict(shared[name])
