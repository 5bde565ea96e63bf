"""How evenly layers learn from the sources, beside what the policy plans: check 18."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpcdet.data.batch_order import BatchOrder
from hpcdet.data.sample_order import Order
from hpcdet.guard.counting.exposure import Exposure
from hpcdet.guard.guard import Guard
from hpcdet.guard.resume.verdicts import Check, State
from hpcdet.policy import measures
from hpcdet.policy.compiled import MIX
from hpcdet.policy.measures import ExpectedEntropy

_DIGITS = 9


class PlannedEntropy:
    """The entropy of each layer's sources that the policy and the planned mixture give.

    Attributes:
        mixture: planned share of each source, not all 0; None: it is not known, as of data
            whose code names the rows, or rows of several sources.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        shares = [one.share for one in guard.policy.sources]
        self.mixture: Sequence[float] | None = shares if any(shares) else None

    def plan(self, order: Order | BatchOrder | None) -> None:
        """Take the mixture of the data's first epoch, if the policy plans none."""
        if self.mixture is not None or order is None:
            return
        epoch = self._guard.recount(order, 0, order.epoch_records)
        if epoch is None or any(MIX in kind for kind in epoch.rows) or not epoch.rows:
            return
        self.mixture = [epoch.rows[one.id] for one in self._guard.policy.sources]

    def expected(self, exposure: Exposure) -> ExpectedEntropy | None:
        """After so many rows; None where nothing is planned, or nothing was trained."""
        units = sum(exposure.rows.values())
        if self.mixture is None or not units:
            return None
        policy = self._guard.policy
        sigmas = policy.entropy.sigmas
        return measures.expected_entropy(self.mixture, policy.weights(), units, sigmas)

    def encode(self, exposure: Exposure) -> State | None:
        """``value`` and ``tolerance`` by layer of the policy; null where nothing may change it."""
        found = self.expected(exposure)
        if found is None:
            return None
        value, tolerance = _plain(found.value), _plain(found.tolerance)
        return {"value": value, "tolerance": tolerance}

    def summary(self, exposure: Exposure) -> dict[str, Any]:
        """``entropy`` for the manifest's meta: what was observed, and what was expected."""
        observed = measures.source_entropy(exposure.matrix(self._guard.policy))
        return {"entropy": {"observed": _plain(observed), "expected": self.encode(exposure)}}

    def check(self, exposure: Exposure) -> list[Check]:
        """Whether what layers have learned from is what is planned (G118)."""
        if not exposure.rows:
            return [Check(18, "G118", "passed", "nothing was trained yet")]
        found = self.expected(exposure)
        if found is None:
            return [Check(18, "G118", "unknown", "no mixture of the sources is planned")]
        observed = measures.source_entropy(exposure.matrix(self._guard.policy))
        layers = [one.id for one in self._guard.policy.layers]
        held = found.holds(observed)
        rows = zip(layers, observed, found.value, found.tolerance, held, strict=True)
        off = [
            f"{name} is {seen:.4f}, expected {value:.4f} within {tolerance:.4f}"
            for name, seen, value, tolerance, holds in rows
            if not holds
        ]
        return [Check(18, "G118", "warned" if off else "passed", "; ".join(off))]


def _plain(values: Any) -> list[float | None]:
    return [None if math.isnan(one) else round(one, _DIGITS) for one in values.tolist()]
