"""Validation metrics of governance, and the constraints on them.

Metrics are named ``gov.…``: coverage, admission, conformance and violations of the whole trial,
``gov.memorization``, and of each source with twins ``gov.advantage.SOURCE`` in [-1, 1],
``gov.p.SOURCE`` in [0, 1], ``gov.pairs.SOURCE``, and ``gov.bound.SOURCE``: what the advantage is
at least, at a confidence of 0.95. No code of users reports any of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcdet.goals import RESERVED, finite

if TYPE_CHECKING:  # numpy: not for those who only read metrics
    from hpcdet.policy.compiled import CompiledPolicy
    from hpcdet.policy.twins import TwinVerdict

COVERAGE = f"{RESERVED}coverage"
ADMISSION = f"{RESERVED}admission"
VIOLATIONS = f"{RESERVED}violations"
MEMORIZATION = f"{RESERVED}memorization"
_ADVANTAGE = f"{RESERVED}advantage."

ORIGIN = "policy"
"""``origin`` of a constraint that a policy asks for."""

_MODES = {"prune": "hard", "warn": "soft", "stop": "stop"}
_STRICTNESS = ("soft", "stop", "hard")


def memorization(verdicts: Mapping[str, TwinVerdict]) -> dict[str, float]:
    """The metrics of the twins of each source; nothing where there are none, or they are void.

    ``gov.memorization`` is the greatest of the sources', and NaN if one is.
    """
    if not verdicts:
        return {}
    found = [one.memorization for one in verdicts.values()]
    metrics = {MEMORIZATION: math.nan if any(map(math.isnan, found)) else max(found)}
    for source, one in sorted(verdicts.items()):
        metrics[f"{_ADVANTAGE}{source}"] = one.advantage
        metrics[f"{RESERVED}p.{source}"] = one.p
        metrics[f"{RESERVED}pairs.{source}"] = one.pairs
        metrics[f"{RESERVED}bound.{source}"] = one.bounds()[0]
    return metrics


def evidence(metric: str, metrics: Mapping[str, Any]) -> str:
    """The evidence of a broken constraint on ``gov.memorization``; "" for other metrics.

    One clause per source: those whose advantage is at least what was judged, or is unknown.
    """
    if metric != MEMORIZATION:
        return ""
    judged = finite(metrics.get(MEMORIZATION))
    clauses = []
    for name in sorted(metrics):
        if not name.startswith(_ADVANTAGE):
            continue
        advantage = finite(metrics[name])
        if advantage is None or judged is None or advantage >= judged:
            clauses.append(_clause(name.removeprefix(_ADVANTAGE), advantage, metrics))
    return "; ".join(clauses)


def _clause(source: str, advantage: float | None, metrics: Mapping[str, Any]) -> str:
    pairs, p, bound = (
        finite(metrics.get(f"{RESERVED}{name}.{source}")) for name in ("pairs", "p", "bound")
    )
    of = f" of {pairs:g} pairs of twins" if pairs is not None else ""
    if advantage is None:
        return f"source {source}: no advantage is known{of}, as losses are no numbers"
    least = f", at least {bound:.3g} at a confidence of 0.95" if bound is not None else ""
    chance = f", p {p:.2g}" if p is not None else ""
    return f"source {source}: advantage {advantage:.3g}{of}{least}{chance}"


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
