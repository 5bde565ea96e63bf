"""The evidence of twins as validation metrics: of each source ``gov.FIELD.SOURCE``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcdet.goals import RESERVED, finite
from hpcdet.policy.governed_metrics import MEMORIZATION
from hpcdet.policy.memorization import canary_evidence

if TYPE_CHECKING:  # numpy: not for those who only read metrics
    from hpcdet.policy.memorization.twins import TwinVerdict

_ADVANTAGE = f"{RESERVED}advantage."


@dataclass(frozen=True)
class TwinEvidence:
    """The twins of a source at one validation: each field is a metric, ``gov.FIELD.SOURCE``."""

    advantage: float | None = None
    """``2 P(d > 0) - 1`` in [-1, 1], 0 where nothing was memorized; null: a loss is no number."""
    p: float | None = None
    """Probability of at least as many pairs with d > 0 of fair coins, in [0, 1]."""
    pairs: float | None = None
    """Pairs of twins."""
    bound: float | None = None
    """What the advantage is at least, at a confidence of 0.95."""
    upper: float | None = None
    """What the advantage is at most, at a confidence of 0.95."""
    power: float | None = None
    """Probability of a violation, were the advantage 0.2 more than is permitted, in [0, 1]."""
    tpr: float | None = None
    """Share of trained records with a loss below all but 1 % of withheld ones, in [0, 1]."""
    epsilon: float | None = None
    """The least epsilon of pure differential privacy that training can have, from 0."""


_FIELDS = [one.name for one in dataclasses.fields(TwinEvidence)]


def memorization(verdicts: Mapping[str, TwinVerdict]) -> dict[str, float]:
    """The metrics of the twins of each source; nothing where there are none, or they are void.

    ``gov.memorization`` is the greatest of the sources', and NaN if one is.
    """
    if not verdicts:
        return {}
    found = [one.memorization for one in verdicts.values()]
    metrics = {MEMORIZATION: math.nan if any(map(math.isnan, found)) else max(found)}
    for source, one in sorted(verdicts.items()):
        low, high = one.bounds()
        values = (one.advantage, one.p, one.pairs, low, high, one.power(), one.tpr, one.epsilon())
        known = zip(_FIELDS, values, strict=True)
        metrics |= {
            f"{RESERVED}{name}.{source}": value
            for name, value in known
            if name == "advantage" or not math.isnan(value)
        }
    return metrics


def by_source(metrics: Mapping[str, Any]) -> dict[str, TwinEvidence]:
    """The evidence of each source in the metrics of a validation; the inverse of the above."""
    names = sorted(one.removeprefix(_ADVANTAGE) for one in metrics if one.startswith(_ADVANTAGE))
    return {
        name: TwinEvidence(*(finite(metrics.get(f"{RESERVED}{one}.{name}")) for one in _FIELDS))
        for name in names
    }


def evidence(metric: str, metrics: Mapping[str, Any]) -> str:
    """The evidence of a broken constraint on ``gov.memorization``; "" for other metrics.

    One clause per source and kind of test: those whose advantage, or share of exposure, is at
    least what was judged, or is unknown.
    """
    if metric != MEMORIZATION:
        return ""
    judged = finite(metrics.get(MEMORIZATION))
    clauses = []
    for source, one in by_source(metrics).items():
        if one.advantage is None or judged is None or one.advantage >= judged:
            clauses.append(f"source {source}: {told(one)}")
    for source, each in canary_evidence.by_source(metrics).items():
        share = each.exposure_share
        if share is None or judged is None or share >= judged:
            clauses.append(f"source {source}: {canary_evidence.told(each)}")
    return "; ".join(clauses)


def told(one: TwinEvidence) -> str:
    """The evidence of a source's twins, for people."""
    of = f" of {one.pairs:g} pairs of twins" if one.pairs is not None else ""
    if one.advantage is None:
        return f"no advantage is known{of}, as losses are no numbers"
    bounds = f", at least {one.bound:.3g}" if one.bound is not None else ""
    bounds += f" and at most {one.upper:.3g}" if bounds and one.upper is not None else ""
    bounds += " at a confidence of 0.95" if bounds else ""
    chance = f", p {one.p:.2g}" if one.p is not None else ""
    rate = f", TPR at 1 % FPR {one.tpr:.2g}" if one.tpr is not None else ""
    epsilon = f", epsilon at least {one.epsilon:.2g}" if one.epsilon is not None else ""
    power = f", power {one.power:.2g}" if one.power is not None else ""
    return f"advantage {one.advantage:.3g}{of}{bounds}{chance}{power}{rate}{epsilon}"
