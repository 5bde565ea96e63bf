"""Validation metrics of governance, and the constraints on them.

Metrics are named ``gov.…``: coverage, admission and violations of the whole trial, conformance as
the last probe has measured it (absent before the first one), and ``gov.memorization``, with those
of each source (``memorization.twin_evidence``, ``canary_evidence``). No code of users reports any
of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcdet.goals import RESERVED

if TYPE_CHECKING:  # it needs numpy
    from hpcdet.policy.compiled import CompiledPolicy

COVERAGE = f"{RESERVED}coverage"
ADMISSION = f"{RESERVED}admission"
CONFORMANCE = f"{RESERVED}conformance"
VIOLATIONS = f"{RESERVED}violations"
MEMORIZATION = f"{RESERVED}memorization"

ORIGIN = "policy"
"""``origin`` of a constraint that a policy asks for."""

_MODES = {"prune": "hard", "warn": "soft", "stop": "stop"}
_STRICTNESS = ("soft", "stop", "hard")


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
    if rules is not None and rules.tested:
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
