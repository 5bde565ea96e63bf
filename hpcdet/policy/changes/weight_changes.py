"""Differences between the weights of two policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpcdet.policy.compiled import CompiledPolicy

Kind = Literal["same", "tighten", "loosen", "mixed"]


@dataclass(frozen=True)
class WeightChange:
    """The weight of a source in a layer, in two policies; None where one does not have the pair."""

    source: str
    layer: str
    before: float | None
    after: float | None

    @property
    def kind(self) -> Kind:
        """The kind of this change; a policy denies a pair that it does not have."""
        before, after = self.before or 0.0, self.after or 0.0
        return "same" if before == after else "tighten" if after < before else "loosen"


def differences(before: CompiledPolicy, after: CompiledPolicy) -> list[WeightChange]:
    """The pairs of sources and layers whose weights differ, in order."""
    old, new = _pairs(before), _pairs(after)
    return [
        WeightChange(*pair, old.get(pair), new.get(pair))
        for pair in sorted(old.keys() | new.keys())
        if old.get(pair) != new.get(pair)
    ]


def _pairs(policy: CompiledPolicy) -> dict[tuple[str, str], float]:
    return {
        (source.id, layer.id): weight
        for source, row in zip(policy.sources, policy.matrix, strict=True)
        for layer, weight in zip(policy.layers, row, strict=True)
    }
