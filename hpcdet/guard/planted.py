"""The canaries of a trial's data: which rows are added to it, and what the losses on them say."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from hpcdet.data.canary_rows import CanaryBlock
from hpcdet.data.sample_order import Indices
from hpcdet.data.sourced import SourceTable
from hpcdet.goals import finite
from hpcdet.guard.keyed_records import AbstractKeyedRecords, Level, Losses
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.policy.memorization import canaries, twin_keys
from hpcdet.policy.memorization.canaries import CanaryVerdict, DrawnCanaries


class PlantedCanaries(AbstractKeyedRecords[CanaryVerdict]):
    """The canaries of all sources of a trial's data.

    Behind the data's own samples lie those that are trained, one row for each time in an epoch, and
    then all that are ranked, trained or not, in the order of their codes.

    Attributes:
        drawn: of each source, in order of their names.
        max_advantage: the share above untrained canaries' exposure that the policy permits.
    """

    KIND = "canaries"
    NAMED = "planted"
    OTHERS = "the weights come from training with other canaries"

    def __init__(
        self,
        drawn: tuple[DrawnCanaries, ...],
        begin: int,
        max_advantage: float,
        commitment: str,
        level: Level,
    ) -> None:
        super().__init__(max_advantage, commitment, level)
        self.drawn = drawn
        self._begin = begin

    @staticmethod
    def of(
        policy: CompiledPolicy, key: bytes, sources: SourceTable, level: Level
    ) -> PlantedCanaries | None:
        """The canaries that a policy asks for.

        Args:
            sources: of each record of the data by its index.
            level: of a test.

        Returns:
            None where the policy asks for none.

        Raises:
            PolicyRefused: there are too few codes (P14), or the key is too short (P10).
        """
        memory = policy.memorization
        if memory is None or memory.canaries is None:
            return None
        rules, there = memory.canaries, np.unique(sources.codes)
        here = {name for code in there for name in sources.mixtures[code]}
        # a source that has no record here has none either, unless it is named
        wanted = sorted(rules.sources or here & policy.codes.keys())
        how = rules.per_source, rules.space_bits, rules.repeats
        drawn = tuple(canaries.draw(key, name, *how) for name in wanted)
        commitment = twin_keys.commitment(key)
        return PlantedCanaries(drawn, len(sources), memory.max_advantage, commitment, level)

    @property
    def blocks(self) -> list[CanaryBlock]:
        """Codes of the rows behind the data's own, by source: the trained ones, then the ranked."""
        trained = [(one.source, one.records) for one in self.drawn]
        return trained + [(one.source, one.ranked) for one in self.drawn]

    @property
    def trained(self) -> Indices:
        """Indices of the rows that are in each epoch, int64[sum of repeats over all sources]."""
        return np.arange(self._begin, self._begin + self._rows, dtype=np.int64)

    @property
    def indices(self) -> Indices:
        """Indices of the records that are ranked, source after source, int64[records]."""
        begin = self._begin + self._rows
        many = sum(len(one.ranked) for one in self.drawn)
        return np.arange(begin, begin + many, dtype=np.int64)

    @property
    def rows(self) -> dict[str, int]:
        """How many rows are added to each epoch, by source."""
        return {one.source: int(one.repeats.sum()) for one in self.drawn}

    @property
    def _rows(self) -> int:
        return sum(self.rows.values())

    @property
    def digest(self) -> str:
        """The digest of the codes, which a checkpoint names without naming them."""
        found = hashlib.sha256()
        for one in self.drawn:
            found.update(f"{one.source} {len(one.inserted)} {len(one.references)}\n".encode())
            for codes in (one.inserted, one.repeats, one.references):
                found.update(codes.astype("<i8").tobytes())
        return f"sha256:{found.hexdigest()}"

    @property
    def tests(self) -> int:
        return len(self.drawn)

    def _judged(self, losses: Losses, alpha: float) -> dict[str, CanaryVerdict]:
        ends = np.cumsum([len(one.ranked) for one in self.drawn])[:-1]
        return {
            one.source: one.judge(mine, alpha, self.max_advantage)
            for one, mine in zip(self.drawn, np.split(losses, ends), strict=True)
        }

    @staticmethod
    def _figures(verdict: CanaryVerdict) -> dict[str, Any]:
        return {
            "canaries": len(verdict.exposures),
            "references": verdict.references,
            "exposure": finite(verdict.mean),
            "most": verdict.most,
            "by_repeats": {str(n): finite(one) for n, one in verdict.by_repeats.items()},
            "share": finite(verdict.share),
            "p": verdict.p,
            "alpha": verdict.alpha,
            "max_advantage": verdict.max_advantage,
            "violated": verdict.violated,
        }
