"""The evidence of canaries as validation metrics: of each source ``gov.exposure….SOURCE``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcdet.goals import RESERVED, finite
from hpcdet.policy.governed_metrics import MEMORIZATION

if TYPE_CHECKING:  # numpy: not for those who only read metrics
    from hpcdet.policy.memorization.canaries import CanaryVerdict

UNTRAINED = 1 / math.log(2)
"""Mean exposure in bits of canaries that were not trained."""

_MEAN = f"{RESERVED}exposure."
_AT = f"{RESERVED}exposure_at_"


@dataclass(frozen=True)
class CanaryEvidence:
    """The canaries of a source at one validation: fields are metrics, ``gov.FIELD.SOURCE``."""

    exposure: float | None = None
    """Mean exposure in bits, 1.443 where nothing was learned; null: a loss is no number."""
    exposure_share: float | None = None
    """The mean above that of untrained canaries, as a share of the maximum, at most 1."""
    exposure_p: float | None = None
    """Probability of exposures that add up to as much if nothing was learned, in [0, 1]."""
    exposure_alpha: float | None = None
    """The level of the test: its share of the policy's alpha."""
    exposure_most: float | None = None
    """The greatest exposure that can be seen, in bits."""
    canaries: float | None = None
    """Canaries that are trained."""
    exposure_at: dict[str, float | None] = field(default_factory=dict)
    """Mean exposure in bits by how often canaries are trained in an epoch; the metric is
    ``gov.exposure_at_N.SOURCE``."""


_FIELDS = [one.name for one in dataclasses.fields(CanaryEvidence)][:-1]


def memorization(verdicts: Mapping[str, CanaryVerdict]) -> dict[str, float]:
    """The metrics of the canaries of each source; nothing where there are none, or they are void.

    ``gov.memorization`` is the greatest of the sources', and NaN if one is.
    """
    if not verdicts:
        return {}
    found = [one.memorization for one in verdicts.values()]
    metrics = {MEMORIZATION: math.nan if any(map(math.isnan, found)) else max(found)}
    for source, one in sorted(verdicts.items()):
        values = (one.mean, one.share, one.p, one.alpha, one.most, len(one.exposures))
        for name, value in zip(_FIELDS, values, strict=True):
            if name == "exposure" or not math.isnan(value):
                metrics[f"{RESERVED}{name}.{source}"] = value
        for often, mean in one.by_repeats.items():
            if not math.isnan(mean):
                metrics[f"{_AT}{often}.{source}"] = mean
    return metrics


def by_source(metrics: Mapping[str, Any]) -> dict[str, CanaryEvidence]:
    """The evidence of each source in the metrics of a validation; the inverse of the above."""
    found = {}
    for name in sorted(one.removeprefix(_MEAN) for one in metrics if one.startswith(_MEAN)):
        values = {one: finite(metrics.get(f"{RESERVED}{one}.{name}")) for one in _FIELDS}
        found[name] = CanaryEvidence(**values, exposure_at=_by_repeats(metrics, name))
    return found


def _by_repeats(metrics: Mapping[str, Any], source: str) -> dict[str, float | None]:
    names = [one.removeprefix(_AT).partition(".") for one in metrics if one.startswith(_AT)]
    mine = [often for often, _, found in names if found == source and often.isdecimal()]
    return {n: finite(metrics[f"{_AT}{n}.{source}"]) for n in sorted(mine, key=int)}


def told(one: CanaryEvidence) -> str:
    """The evidence of a source's canaries, for people."""
    of = f" of {one.canaries:g} canaries" if one.canaries is not None else ""
    if one.exposure is None:
        return f"no exposure is known{of}, as losses are no numbers"
    most = f", at most {one.exposure_most:.3g}" if one.exposure_most is not None else ""
    each = ", ".join(
        f"{value:.3g} at {often} x" for often, value in one.exposure_at.items() if value is not None
    )
    each = f" ({each})" if len(one.exposure_at) > 1 and each else ""
    share = f", share {one.exposure_share:.3g}" if one.exposure_share is not None else ""
    chance = f", p {one.exposure_p:.2g}" if one.exposure_p is not None else ""
    level = f" at level {one.exposure_alpha:.2g}" if chance and one.exposure_alpha else ""
    untrained = f", {UNTRAINED:.3f} if untrained"
    return f"exposure {one.exposure:.3g} bits{of}{each}{untrained}{most}{share}{chance}{level}"
