"""PASHA: the highest rung is only as high as it takes to tell trials apart.

Bohdal et al., "PASHA: Efficient HPO and NAS with Progressive Resource Allocation" (ICLR 2023).
The search begins with two rungs. Whenever a trial reports the highest one and the order there is
not the order of the same trials one rung below, the next rung is opened. Two trials are in order
if their losses on the lower rung differ by no more than epsilon: the 90th percentile of the
distances of pairs that have changed places at least twice over the rungs, which is what noise
does. The paper looks at every epoch for that, this at the rungs.

In the end the best trial trains in full, so that there is one.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from itertools import pairwise

from hpcdet.search.api.ranking import entry, loss_of
from hpcdet.search.halving.bracket_state import Books, HalvingState
from hpcdet.search.halving.halving import Above, Halving

BEGIN = 2
"""Rungs at first."""
PERCENTILE = 90


@dataclass
class PashaState(HalvingState):
    """The state of a search that opens rung after rung.

    Attributes:
        ladder: rungs that are not open.
        losses: of each trial that has come to the highest rung, at every rung.
        crossed: the distances that epsilon is made of, sorted.
    """

    ladder: list[int] = field(default_factory=list)
    losses: dict[str, list[float | None]] = field(default_factory=dict)
    crossed: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Pasha(Halving):
    """Halving in one bracket, of which the state opens rung after rung."""

    def initial(self) -> PashaState:
        [bracket] = self.brackets
        books = Books.opened(bracket, BEGIN)
        closed = list(bracket.rungs[BEGIN:])
        return PashaState([books], self.max_concurrent, self.until, ladder=closed)

    def _above(self, state: HalvingState, books: Books, trial: int) -> Above:
        assert isinstance(state, PashaState)
        if not state.ladder:
            return "nothing"
        self._learn(state, books, trial)
        if _settled(state, books):
            return "unknown"
        books.add_rung(state.ladder.pop(0))
        return "rung"

    def _learn(self, state: PashaState, books: Books, trial: int) -> None:
        """Take in what a trial shows at the highest rung, and how it crosses others on the way."""
        losses, top = state.losses, len(books.rungs) - 1
        mine = losses.setdefault(str(trial), [])
        for rung in range(len(mine), top + 1):
            found = next(one for one in books.scores[rung] if one[2] == trial)
            mine.append(loss_of(found))
        for other, theirs in losses.items():
            if other != str(trial) and len(theirs) > top:
                apart = _crossing(mine, theirs)
                if apart is not None:
                    insort(state.crossed, apart)

    def _heighten(self, state: HalvingState, books: Books, length: int) -> None:
        assert isinstance(state, PashaState)
        if state.ladder:
            state.ladder.append(length)
        else:
            super()._heighten(state, books, length)

    def _reopen(self, state: HalvingState) -> bool:
        """Train the best one in full."""
        assert isinstance(state, PashaState)
        [books] = state.brackets
        if not state.ladder or not books.waiting[-1]:
            return False
        books.add_rung(state.ladder[-1])
        state.ladder = []
        return True


def _settled(state: PashaState, books: Books) -> bool:
    """True if the order at the highest rung is that one rung below, but for epsilon."""
    top = len(books.rungs) - 1
    crossed = state.crossed
    epsilon = crossed[(len(crossed) - 1) * PERCENTILE // 100] if crossed else 0.0
    known = state.losses
    trials = [one[2] for one in books.scores[top] if len(known.get(str(one[2]), ())) > top]
    order = [state.losses[str(trial)][top - 1] for trial in trials]
    before = sorted(entry(loss, trial) for loss, trial in zip(order, trials, strict=True))
    for now, then in zip(order, map(loss_of, before), strict=True):
        if now is None or then is None:
            if now is not then:
                return False
        elif abs(now - then) > epsilon:
            return False
    return True


def _crossing(one: list[float | None], other: list[float | None]) -> float | None:
    """The distance of two trials at the highest rung if they changed places twice or more."""
    signs = [
        a < b
        for a, b in zip(one, other, strict=False)
        if a is not None and b is not None and a != b
    ]
    changes = sum(now != before for before, now in pairwise(signs))
    mine, theirs = one[-1], other[len(one) - 1]
    return None if changes < 2 or mine is None or theirs is None else abs(mine - theirs)
