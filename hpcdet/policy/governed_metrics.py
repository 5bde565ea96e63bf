"""Validation metrics of governance, and the constraints on them.

Metrics are named ``gov.…``: coverage, admission and violations of the whole trial, conformance as
the last probe has measured it (absent before the first one),
``gov.memorization``, and of each source with twins what ``TwinEvidence`` has, as
``gov.advantage.SOURCE``. No code of users reports any of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcdet.goals import RESERVED, finite

if TYPE_CHECKING:  # numpy: not for those who only read metrics
    from hpcdet.policy.compiled import CompiledPolicy
    from hpcdet.policy.twins import TwinVerdict

COVERAGE = f"{RESERVED}coverage"
ADMISSION = f"{RESERVED}admission"
CONFORMANCE = f"{RESERVED}conformance"
VIOLATIONS = f"{RESERVED}violations"
MEMORIZATION = f"{RESERVED}memorization"
_ADVANTAGE = f"{RESERVED}advantage."

ORIGIN = "policy"
"""``origin`` of a constraint that a policy asks for."""

_MODES = {"prune": "hard", "warn": "soft", "stop": "stop"}
_STRICTNESS = ("soft", "stop", "hard")


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


def twin_evidence(metrics: Mapping[str, Any]) -> dict[str, TwinEvidence]:
    """The evidence of each source in the metrics of a validation; the inverse of the above."""
    names = sorted(one.removeprefix(_ADVANTAGE) for one in metrics if one.startswith(_ADVANTAGE))
    return {
        name: TwinEvidence(*(finite(metrics.get(f"{RESERVED}{one}.{name}")) for one in _FIELDS))
        for name in names
    }


def evidence(metric: str, metrics: Mapping[str, Any]) -> str:
    """The evidence of a broken constraint on ``gov.memorization``; "" for other metrics.

    One clause per source: those whose advantage is at least what was judged, or is unknown.
    """
    if metric != MEMORIZATION:
        return ""
    judged = finite(metrics.get(MEMORIZATION))
    clauses = []
    for source, one in twin_evidence(metrics).items():
        if one.advantage is None or judged is None or one.advantage >= judged:
            clauses.append(f"source {source}: {told(one)}")
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


def constraints(
    policy: CompiledPolicy | None, asked: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """The entries of ``searcher.constraints`` for a search under a policy, of origin ``policy``.

    Coverage and violations are hard; ``on_violation`` is the mode of memorization: prune is hard,
    warn is soft, stop pauses the experiment. A bound of the user's own on one of these metrics is
    kept where it is the stricter one, and so is its mode, from the first report on.

    Args:
        policy: None where the experiment has none.
        asked: those of the config; of an earlier policy's nothing is kept.
    """
    own = {one["metric"]: one for one in asked if one.get("origin") != ORIGIN}
    if policy is None:
        return [dict(one) for one in own.values()]
    gates = {COVERAGE: {"lower": policy.coverage.min, "mode": "hard"}}
    gates[VIOLATIONS] = {"upper": 0.0, "mode": "hard"}
    rules = policy.memorization
    if rules is not None and rules.twins is not None:
        mode = _MODES[rules.on_violation]
        gates[MEMORIZATION] = {"upper": rules.max_advantage, "mode": mode}
    kept = [dict(one) for name, one in own.items() if name not in gates]
    return kept + [_strictest(name, gate, own.get(name)) for name, gate in gates.items()]


def _strictest(
    metric: str, gate: Mapping[str, Any], own: Mapping[str, Any] | None
) -> dict[str, Any]:
    found = {"metric": metric, **gate, "origin": ORIGIN}
    if own is None:
        return found
    for bound, choose in (("lower", max), ("upper", min)):
        known = [one[bound] for one in (gate, own) if one.get(bound) is not None]
        if known:
            found[bound] = choose(known)
    found["mode"] = max(gate["mode"], own.get("mode") or "soft", key=_STRICTNESS.index)
    return found
