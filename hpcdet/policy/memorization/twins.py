"""Randomised held-out twins: who is withheld, and what the model's losses on them say.

Of each pair of exchangeable records of a source a keyed coin puts one into training and withholds
the other for ever. Where nothing was memorized, the one that was trained has the smaller loss
exactly as often as a fair coin falls on one side, whatever the model, the data and the losses are:
the coins are the only chance that the test rests on, so its p value is exact.

Near-duplicates hide what a model owes to a record (Meeus and others, 2025): take them out first.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.measures import true_positive_rate
from hpcdet.policy.memorization.twin_keys import coin

Indices = NDArray[np.int64]

# -- pairs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TwinPairs:
    """The twins of a source.

    Attributes:
        members: indices of records, int64[pairs, 2], no index twice.
        withheld: which member of each pair is withheld, 0 or 1, int64[pairs].
    """

    source: str
    members: Indices
    withheld: Indices

    @property
    def outside(self) -> Indices:
        """Indices that leave the order for ever, int64[pairs]: those in no batch."""
        return self.members[np.arange(len(self.members)), self.withheld]

    @property
    def inside(self) -> Indices:
        """Indices of their twins, int64[pairs], which are trained as all others are."""
        return self.members[np.arange(len(self.members)), 1 - self.withheld]


def form_pairs(
    source: str,
    indices: ArrayLike,
    pairs: int,
    key: bytes,
    seed: int,
    strata: ArrayLike | None = None,
) -> TwinPairs:
    """Pairs of a source's records, drawn at random within strata, and the coin of each.

    A function of its arguments for ever: raw Philox words are sorted, which numpy promises.

    Args:
        indices: of the source's records, int[n], in any order.
        pairs: how many, above 0.
        key: of the coins.
        seed: of who is paired with whom; not a secret.
        strata: int[n], a number of each record: only equal ones are paired. None: all are equal.

    Raises:
        PolicyRefused: there are too few records (P14), or the key is too short (P10).
        ValueError: an index is there twice, or the shapes do not fit.
    """
    records = np.asarray(indices, dtype=np.int64)
    classes = np.zeros_like(records) if strata is None else np.asarray(strata, dtype=np.int64)
    if records.ndim != 1 or classes.shape != records.shape or pairs < 1:
        raise ValueError("records and strata are one number each, and pairs at least one")
    order = np.argsort(records, kind="stable")
    records, classes = records[order], classes[order]
    if (records[1:] == records[:-1]).any():
        raise ValueError(f"a record of {source} is there twice")
    words = np.random.Philox(key=_subseed(seed, source)).random_raw(2 * len(records))
    drawn = np.lexsort((words[: len(records)], classes))
    first = _first_of_pairs(classes[drawn])
    if len(first) < pairs:
        raise PolicyRefused(
            "P14",
            f"{pairs} pairs of twins need more than the {len(records)} records of {source}, "
            f"which make {len(first)}",
            where="memorization.twins.pairs",
            hint=f"at most {len(first)}, or name the sources with enough records in withhold",
        )
    chosen = first[np.argsort(words[len(records) + first], kind="stable")[:pairs]]
    members = records[np.stack([drawn[chosen], drawn[chosen + 1]], axis=1)]
    coins = [coin(key, source, pair) for pair in range(pairs)]
    return TwinPairs(source, members, np.array(coins, dtype=np.int64))


def _first_of_pairs(classes: Indices) -> Indices:
    """Places of the first of two neighbours, of records that are sorted by their class."""
    begins = np.r_[0, np.flatnonzero(classes[1:] != classes[:-1]) + 1] if len(classes) else []
    sizes = np.diff(np.r_[begins, len(classes)]).astype(np.int64)
    return np.concatenate(
        [begin + 2 * np.arange(size // 2) for begin, size in zip(begins, sizes, strict=True)]
        or [np.empty(0)]
    ).astype(np.int64)


def _subseed(seed: int, source: str) -> int:
    text = f"hpcdet-twins/1 pairs/{seed}/{source}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:16], "big")


# -- alpha -----------------------------------------------------------------------------------

PLANNED = 0.75
"""Share of alpha that the planned looks at the planned trials spend."""


def alpha_now(
    alpha: float, trials: int, looks: int, trial: int, look: int, sources: int = 1
) -> float:
    """The level of one test, so that all tests of a search have a false verdict at most at alpha.

    The plan spends three quarters of alpha, each of its tests alike. Each doubling of it, in
    trials or in looks, spends half of what is left: the tests that it adds, each alike. So the
    levels of any number of tests add up to less than alpha (Bonferroni), and no test needs to
    know how many come after it.

    Args:
        alpha: of the whole search, in (0, 1).
        trials, looks: planned trials, and planned looks at each, at least 1.
        trial: the trial's place among all, from 0.
        look: tests that it has had before, in all of its attempts.
        sources: how many are tested at each look.
    """
    doublings = max(_doublings(trial, trials), _doublings(look, looks))
    planned = trials * looks * sources
    if doublings == 0:
        return PLANNED * alpha / planned
    added = planned * 3 * (1 << 2 * (doublings - 1))
    return (1 - PLANNED) * alpha / (added << doublings)


def _doublings(place: int, planned: int) -> int:
    """How often ``planned`` is doubled until ``place``, from 0, is among them."""
    return (place // planned).bit_length()


# -- verdict ---------------------------------------------------------------------------------

MARGIN = 0.2
"""Power is told of an advantage that is more than the permitted one by this."""


@dataclass(frozen=True)
class TwinVerdict:
    """The verdict of a source's twins on a model.

    Attributes:
        wins: pairs whose withheld record has the larger loss, as memorization makes it.
        losses: pairs whose withheld record has the smaller loss.
        ties: pairs with equal losses.
        undecided: pairs where a loss is NaN, or both are the same infinity.
        alpha: the level of this test.
        max_advantage: the advantage that the policy permits, in [0, 1].
        tpr: share of trained records with a loss below all but 1 % of the withheld ones', in
            [0, 1]; NaN: unknown.
    """

    wins: int
    losses: int
    ties: int
    undecided: int
    alpha: float
    max_advantage: float
    tpr: float = math.nan

    @property
    def pairs(self) -> int:
        return self.wins + self.losses + self.ties + self.undecided

    @property
    def advantage(self) -> float:
        """``2 P(d > 0) - 1`` in [-1, 1], a tie counting half; NaN where a pair is undecided."""
        if self.undecided or not self.pairs:
            return math.nan
        return (self.wins - self.losses) / self.pairs

    @property
    def p(self) -> float:
        """P(at least as many wins) if nothing was memorized: the exact one-sided sign test.

        Ties are left out: given which pairs tie, the others are fair coins still. 1 where a pair
        is undecided.
        """
        return 1.0 if self.undecided else fair_tail(self.wins, self.wins + self.losses)

    @property
    def violated(self) -> bool:
        """True if the advantage is above what is permitted, and not by chance."""
        return self.advantage > self.max_advantage and self.p < self.alpha

    @property
    def memorization(self) -> float:
        """``gov.memorization``: the advantage if it is ``violated``, else 0; NaN if undecided.

        NaN breaks a constraint: losses that are no numbers are no evidence of innocence.
        """
        if math.isnan(self.advantage):
            return math.nan
        return self.advantage if self.violated else 0.0

    def bounds(self, confidence: float = 0.95) -> tuple[float, float]:
        """Bounds of the advantage, each kept with ``confidence`` (Clopper and Pearson, 1934).

        Ties and undecided pairs count as losses below and as wins above.
        """
        low = lower_bound(self.wins, self.pairs, confidence)
        high = 1 - lower_bound(self.losses, self.pairs, confidence)
        return 2 * low - 1, 2 * high - 1

    def epsilon(self, confidence: float = 0.95) -> float:
        """The least epsilon of any pure differential privacy that training can have, from 0.

        ``logit`` of the lower bound of correct guesses, ties being wrong ones (Steinke, Nasr and
        Jagielski, "Privacy Auditing with One (1) Training Run", 2023). Neighbours are data sets
        in which one record is exchanged for its twin.
        """
        low = lower_bound(self.wins, self.pairs, confidence)
        return math.log(low / (1 - low)) if low > 0.5 else 0.0

    def power(self, advantage: float | None = None) -> float:
        """Probability of a violation where the true advantage is this, in [-1, 1].

        Args:
            advantage: None: ``MARGIN`` more than is permitted.
        """
        true = min(1.0, self.max_advantage + MARGIN) if advantage is None else advantage
        return power(self.pairs, true, self.alpha, self.max_advantage)


def verdict(differences: ArrayLike, alpha: float, max_advantage: float) -> TwinVerdict:
    """Judge the twins of a source.

    Args:
        differences: float[pairs], the loss of the withheld record less that of the trained one.
        alpha: the level of this test, as of ``alpha_now``.
        max_advantage: the advantage that is permitted.
    """
    found = np.asarray(differences, dtype=np.float64).ravel()
    count = np.count_nonzero
    wins, losses, ties = (int(count(one)) for one in (found > 0, found < 0, found == 0))
    return TwinVerdict(wins, losses, ties, len(found) - wins - losses - ties, alpha, max_advantage)


def judge(
    trained: ArrayLike, withheld: ArrayLike, alpha: float, max_advantage: float
) -> TwinVerdict:
    """Judge the twins of a source by the losses of both members of each pair, float[pairs]."""
    inside, outside = (np.asarray(one, dtype=np.float64).ravel() for one in (trained, withheld))
    with np.errstate(invalid="ignore"):  # infinity less infinity is undecided
        found = verdict(outside - inside, alpha, max_advantage)
    known = not found.undecided and found.pairs
    rate = true_positive_rate(inside, outside)[0] if known else math.nan
    return dataclasses.replace(found, tpr=rate)


@functools.lru_cache(maxsize=64)
def power(pairs: int, advantage: float, alpha: float, max_advantage: float) -> float:
    """Probability that ``pairs`` without ties show a violation at a true advantage, in [0, 1]."""
    low, high = 0, pairs + 1
    while low < high:  # the least wins that are a violation
        wins = (low + high) // 2
        if TwinVerdict(wins, pairs - wins, 0, 0, alpha, max_advantage).violated:
            high = wins
        else:
            low = wins + 1
    return binomial_tail(low, pairs, (1 + advantage) / 2)


# -- binomial --------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1 << 14)
def fair_tail(wins: int, of: int) -> float:
    """P(X >= wins) of ``of`` fair coins: a sum of integers, rounded once."""
    term, total = math.comb(of, wins), 0
    for k in range(wins, of + 1):
        total += term
        term = term * (of - k) // (k + 1)
    return total / (1 << of)


def binomial_tail(wins: int, of: int, p: float) -> float:
    """P(X >= wins), X binomial of ``of`` and p in [0, 1]; its relative error is below 1e-9."""
    if wins <= 0 or p >= 1:
        return 1.0 if wins <= of else 0.0
    if wins > of or p <= 0:
        return 0.0
    chosen = np.arange(wins, of + 1)
    logs = _log_choices(of)[wins:] + chosen * math.log(p) + (of - chosen) * math.log1p(-p)
    return min(1.0, float(np.exp(logs).sum()))


@functools.lru_cache(maxsize=64)
def _log_choices(of: int) -> NDArray[np.float64]:
    logs = np.array([math.lgamma(k + 1) for k in range(of + 1)])
    choices: NDArray[np.float64] = logs[-1] - logs - logs[::-1]
    return choices


@functools.lru_cache(maxsize=1 << 10)
def lower_bound(wins: int, of: int, confidence: float) -> float:
    """Clopper and Pearson's lower bound, in [0, 1]: ``P(X >= wins)`` there is 1 - confidence."""
    low, high = 0.0, 1.0
    if wins <= 0:
        return 0.0
    for _ in range(53):
        middle = (low + high) / 2
        if binomial_tail(wins, of, middle) > 1 - confidence:
            high = middle
        else:
            low = middle
    return low
