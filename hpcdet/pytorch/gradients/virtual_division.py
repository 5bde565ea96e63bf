"""The division into virtual ranks: ``reproducibility.elastic: exact``.

What a virtual rank sees of a step depends on its number and the step alone: its share of the
batch, its random numbers, the buffers that all had before. Its metrics and reducers are its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from hpcdet.core.training import Session
from hpcdet.data import rng
from hpcdet.data.virtual_ranks import WHERE, Virtual
from hpcdet.errors import ConfigError
from hpcdet.pytorch.gradients.division import Division, Learn, State, new_tally
from hpcdet.pytorch.gradients.virtual_rank_state import Apart
from hpcdet.pytorch.gradients.virtual_reducer import VirtualReducer
from hpcdet.pytorch.metrics.metrics import Tally
from hpcdet.pytorch.metrics.reducers import MetricReducer


class VirtualDivision(Division):
    """The virtual ranks of this rank, while they train and validate.

    Args:
        reducers: the user's metric reducers, by name.
    """

    own_state = False

    def __init__(
        self,
        session: Session,
        reducer: VirtualReducer,
        virtual: Virtual,
        reducers: Callable[[], Mapping[str, MetricReducer]],
    ) -> None:
        super().__init__(session)
        self.count, self.mine = virtual.count, virtual.mine
        self._turns = reducer
        self._virtual = virtual
        self._tallies = {v: new_tally() for v in virtual.mine}
        self._apart = Apart(virtual, session.peers, reducers)

    @property
    def current(self) -> int:
        turn = self._turns.current
        return super().current if turn is None else turn

    def exempt(self, *objects: Any) -> None:
        self._apart.shared += objects

    def check_indexed(self, data: Any) -> None:
        raise ConfigError(
            f"a {type(getattr(data, 'dataset', data)).__name__} has no indices, and cannot be "
            "shared by virtual ranks",
            where=WHERE,
            hint="give the data set __len__ and __getitem__",
        )

    # -- a batch -----------------------------------------------------------------------------

    def step(self, batches: int, learn: Learn) -> None:
        for v in self.mine:
            with self._turns.share(v), self._as(v, "step", batches):
                learn(v, self._tallies[v])

    @contextlib.contextmanager
    def evaluating(self, share: int, batches: int, index: int) -> Iterator[None]:
        with self._turns.turn(share), self._as(share, "validation", batches, index):
            yield

    @contextlib.contextmanager
    def _as(self, v: int, *where: int | str) -> Iterator[None]:
        """With a virtual rank's random numbers and metric reducers in place."""
        self._virtual.plant(self._session.registered.generators, *where, v)
        with self._apart.of(v):
            yield

    def _plant(self, *where: int | str) -> None:
        """Use random numbers that all ranks share, wherever they are drawn."""
        self._virtual.plant(self._session.registered.generators, *where, "common")

    # -- metrics -----------------------------------------------------------------------------

    def report(self) -> dict[str, float]:
        found = self._reduced(self._tallies)
        for tally in self._tallies.values():
            tally.clear()
        return found

    def validated(self, tallies: Mapping[int, Tally], batches: int) -> dict[str, float]:
        self._plant("validation", batches)
        return self._reduced(tallies)

    def reset(self, reducers: Mapping[str, MetricReducer]) -> None:
        self._apart.reset(list(reducers))

    def reduce(self, reducers: Mapping[str, MetricReducer]) -> dict[str, Any]:
        return self._apart.reduce(list(reducers))

    def _reduced(self, tallies: Mapping[int, Tally]) -> dict[str, float]:
        """Metrics that each virtual rank of this one has counted, over all of them."""
        everyone = self._everyone([tallies[v].plain() for v in self.mine])
        return tallies[self.mine[0]].combined(everyone)

    def _everyone(self, mine: list[Any]) -> list[Any]:
        """Gather the values of all virtual ranks, in their order, on all ranks."""
        return [value for of_rank in self._session.peers.allgather(mine) for value in of_rank]

    # -- state -------------------------------------------------------------------------------

    def shared_state(self, reducers: Iterable[str]) -> State:
        mine = [self._tallies[v].state() for v in self.mine]
        state = {
            "ranks": self.count,
            "training_metrics": self._everyone(mine),
            "reducers": self._apart.state(reducers),
            "rng": self._session.peers.broadcast(rng.capture(self._session.registered.generators)),
        }
        return {"virtual": state}

    def is_in(self, shared: State) -> bool:
        return "virtual" in shared

    def load(self, shared: State, device: torch.device) -> None:
        """The inverse of ``shared_state``, whichever rank now has which virtual ranks.

        Raises:
            ConfigError: the state is of another number of virtual ranks.
        """
        state = shared["virtual"]
        if state["ranks"] != self.count:
            raise ConfigError(
                f"the checkpoint is of {state['ranks']} virtual ranks, not {self.count}",
                where="reproducibility.virtual_ranks",
                hint=f"go on with {state['ranks']}",
            )
        for v, tally in self._tallies.items():
            tally.load(state["training_metrics"][v], device)
        self._apart.load(state["reducers"])
        rng.restore(state["rng"], self._session.registered.generators)

    def begin_random(self, batches: int) -> None:
        self._plant("begin", batches)
