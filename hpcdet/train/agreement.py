"""How all ranks come to leave, save or go on at the same step.

Each rank says what it knows; the element-wise maximum is what all obey. The reduction of one
step is read at the next, so that nobody waits for it: a synchronous one costs 0.14 ms a step
at 2 ranks and 0.37 ms at 4. Where steps are short there is one for several of them, so that they
come every 50 ms or so; for how many, all ranks agree in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch

from hpcdet.train.peers import Peers
from hpcdet.units import UNITS, Length

Cause = Literal["completed", "signal", "walltime", "paused", "stopped", "error"]

# a higher number is obeyed first; 0 is none
_CAUSES: tuple[Cause | None, ...] = (None, "walltime", "signal", "paused", "stopped")


_INTERVAL_S = 0.05
_MOST_STEPS = 32
"""From one exchange to the next: should steps get slow at once, this is how long it takes."""


class Orders(NamedTuple):
    """What one rank wants, and what all agreed on.

    Attributes:
        leave: why to save and leave now; None to go on.
        until: new length at which training ends; None for no change.
        save: a resume checkpoint is due.
        busy: a checkpoint is still being written.
        lost: the one that was written last could not be committed.
    """

    leave: Cause | None = None
    until: Length | None = None
    save: bool = False
    busy: bool = False
    lost: bool = False

    def encode(self) -> list[int]:
        unit, value = (-1, -1)
        if self.until is not None:
            unit, value = UNITS.index(self.until.unit), self.until.value
        flags = [int(flag) for flag in (self.save, self.busy, self.lost)]
        return [_CAUSES.index(self.leave), unit, value, *flags]

    @staticmethod
    def decode(vector: list[int]) -> Orders:
        leave, unit, value, *flags = vector
        until = Length(UNITS[unit], value) if unit >= 0 else None
        return Orders(_CAUSES[leave], until, *map(bool, flags))


NOTHING = Orders()


class Agreement:
    """A rolling exchange of ``Orders``: every rank must call ``exchange`` equally often."""

    def __init__(self, peers: Peers, clock: Callable[[], float] = time.monotonic) -> None:
        self._peers = peers
        self._clock = clock
        self._pending: tuple[torch.Tensor, torch.distributed.Work] | None = None
        self._kind: bool | None = None
        self._every = 1
        self._calls = 0
        self._since = 0.0

    def exchange(self, mine: Callable[[], Orders], kind: bool) -> Orders | None:
        """Say what this rank wants; get what all wanted the last time (alone: this time).

        Args:
            mine: asked where an exchange takes place.
            kind: of step, alike on all ranks; of another kind they may take another time.

        Returns:
            None where no exchange is due.
        """
        if self._peers.ranks.world == 1:
            return mine()
        self._calls += 1
        same, self._kind = kind is self._kind, kind
        if same and self._calls < self._every:
            return None
        agreed, every = self._settled()
        now = self._clock()
        wanted = 1
        if same:
            each = (now - self._since) / self._calls
            wanted = min(2 * self._every, max(1, int(_INTERVAL_S / max(each, 1e-9))), _MOST_STEPS)
        self._every = every if same else 1
        self._calls, self._since = 0, now
        # the maximum of these is the least number of steps that any rank wants
        vector = torch.tensor([*mine().encode(), -wanted], dtype=torch.int64)
        self._pending = (vector, self._peers.start_max(vector))
        return agreed

    def settle(self) -> Orders:
        """Finish what is under way."""
        return self._settled()[0]

    def _settled(self) -> tuple[Orders, int]:
        if self._pending is None:
            return NOTHING, 1
        vector, work = self._pending
        work.wait()
        self._pending = None
        *orders, every = vector.tolist()
        return Orders.decode(orders), -every
