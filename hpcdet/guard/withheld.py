"""The twins of a trial's data: which records are withheld, and what their losses say."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from hpcdet.data.batch_order import BatchOrder
from hpcdet.data.sample_order import Indices, Order
from hpcdet.data.sourced import SourceTable
from hpcdet.goals import finite
from hpcdet.guard.keyed_records import AbstractKeyedRecords, Level, Losses
from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.policy.memorization import twin_keys, twins
from hpcdet.policy.memorization.twins import TwinPairs, TwinVerdict

PAIRING = 0
"""Seed of who is paired with whom: pairs follow from the data alone, so that experiments with the
same key and data withhold the same records."""


class WithheldTwins(AbstractKeyedRecords[TwinVerdict]):
    """The twins of all sources of a trial's data.

    Attributes:
        pairs: of each source, in order of their names.
    """

    KIND = "twins"
    NAMED = "withheld"
    OTHERS = "the weights come from training on data of which others were withheld"

    def __init__(
        self, pairs: tuple[TwinPairs, ...], max_advantage: float, commitment: str, level: Level
    ) -> None:
        super().__init__(max_advantage, commitment, level)
        self.pairs = pairs

    @staticmethod
    def of(
        policy: CompiledPolicy,
        key: bytes,
        order: Order | BatchOrder,
        sources: SourceTable,
        level: Level,
    ) -> WithheldTwins | None:
        """The twins that a policy asks for, among the records that an order trains.

        Args:
            order: of the training data, with all records.
            sources: of each record by its index.
            level: of a test.

        Returns:
            None where the policy asks for none.

        Raises:
            PolicyRefused: a source has too few records, or each epoch has other ones (P14), or
                the key is too short (P10).
        """
        memory = policy.memorization
        if memory is None or memory.twins is None:
            return None
        drawn = np.unique(order.drawn(0))
        if not np.array_equal(drawn, np.unique(order.drawn(1))):
            raise PolicyRefused(
                "P14",
                "each epoch draws other records, so that none can be withheld by its place",
                where="DataLoader(sampler=…)",
                hint="let the sampler give the same records in each epoch, in any order",
            )
        rules, names = memory.twins, [one.id for one in policy.sources]
        wanted = sorted(rules.withhold or names)
        codes = {mixture: code for code, mixture in enumerate(sources.mixtures)}
        found = []
        for name in wanted:
            mine = drawn[sources.codes[drawn] == codes.get((name,), -1)]
            if len(mine) or rules.withhold:  # a source that has no record here has no twins
                found.append(twins.form_pairs(name, mine, rules.pairs, key, PAIRING))
        commitment = twin_keys.commitment(key)
        return WithheldTwins(tuple(found), memory.max_advantage, commitment, level)

    @property
    def outside(self) -> Indices:
        """The withheld records of all sources, ascending, int64[pairs]."""
        return np.sort(np.concatenate([np.empty(0, np.int64), *(p.outside for p in self.pairs)]))

    @property
    def indices(self) -> Indices:
        """Both members of each pair, source after source, int64[2 pairs].

        Their order says nothing of which one is withheld.
        """
        return np.concatenate([np.empty(0, np.int64), *(p.members.ravel() for p in self.pairs)])

    @property
    def digest(self) -> str:
        """The digest of the withheld records, which a checkpoint names without naming them."""
        return f"sha256:{hashlib.sha256(self.outside.tobytes()).hexdigest()}"

    @property
    def tests(self) -> int:
        return len(self.pairs)

    def _judged(self, losses: Losses, alpha: float) -> dict[str, TwinVerdict]:
        return {
            one.source: twins.judge(inside, outside, alpha, self.max_advantage)
            for one, inside, outside in self._each(losses)
        }

    @staticmethod
    def _figures(verdict: TwinVerdict) -> dict[str, Any]:
        low, high = verdict.bounds()
        return {
            "pairs": verdict.pairs,
            "wins": verdict.wins,
            "ties": verdict.ties,
            "undecided": verdict.undecided,
            "advantage": finite(verdict.advantage),
            "p": verdict.p,
            "alpha": verdict.alpha,
            "max_advantage": verdict.max_advantage,
            "violated": verdict.violated,
            "bounds": [low, high],
            "power": verdict.power(),
            "epsilon": verdict.epsilon(),
            "tpr": finite(verdict.tpr),
        }

    def _each(self, losses: Losses) -> list[tuple[TwinPairs, Losses, Losses]]:
        """The losses of the trained and of the withheld member of each pair, by source."""
        found, begin = [], 0
        for one in self.pairs:
            rows = np.arange(len(one.members))
            pairs = losses[begin : begin + one.members.size].reshape(-1, 2)
            found.append((one, pairs[rows, 1 - one.withheld], pairs[rows, one.withheld]))
            begin += one.members.size
        return found
