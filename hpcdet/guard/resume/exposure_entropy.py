"""How evenly layers learn from the sources, beside what the policy plans: check 18."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdet.data.sample_order import CountedOrder
from hpcdet.guard.guard import Guard
from hpcdet.guard.resume import policy_eras
from hpcdet.guard.resume.policy_eras import EraRows
from hpcdet.guard.resume.resume_verdicts import NO_OVERRIDES, Check, Overrides, State
from hpcdet.policy import measures
from hpcdet.policy.compiled import MIX, CompiledPolicy
from hpcdet.policy.measures import ExpectedEntropy, Floats

_DIGITS = 9


class PlannedEntropy:
    """The entropy of each layer's sources that policies and planned mixtures give.

    Rows of this trial's own data are expected in the mixture that their policy plans, or else in
    that of the data's first epoch. Those that its parent was trained on are what they are.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._order: CountedOrder | None = None
        self._counted: Mapping[str, int] | None = None
        self._canaries: Mapping[str, int] = {}

    def plan(self, order: CountedOrder | None, canaries: Mapping[str, int] | None = None) -> None:
        """Take the order of the trial's data; None: its code names their rows.

        Args:
            canaries: rows of each epoch, by source, that no plan of the data knows.
        """
        self._order, self._counted, self._canaries = order, None, canaries or {}

    def expected(self, trained: Sequence[EraRows]) -> ExpectedEntropy | None:
        """After these rows; None where nothing is planned, or nothing was trained."""
        if not any(one.all.rows for one in trained):
            return None
        shape = policy_eras.matrix(trained).shape
        value, variance = np.zeros(shape), np.zeros(shape)
        for one in trained:
            value += policy_eras.placed(one.inherited.matrix(one.policy), one.policy, trained)
            if units := sum(one.own.rows.values()):
                mixture = self._mixture(one.policy)
                if mixture is None:
                    return None
                rows, weights = units * mixture[:, None], one.policy.weights()
                value += policy_eras.placed(rows * weights, one.policy, trained)
                variance += policy_eras.placed(rows * weights**2, one.policy, trained)
        return measures.expected_entropy(value, variance, self._guard.policy.entropy.sigmas)

    def _mixture(self, policy: CompiledPolicy) -> Floats | None:
        """Planned share of each source, float64[sources]; None: it is not known.

        As of data whose code names the rows, or of rows of several sources.
        """
        shares = np.array([one.share for one in policy.sources], dtype=np.float64)
        if not shares.any():
            counted = self._of_data()
            shares = np.array([counted.get(one.id, 0.0) for one in policy.sources])
        elif self._order is not None and self._canaries:
            more = np.array([self._canaries.get(one.id, 0) for one in policy.sources])
            shares = shares / shares.sum() * (self._order.epoch_records - more.sum()) + more
        return shares / shares.sum() if shares.any() else None

    def _of_data(self) -> Mapping[str, int]:
        """Return each source's rows in the first epoch; {} where they cannot be counted."""
        if self._counted is None:
            order, epoch = self._order, None
            if order is not None:
                epoch = self._guard.recount(order, 0, order.epoch_records)
            rows = {} if epoch is None else dict(epoch.rows)
            self._counted = {} if any(MIX in kind for kind in rows) else rows
        return self._counted

    def encode(self, trained: Sequence[EraRows]) -> State | None:
        """``value`` and ``tolerance`` by layer of the policy; null where nothing may change it."""
        found = self.expected(trained)
        if found is None:
            return None
        value, tolerance = _plain(found.value), _plain(found.tolerance)
        return {"value": value, "tolerance": tolerance}

    def summary(self, trained: Sequence[EraRows]) -> dict[str, Any]:
        """``entropy`` for the manifest's meta: what was observed, and what was expected."""
        observed = measures.source_entropy(policy_eras.matrix(trained))
        return {"entropy": {"observed": _plain(observed), "expected": self.encode(trained)}}

    def check(self, trained: Sequence[EraRows], overrides: Overrides = NO_OVERRIDES) -> list[Check]:
        """Whether what layers have learned from is what is planned (G118)."""
        if not any(one.all.rows for one in trained):
            return [Check(18, "G118", "passed", "nothing was trained yet")]
        found = self.expected(trained)
        if found is None:
            return [Check(18, "G118", "unknown", "no mixture of the sources is planned")]
        observed = measures.source_entropy(policy_eras.matrix(trained))
        layers = [one.id for one in self._guard.policy.layers]
        held = found.holds(observed)
        rows = zip(layers, observed, found.value, found.tolerance, held, strict=True)
        off = [
            f"{name} is {seen:.4f}, expected {value:.4f} within {tolerance:.4f}"
            for name, seen, value, tolerance, holds in rows
            if not holds
        ]
        return [overrides.warn(18, "G118", "; ".join(off))]


def _plain(values: Any) -> list[float | None]:
    return [None if math.isnan(one) else round(one, _DIGITS) for one in values.tolist()]
