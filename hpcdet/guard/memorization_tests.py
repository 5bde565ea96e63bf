"""The tests of a trial's memorization: twins and canaries, which share levels and a pass."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcdet.data.batch_order import BatchOrder
from hpcdet.data.sample_order import Indices, Order
from hpcdet.data.sourced import SourceTable
from hpcdet.guard.keyed_records import Level, Losses
from hpcdet.guard.planted import PlantedCanaries
from hpcdet.guard.withheld import WithheldTwins
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.policy.governed_metrics import MEMORIZATION
from hpcdet.policy.memorization import canary_evidence, twin_evidence

_NONE = np.empty(0, np.int64)


class MemorizationTests:
    """The tests of memorization that a policy asks for, as one set of records.

    Attributes:
        twins: of the trial's data; None: the policy asks for none.
        canaries: likewise.
        metric: the value of each record that is compared.
    """

    def __init__(
        self,
        twins: WithheldTwins | None = None,
        canaries: PlantedCanaries | None = None,
        metric: str = "",
    ) -> None:
        self.twins = twins
        self.canaries = canaries
        self.metric = metric

    @staticmethod
    def of(
        policy: CompiledPolicy,
        key: bytes,
        order: Order | BatchOrder,
        sources: SourceTable,
        level: Level,
    ) -> MemorizationTests:
        """The tests that a policy asks for, of which at least one is; as of ``WithheldTwins``.

        Raises:
            PolicyRefused: as of ``WithheldTwins`` and ``PlantedCanaries``.
        """
        assert policy.memorization is not None
        twins = WithheldTwins.of(policy, key, order, sources, level)
        canaries = PlantedCanaries.of(policy, key, sources, level)
        return MemorizationTests(twins, canaries, policy.memorization.metric)

    def __bool__(self) -> bool:
        """Whether anything is measured."""
        return self.twins is not None or self.canaries is not None

    @property
    def indices(self) -> Indices:
        """The records that are measured, int64[records]: those of twins, then those of canaries."""
        return np.concatenate([_NONE, *(one.indices for one in self._each())])

    @property
    def rows(self) -> dict[str, int]:
        """Rows that canaries add to each epoch, by source."""
        return {} if self.canaries is None else self.canaries.rows

    def judge(self, losses: Losses) -> dict[str, float]:
        """Judge a model, and return the metrics of it; none where the tests are void.

        ``gov.memorization`` is the greatest of all tests, and NaN if one is unknown.

        Args:
            losses: of the records of ``indices``.
        """
        twins, canaries = self.twins, self.canaries
        tests, found = sum(one.tests for one in self._each()), []
        if twins is not None:
            verdicts = twins.judge(losses[: len(twins.indices)], tests - twins.tests)
            found.append(twin_evidence.memorization(verdicts))
        if canaries is not None:
            rest = losses[len(losses) - len(canaries.indices) :]
            ranked = canaries.judge(rest, tests - canaries.tests)
            found.append(canary_evidence.memorization(ranked))
        known = [one.pop(MEMORIZATION) for one in found if one]
        metrics = {name: value for one in found for name, value in one.items()}
        if known:
            metrics[MEMORIZATION] = math.nan if any(map(math.isnan, known)) else max(known)
        return metrics

    def evidence(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the evidence of the last look, as plain data, by the kind of test."""
        for one in self._each():
            yield one.KIND, one.evidence()

    def encode(self) -> dict[str, Any]:
        """Plain data for a checkpoint, equal on all ranks, by the kind of test."""
        return {one.KIND: one.encode() for one in self._each()}

    def _each(self) -> Iterator[WithheldTwins | PlantedCanaries]:
        yield from (one for one in (self.twins, self.canaries) if one is not None)
