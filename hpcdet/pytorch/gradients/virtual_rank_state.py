"""State of each virtual rank where the user's code has one object: reducers and buffers.

Reducers stay apart until they are reduced; of the buffers, those of virtual rank 0 become
everybody's after each step.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from hpcdet.core.training import Peers
from hpcdet.data.virtual_ranks import Virtual
from hpcdet.pytorch.gradients import buffers
from hpcdet.pytorch.metrics.metrics import over_all
from hpcdet.pytorch.metrics.reducers import MetricReducer, load_state, state_of

State = dict[str, Any]
Group = tuple[torch.device, torch.dtype]
"""Tensors that one message can carry."""


class Apart:
    """Reducers of which each virtual rank has its own state, while the user's code has one object.

    Attributes:
        shared: objects that reducers may refer to and that are not theirs: never copied.
    """

    def __init__(
        self, virtual: Virtual, peers: Peers, reducers: Callable[[], Mapping[str, MetricReducer]]
    ) -> None:
        """``reducers``: all that there are, by name."""
        self.shared: list[Any] = []
        self._virtual = virtual
        self._peers = peers
        self._reducers = reducers
        self._states: dict[str, dict[int, State]] = {}

    @contextlib.contextmanager
    def of(self, v: int) -> Iterator[None]:
        """The objects hold what belongs to a virtual rank."""
        reducers = self._reducers()
        for name, one in reducers.items():
            if name not in self._states:
                self._divide(name, one)
            _put(one, self._states[name][v])
        try:
            yield
        finally:
            for name, one in reducers.items():
                self._states[name][v] = dict(vars(one))

    def _divide(self, name: str, reducer: MetricReducer) -> None:
        memo = {id(one): one for one in self.shared}
        begun = vars(reducer)
        self._states[name] = {v: copy.deepcopy(begun, dict(memo)) for v in self._virtual.mine}

    def reset(self, names: Iterable[str]) -> None:
        """Some of them begin anew, for all virtual ranks."""
        for v in self._virtual.mine:
            with self.of(v):
                for name in names:
                    self._reducers()[name].reset()

    def reduce(self, names: Iterable[str]) -> dict[str, Any]:
        """The values of some of them over all virtual ranks, on all ranks."""
        found: dict[str, Any] = {}
        for name in names:
            one, mine = self._reducers()[name], []
            for v in self._virtual.mine:
                with self.of(v):
                    mine.append(one.per_slot_reduce())
            everyone = self._peers.gather(mine, f"per_slot_reduce of reducer {name}")
            parts = [part for of_rank in everyone for part in of_rank]
            found |= over_all(name, one, parts, self._peers)
        return found

    def state(self, names: Iterable[str]) -> list[State]:
        """State of the named ones, for all virtual ranks in their order, on all ranks."""
        mine = []
        for v in self._virtual.mine:
            with self.of(v):
                mine.append({name: state_of(self._reducers()[name]) for name in names})
        return [state for of_rank in self._peers.allgather(mine) for state in of_rank]

    def load(self, states: Sequence[State]) -> None:
        """The inverse of ``state``; a reducer that the code has got since then begins anew."""
        for v in self._virtual.mine:
            with self.of(v):
                for name, one in self._reducers().items():
                    if name in states[v]:
                        load_state(one, states[v][name])


def _put(reducer: MetricReducer, state: State) -> None:
    vars(reducer).clear()
    vars(reducer).update(state)


class Buffers:
    """Buffers of models during one step: alike for all virtual ranks, then those of the first."""

    def __init__(self, models: Sequence[torch.nn.Module]) -> None:
        self._models = models
        self._before = self._copies()
        self._after: list[dict[str, torch.Tensor]] = []

    def begin(self) -> None:
        """A virtual rank's turn begins."""
        self._put(self._before)

    def end(self, v: int) -> None:
        """It is over."""
        if v == 0:
            self._after = self._copies()

    def settle(self, virtual: Virtual, kinds: Mapping[str, buffers.BufferKind]) -> None:
        """All have had their turn; every rank calls.

        Args:
            kinds: of the buffers that all ranks have alike.
        """
        if virtual.ranks.chief:
            self._put(self._after)
        if virtual.ranks.world > 1:
            buffers.from_first(self._models, kinds, first=virtual.ranks.chief)

    def _copies(self) -> list[dict[str, torch.Tensor]]:
        return [buffers.copies(model) for model in self._models]

    def _put(self, values: Sequence[dict[str, torch.Tensor]]) -> None:
        for model, saved in zip(self._models, values, strict=True):
            buffers.put_back(model, saved)
