"""Eras of a trial: what it was trained on under each policy, before its policy was changed.

Exposure is rows times the weights that held when they were trained on, so that a change of policy
closes an era: ``E = sum over eras of E(rows of the era, its policy)``, the present one last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdet.data.sample_order import CountedOrder
from hpcdet.guard.counting.exposure import Exposure
from hpcdet.guard.guard import Guard
from hpcdet.guard.resume.resume_verdicts import Check, Overrides, broken
from hpcdet.policy.changes.policy_in_effect import PolicyInEffect
from hpcdet.policy.compiled import MIX, CompiledPolicy, Matrix


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


@dataclass(frozen=True, eq=False)
class EraRows:
    """Rows that were trained under one policy.

    Attributes:
        inherited: those of the trial's parent; ``own``: those of its own data.
    """

    policy: CompiledPolicy
    inherited: Exposure
    own: Exposure

    @property
    def all(self) -> Exposure:
        """Both."""
        found = self.own.without(Exposure())
        found.join(self.inherited)
        return found


def rows_by_era(
    eras: Iterable[PolicyEra],
    exposure: Exposure,
    policy: CompiledPolicy,
    begun: int = 0,
    inherited: Exposure | None = None,
) -> list[EraRows]:
    """Divide all rows by the policies that they were trained under, in order; ``policy`` is last.

    Args:
        exposure: all rows, those of the eras among them.
        begun: samples that had been seen when the trial's own data began.
        inherited: rows of its parent, up to there.
    """
    found, theirs = [], inherited or Exposure()
    for era in eras:
        exposure = exposure.without(era.exposure)
        before = era.exposure if era.until <= begun else theirs
        theirs = theirs.without(before)
        found.append(EraRows(era.policy, before, era.exposure.without(before)))
    return [*found, EraRows(policy, theirs, exposure.without(theirs))]


def sources(trained: Sequence[EraRows]) -> list[str]:
    """The last policy's sources in their order, then others that were trained before it."""
    named = trained[-1].policy.codes
    before = {name for one in trained for kind in one.all.rows for name in kind.split(MIX)}
    return [*named, *sorted(before - named.keys())]


def matrix(trained: Sequence[EraRows]) -> Matrix:
    """E of all rows, float64[``sources(trained)``, layers of the last policy]."""
    found = np.zeros((len(sources(trained)), len(trained[-1].policy.layers)))
    for one in trained:
        found += placed(one.all.matrix(one.policy), one.policy, trained)
    return found


def placed(values: Matrix, policy: CompiledPolicy, trained: Sequence[EraRows]) -> Matrix:
    """Bring values of a policy's sources and layers to their places in ``matrix``; 0 elsewhere."""
    names, layers = sources(trained), [one.id for one in trained[-1].policy.layers]
    rows = [place for place, one in enumerate(policy.sources) if one.id in names]
    columns = [place for place, one in enumerate(policy.layers) if one.id in layers]
    there = (
        [names.index(policy.sources[place].id) for place in rows],
        [layers.index(policy.layers[place].id) for place in columns],
    )
    found = np.zeros((len(names), len(layers)))
    found[np.ix_(*there)] = values[np.ix_(rows, columns)]
    return found


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
    order: CountedOrder | None,
    begun: int,
    inherited: Exposure,
    overrides: Overrides,
) -> list[Check]:
    """The eras of this trial are of policies that were in effect, and of rows of its data.

    Those of its parent, up to ``begun`` samples, are the parent's to prove.

    Returns:
        What is overridden; nothing where all is right.

    Raises:
        GovernanceBroken: G108: a policy never was; G114: the rows are others.
    """
    checks: list[Check] = []
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
            what = (
                f"its counts of rows up to the change of policy at {era.until} samples are not "
                "those that the order of the data gives"
            )
            checks.append(overrides.settle(14, broken("G114", what)))
    return checks
