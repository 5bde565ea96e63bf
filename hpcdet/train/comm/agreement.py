"""How all ranks come to leave, save or go on at the same step.

Each rank says what it knows; the element-wise maximum is what all obey. The reduction of one
step is read at the next, so that nobody waits for it. It costs half a millisecond of a core all
the same, in several threads, so where steps are short there is one for several of them and they
come every 0.2 s or so; for how many, all ranks agree in the same way. Whatever the clock says,
there is one after every step whose number is a multiple of ``TOGETHER``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch

from hpcdet.train.comm.collectives import Peers
from hpcdet.units import UNITS, Length

Cause = Literal["completed", "signal", "walltime", "paused", "stopped", "error"]

# a higher number is obeyed first; 0 is none
_CAUSES: tuple[Cause | None, ...] = (None, "walltime", "signal", "paused", "stopped")


_INTERVAL_S = 0.2
TOGETHER = 16
"""The most steps from one exchange to the next; a power of two, as are all lesser numbers."""

_NEVER = -(2**62)


class Orders(NamedTuple):
    """The orders that one rank wants, or that all ranks agreed on.

    Attributes:
        leave: why to save and leave now; None to go on.
        stop: the first step after which the code of a rank had asked to end; None if it has not.
        until: new length at which training ends; None for no change.
        save: a resume checkpoint is due.
        busy: a checkpoint is still being written.
        lost: the one that was written last could not be committed.
        wait: at a rung, for the search's decision (``rung_waits``).
    """

    leave: Cause | None = None
    until: Length | None = None
    save: bool = False
    busy: bool = False
    lost: bool = False
    stop: int | None = None
    wait: bool = False

    def encode(self) -> list[int]:
        unit, value = (-1, -1)
        if self.until is not None:
            unit, value = UNITS.index(self.until.unit), self.until.value
        flags = [int(flag) for flag in (self.save, self.busy, self.lost, self.wait)]
        stop = _NEVER if self.stop is None else -self.stop
        return [_CAUSES.index(self.leave), unit, value, *flags, stop]

    @staticmethod
    def decode(vector: list[int]) -> Orders:
        leave, unit, value, save, busy, lost, wait, stop = vector
        until = Length(UNITS[unit], value) if unit >= 0 else None
        asked = None if stop == _NEVER else -stop
        said = _CAUSES[leave], until, bool(save), bool(busy), bool(lost)
        return Orders(*said, asked, bool(wait))


NOTHING = Orders()


def agree(peers: Peers, mine: Orders) -> Orders:
    """Combine the wishes of all ranks; all call together."""
    if peers.ranks.world == 1:
        return mine
    vector = torch.tensor(mine.encode(), dtype=torch.int64)
    peers.start_max(vector).wait()
    return Orders.decode(vector.tolist())


class Agreement:
    """A rolling exchange of ``Orders``: every rank must call ``exchange`` equally often."""

    def __init__(self, peers: Peers, clock: Callable[[], float] = time.monotonic) -> None:
        self._peers = peers
        self._clock = clock
        self._pending: tuple[torch.Tensor, torch.distributed.Work] | None = None
        self._stepped: bool | None = None
        self._every = 1
        self._calls = 0
        self._since = 0.0

    @property
    def under_way(self) -> bool:
        """True while a message of this rank has not been taken by the others."""
        return self._pending is not None

    def exchange(self, mine: Callable[[], Orders], step: int | None) -> Orders | None:
        """Say what this rank wants; get what all wanted the last time.

        Args:
            mine: asked where an exchange takes place.
            step: the number of the step that lies behind, alike on all ranks; None: a batch of a
                validation, which may take another time.

        Returns:
            None where there is nothing new.
        """
        self._calls += 1
        stepped = step is not None
        same, self._stepped = stepped is self._stepped, stepped
        agreed = None
        if self.under_way:
            agreed, self._every = self._settled()
        if same and (self._calls if step is None else step) % self._every:
            return agreed
        now = self._clock()
        wanted = 1
        if same:
            each = max((now - self._since) / self._calls, 1e-9)
            wanted = min(2 * self._every, _power_of_two(_INTERVAL_S / each), TOGETHER)
        else:
            self._every = 1
        self._calls, self._since = 0, now
        # the maximum of these is the least number of steps that any rank wants
        vector = torch.tensor([*mine().encode(), -wanted], dtype=torch.int64)
        self._pending = (vector, self._peers.start_max(vector))
        return agreed

    def settle(self) -> None:
        """Finish what is under way."""
        if self.under_way:
            self._settled()

    def _settled(self) -> tuple[Orders, int]:
        assert self._pending is not None
        vector, work = self._pending
        work.wait()
        self._pending = None
        *orders, every = vector.tolist()
        return Orders.decode(orders), -every


def _power_of_two(most: float) -> int:
    """The greatest one that is not more, from 1."""
    return 1 << max(0, int(most).bit_length() - 1)
