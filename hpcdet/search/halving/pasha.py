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
from dataclasses import dataclass
from itertools import pairwise

from hpcdet.search.api.events import State
from hpcdet.search.api.ranking import entry, loss_of
from hpcdet.search.halving import bracket_state as book
from hpcdet.search.halving.bracket_state import Books
from hpcdet.search.halving.halving import Above, Halving

BEGIN = 2
"""Rungs at first."""
PERCENTILE = 90


@dataclass(frozen=True)
class Pasha(Halving):
    """Halving in one bracket, of which the state opens rung after rung.

    State besides: ``ladder``, rungs that are not open; ``losses``, of each trial that has come to
    the highest rung, at every rung; ``crossed``, the distances that epsilon is made of, sorted.
    """

    def initial(self) -> State:
        state = super().initial()
        [bracket] = self.brackets
        closed = list(bracket.rungs[BEGIN:])
        books = book.opened(bracket)
        for lists in (books["rungs"], books["scores"], books["waiting"], books["on"]):
            del lists[BEGIN:]
        del books["next"][BEGIN:]
        return {**state, "brackets": [books], "ladder": closed, "losses": {}, "crossed": []}

    def _above(self, state: State, books: Books, trial: int) -> Above:
        ladder = state["ladder"]
        if not ladder:
            return "nothing"
        self._learn(state, books, trial)
        if _settled(state, books):
            return "unknown"
        book.add_rung(books, ladder.pop(0))
        return "rung"

    def _learn(self, state: State, books: Books, trial: int) -> None:
        """Take in what a trial shows at the highest rung, and how it crosses others on the way."""
        losses, top = state["losses"], len(books["rungs"]) - 1
        mine = losses.setdefault(str(trial), [])
        for rung in range(len(mine), top + 1):
            found = next(one for one in books["scores"][rung] if one[2] == trial)
            mine.append(loss_of(found))
        for other, theirs in losses.items():
            if other != str(trial) and len(theirs) > top and _crosses(mine, theirs):
                insort(state["crossed"], abs(mine[top] - theirs[top]))

    def _heighten(self, state: State, books: Books, length: int) -> None:
        if state["ladder"]:
            state["ladder"].append(length)
        else:
            super()._heighten(state, books, length)

    def _reopen(self, state: State) -> bool:
        """Train the best one in full."""
        [books] = state["brackets"]
        if not state["ladder"] or not books["waiting"][-1]:
            return False
        book.add_rung(books, state["ladder"][-1])
        state["ladder"] = []
        return True


def _settled(state: State, books: Books) -> bool:
    """Whether the order at the highest rung is the order one rung below, but for epsilon."""
    top = len(books["rungs"]) - 1
    crossed = state["crossed"]
    epsilon = crossed[(len(crossed) - 1) * PERCENTILE // 100] if crossed else 0.0
    known = state["losses"]
    trials = [one[2] for one in books["scores"][top] if len(known.get(str(one[2]), ())) > top]
    order = [state["losses"][str(trial)][top - 1] for trial in trials]
    before = sorted(entry(loss, trial) for loss, trial in zip(order, trials, strict=True))
    for now, then in zip(order, map(loss_of, before), strict=True):
        if now is None or then is None:
            if now is not then:
                return False
        elif abs(now - then) > epsilon:
            return False
    return True


def _crosses(one: list[float | None], other: list[float | None]) -> bool:
    """Whether two trials changed places twice or more."""
    signs = [
        a < b
        for a, b in zip(one, other, strict=False)
        if a is not None and b is not None and a != b
    ]
    changes = sum(now != before for before, now in pairwise(signs))
    return changes >= 2 and one[-1] is not None and other[len(one) - 1] is not None
