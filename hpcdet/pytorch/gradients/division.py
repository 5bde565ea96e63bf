"""How a global batch is divided into shares, and what each share has for itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from hpcdet.core.training import Session
from hpcdet.pytorch.metrics.metrics import Tally, across_ranks
from hpcdet.pytorch.metrics.reducers import MetricReducer, Reducer

State = dict[str, Any]
Learn = Callable[[int, Tally], None]
"""Trains a share of the batch under way and counts its metrics."""


class Division:
    """One share for each rank; the base of other divisions.

    Attributes:
        count: shares of a global batch, over all ranks.
        mine: the shares of this rank, ascending.
        own_state: True if each rank has state of its own in a checkpoint; else all is shared.
        tally: running metrics of training.
    """

    own_state = True

    def __init__(self, session: Session) -> None:
        self.count = session.ranks.world
        self.mine = range(session.ranks.rank, session.ranks.rank + 1)
        self.tally = new_tally()
        self._session = session

    @property
    def current(self) -> int:
        """The share that is trained or validated now; between batches this rank."""
        return self._session.ranks.rank

    def exempt(self, *objects: Any) -> None:
        """Metric reducers may refer to these objects, which are not theirs: never copied."""

    def check_indexed(self, data: Any) -> None:
        """Refuse data without indices, where shares are drawn by index."""

    # -- a batch -----------------------------------------------------------------------------

    def step(self, batches: int, learn: Learn) -> None:
        """Train this rank's shares of the batch after so many ``batches``, one after the other."""
        learn(self.mine[0], self.tally)

    def evaluating(
        self, share: int, batches: int, index: int
    ) -> contextlib.AbstractContextManager[Any]:
        """Around a share of batch ``index`` of the validation after so many ``batches``."""
        return contextlib.nullcontext()

    # -- metrics -----------------------------------------------------------------------------

    def report(self) -> dict[str, float]:
        """Training metrics over all ranks since the last report; they begin anew."""
        found = self.tally.reduced(self._session.peers)
        self.tally.clear()
        return found

    def validated(self, tallies: Mapping[int, Tally], batches: int) -> dict[str, float]:
        """Metrics of a validation over all ranks, from those of each share of this one."""
        return tallies[self.mine[0]].reduced(self._session.peers)

    def reset(self, reducers: Mapping[str, MetricReducer]) -> None:
        """Begin anew with metric reducers."""
        for one in reducers.values():
            one.reset()

    def reduce(self, reducers: Mapping[str, MetricReducer]) -> dict[str, Any]:
        """The values of metric reducers over all ranks, on all ranks."""
        return across_ranks(reducers, self._session.peers)

    # -- state -------------------------------------------------------------------------------

    def shared_state(self, reducers: Iterable[str]) -> State:
        """The part of a checkpoint's shared state that is of the division, by key.

        Args:
            reducers: names of the metric reducers that count in training.
        """
        return {}

    def is_in(self, shared: State) -> bool:
        """True if ``shared`` has a ``shared_state`` of this division: ranks have no state then."""
        return False

    def load(self, shared: State, device: torch.device) -> None:
        """The inverse of ``shared_state``."""

    def begin_random(self, batches: int) -> None:
        """Begin new streams of random numbers, the same at each start after so many batches."""
        self._session.seed(self._session.ranks.rank, batches)


def new_tally() -> Tally:
    """A tally of training metrics, which are averaged."""
    return Tally(lambda _name: Reducer.AVG)
