"""From ``searcher.stopping`` of a config to its policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcdet.search.stopping.search_rules import NoImprovementRule, TargetRule, TotalLengthRule
from hpcdet.search.stopping.trial_rules import (
    CostRule,
    DivergenceRule,
    NaNRule,
    PatienceRule,
    PercentileRule,
    PlateauRule,
    ThresholdRule,
    TimeRule,
    TrialRule,
    WilcoxonRule,
)
from hpcdet.units import Length

WITHOUT_METRIC = frozenset({"cost", "time", "total_length"})
"""Policies that look at no metric."""

NEWEST = 2
"""``searcher.stopping_version`` of new experiments.

In those of version 1 what is not finite passes ``threshold`` and ``divergence``, a report without
the metric counts for ``nan``, ``total_length`` counts what trials inherited, and a search that a
policy has ended stays ended.
"""

_POLICIES: dict[str, Callable[..., TrialRule[Any]]] = {
    "patience": PatienceRule,
    "threshold": ThresholdRule,
    "median": PercentileRule,
    "percentile": PercentileRule,
    "plateau": PlateauRule,
    "wilcoxon": WilcoxonRule,
    "cost": CostRule,
    "time": TimeRule,
    "nan": NaNRule,
    "divergence": DivergenceRule,
    "target": TargetRule,
    "no_improvement": NoImprovementRule,
    "total_length": TotalLengthRule,
}


def chosen(
    asked: Mapping[str, Mapping[str, Any]], smaller_is_better: bool, version: int = NEWEST
) -> list[tuple[str, TrialRule[Any]]]:
    """The policies of ``searcher.stopping`` with their names, in the order of the table above."""
    found = []
    for name, make in _POLICIES.items():
        if name in asked:
            given = {key: _plain(value) for key, value in asked[name].items() if value is not None}
            if name == "target" and not smaller_is_better:
                given["value"] = -given["value"]
            if name in ("threshold", "divergence"):
                given["finite"] = version > 1
            if name == "nan":
                given["absent"] = version == 1
            found.append((name, make(**given)))
    return found


def _plain(value: Any) -> Any:
    return Length.decode(value).value if isinstance(value, dict) else value


def comparable(asked: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those that mean the same whatever unit the metric has, and none of its values is known."""
    return {
        name: keys
        for name, keys in asked.items()
        if name not in ("threshold", "target", "plateau") and not keys.get("min_delta")
    }
