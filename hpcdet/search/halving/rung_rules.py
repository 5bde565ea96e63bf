"""Rules at a rung: a trial's fate, and the rank up to which trials continue.

``hybrid``: a trial among the best ``1/divisor`` goes on in place, any other is paused. As
promotion, but a trial that would be promoted at once is never saved, taken off and brought back;
as stopping, but a trial that is overtaken by later, worse ones may still go on.

``promotion``: every trial pauses at every rung, and the best ``1/divisor`` go on later. Algorithm 2
of Li et al., "A System for Massively Parallel Hyperparameter Tuning" (2018): a free place takes
the best paused trial of the highest rung where one may go on, else a new trial.

``stopping``: a trial outside the best ``1/divisor`` ends there, for good. Determined's rule
(``stop_once: true``), after the same paper. The best so far always goes on, so that the first
trial trains in full: the quickest way to one good model, at the price of wrong stops.

``cohorts``: as hybrid, but the trials of a rung count in cohorts of ``divisor**k``, k rungs below
the highest: as many as one full training costs. These are the rungs of a synchronous bracket
(Jamieson and Talwalkar, "Non-stochastic Best Arm Identification", 2016), but no place waits: a
free one takes the next new trial, of the next cohort. Fewer early promotions on few trials. Once
all trials were made, a free place takes any trial that would go on under ``hybrid``.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from hpcdet.rungs import exact
from hpcdet.search.halving.bracket_state import Books

Verdict = Literal["on", "pause", "stop"]


@dataclass(frozen=True)
class Rule:
    """A rule for trials at a rung.

    Attributes:
        verdict: from its rank (0 is best) and how many go on, ``floor(n / divisor)`` of n.
        cohorts: n counts whole cohorts only.
        paced: by ``rule_version`` 5 it keeps the pace of searches with a model (``Cut``).
    """

    verdict: Callable[[int, int], Verdict]
    cohorts: bool = False
    paced: bool = False


def _in_place(rank: int, cut: int) -> Verdict:
    return "on" if rank < cut else "pause"


def _later(rank: int, cut: int) -> Verdict:  # noqa: ARG001 - the signature of a rule
    return "pause"


def _or_never(rank: int, cut: int) -> Verdict:
    return "on" if rank < max(cut, 1) else "stop"


RULES = {
    "hybrid": Rule(_in_place, paced=True),
    "stopping": Rule(_or_never),
    "promotion": Rule(_later),
    "cohorts": Rule(_in_place, cohorts=True),
}
"""``searcher.rule`` of a config, to its rule."""


@dataclass(frozen=True)
class Cut:
    """Up to which rank trials go on; the divisor is ``over / under``.

    Attributes:
        paced: no more go on than ``1/divisor`` of those that have come to a rung, and of those that
            wait the best first, though later trials of a model are better than earlier ones.
    """

    over: int
    under: int
    cohorts: bool
    promotion_share: float | None
    paced: bool = False

    @staticmethod
    def of(divisor: float, cohorts: bool, promotion_share: float | None, paced: bool) -> Cut:
        return Cut(*exact(divisor).as_integer_ratio(), cohorts, promotion_share, paced)

    def share(self, books: Books, rung: int) -> int:
        """How many of those on a rung are ``1/divisor`` of them."""
        return len(books.scores[rung]) * self.under // self.over

    def __call__(self, books: Books, rung: int) -> int:
        """Up to which rank a trial that comes to a rung goes on in place."""
        cut = self._whole(books, rung)
        if not self.paced:
            return cut
        if books.on[rung] >= cut:
            return 0
        waiting = books.waiting[rung]
        return min(cut, bisect.bisect_left(books.scores[rung], waiting[0][:2])) if waiting else cut

    def _whole(self, books: Books, rung: int) -> int:
        """A share of all on a rung, or of those in whole cohorts."""
        if not self.cohorts:
            return len(books.scores[rung]) * self.under // self.over
        whole = _cohort(self.over, self.under, len(books.rungs) - 1 - rung)
        size = min(whole, max(books.trials, 1))
        return len(books.scores[rung]) // size * size * self.under // self.over

    def due(self, books: Books, rung: int) -> int:
        """Up to which rank paused trials are promoted before new ones are made."""
        cut, limit = self._whole(books, rung), 1.0 if self.paced else self.promotion_share
        return cut if limit is None or books.on[rung] < cut * limit else 0


@functools.cache
def _cohort(over: int, under: int, above: int) -> int:
    """Trials on a rung for one at the rung so many above it."""
    return max(int(Fraction(over, under) ** above), 1)
