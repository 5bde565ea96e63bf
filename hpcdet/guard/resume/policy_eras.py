"""Eras of a trial: what it was trained on under each policy, before its policy was changed.

Exposure is rows times the weights that held when they were trained on, so that a change of policy
closes an era: ``E = sum over eras of E(rows of the era, its policy)``, the present one last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdet.data.batch_order import BatchOrder
from hpcdet.data.sample_order import Order
from hpcdet.guard.counting.exposure import Exposure
from hpcdet.guard.guard import Guard
from hpcdet.guard.resume.verdicts import broken
from hpcdet.policy.changes.policy_in_effect import PolicyInEffect
from hpcdet.policy.compiled import CompiledPolicy, Matrix


@dataclass(frozen=True, eq=False)
class PolicyEra:
    """A stretch of training under one policy that has ended.

    Attributes:
        dropped: what had ended by itself, and ``policy`` denies, with the reason.
        exposure: rows of this stretch.
        until: samples that the trial had seen at its end.
    """

    policy: CompiledPolicy
    dropped: Mapping[str, str]
    exposure: Exposure
    until: int

    def encode(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "compiled": self.policy.to_json(),
            "dropped": dict(self.dropped),
            "exposure": self.exposure.encode(),
            "until": self.until,
        }

    @staticmethod
    def decode(saved: Mapping[str, Any]) -> PolicyEra:
        """The inverse of ``encode``. Raises as ``CompiledPolicy.from_json``."""
        return PolicyEra(
            CompiledPolicy.from_json(saved["compiled"], "checkpoint"),
            dict(saved["dropped"]),
            Exposure.decode(saved["exposure"]),
            int(saved["until"]),
        )


def matrix(eras: Iterable[PolicyEra], exposure: Exposure, policy: CompiledPolicy) -> Matrix:
    """E over all eras, float64[sources, layers of ``policy``].

    Args:
        exposure: all rows, those of the eras among them.
        policy: of the rows since the last era.
    """
    places = {one.id: place for place, one in enumerate(policy.layers)}
    codes = policy.codes
    rest, total = exposure, np.zeros((len(policy.sources), len(policy.layers)))
    for era in eras:
        rest = rest.without(era.exposure)
        of_era = era.exposure.matrix(era.policy)
        for source, row in zip(era.policy.sources, of_era, strict=True):
            for layer, value in zip(era.policy.layers, row, strict=True):
                if source.id in codes and layer.id in places:
                    total[codes[source.id], places[layer.id]] += value
    return total + rest.matrix(policy)


def rest_of(eras: Iterable[PolicyEra], exposure: Exposure) -> Exposure:
    """The rows since the last era, as a copy that does not grow."""
    rest = exposure.without(Exposure())
    for era in eras:
        rest = rest.without(era.exposure)
    return rest


def verify(
    eras: list[PolicyEra],
    now: PolicyInEffect,
    guard: Guard,
    order: Order | BatchOrder | None,
    begun: int,
    inherited: Exposure,
) -> None:
    """The eras of this trial are of policies that were in effect, and of rows of its data.

    Those of its parent, up to ``begun`` samples, are the parent's to prove.

    Raises:
        GovernanceBroken: G108: a policy never was; G114: the rows are others.
    """
    place, summed = 0, Exposure()
    for era in eras:
        summed.join(era.exposure)
        if era.until <= begun:
            continue
        found = now.place(era.policy, era.dropped)
        if found is None or found < place:
            raise broken(
                "G108",
                f"it counts rows under the policy {era.policy.digest[:23]}…, never in effect",
                "the folder policies/ has other changes than when it was saved, or the checkpoint "
                "was changed",
            )
        place = found
        counted = None if order is None else guard.recount(order, begun, era.until)
        if counted is None:
            continue
        counted.join(inherited)
        if counted.encode() != summed.encode():
            raise broken(
                "G114",
                f"its counts of rows up to the change of policy at {era.until} samples are not "
                "those that the order of the data gives",
            )
