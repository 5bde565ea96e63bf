"""The policy of a checkpoint beside the one in effect: checks 8, 10 and 12."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hpcdet.guard.guard import Guard
from hpcdet.guard.resume.resume_verdicts import Check, State, broken
from hpcdet.policy.changes.policy_in_effect import PolicyInEffect
from hpcdet.policy.changes.strictness import kind_between
from hpcdet.policy.changes.weight_changes import differences
from hpcdet.policy.compiled import CompiledPolicy


def policy_before(state: State) -> CompiledPolicy:
    """The policy that a checkpoint was trained under.

    Raises:
        GovernanceBroken: G110: its weights are not those of its digest.
    """
    before = CompiledPolicy.from_json(state["compiled"], "checkpoint")
    if before.digest != state["policy"]:
        raise broken("G110", "its policy's weights are not those of its digest")
    return before


def same_policy(
    now: PolicyInEffect,
    before: CompiledPolicy,
    dropped: Mapping[str, str],
    made: int,
    *,
    inherited: bool,
) -> list[Check]:
    """The policy is the one that was in effect, or was changed since by who may (G108, G112).

    Args:
        before: of the checkpoint; ``dropped``: what it denied since it had ended.
        made: changes that had been made when it was saved.
        inherited: the checkpoint is another trial's.

    Raises:
        GovernanceBroken: G108: it is another one; G112: what had ended has not, by this clock.
    """
    if made > len(now.acts):
        raise broken(
            "G108",
            f"change {made:04d} of the policy is gone, and the checkpoint was trained with it",
            "put the folder policies/ back from a backup",
        )
    if before.ablates and not now.policy.ablates:
        raise broken(
            "G108",
            f"its weights are of the control of an ablation of {before.ablates}: every source has "
            "changed every layer",
            "begin from a checkpoint that was trained under the policy",
        )
    checks = [Check(10, "G110", "passed"), *ended_sources(now)]
    if now.policy.digest == before.digest:
        return [Check(8, "G108", "passed"), *checks]
    place = now.place(before, dropped)
    kind = kind_between(before, now.policy)
    if place is None:
        if not inherited or kind in ("loosen", "mixed"):
            raise _another(before, now.policy, kind)
        return [Check(8, "G108", "recorded", kind), *checks]
    _refuse_revived(now, place, dropped)
    if place == len(now.history) - 1:
        return [Check(8, "G108", "passed"), *checks]
    acts = [f"{one['act']} {one['number']:04d}" for one in now.acts[place:]]
    return [Check(8, "G108", "recorded", f"{kind}: {', '.join(acts)}"), *checks]


def ended_sources(now: PolicyInEffect) -> list[Check]:
    """Check 12: what the policy allows, and has ended by itself, is left out."""
    ended = "; ".join(now.dropped.values())
    return [Check(12, "G112", "dropped" if ended else "passed", ended)]


def forget_denied(guard: Guard, before: CompiledPolicy) -> list[Check]:
    """Reset optimizers in layers that a source could change and cannot any more.

    Momentum would go on to carry what the source has left. Gradients that wait for a step are
    dropped with it.
    """
    weights, codes = guard.policy.weights(), guard.policy.codes
    places = {one.id: place for place, one in enumerate(guard.policy.layers)}
    was = np.zeros_like(weights)
    gone = np.zeros(len(places))  # of sources that the policy does not have any more
    for source, row in zip(before.sources, before.weights(), strict=True):
        for layer, weight in zip(before.layers, row, strict=True):
            if layer.id in places and source.id in codes:
                was[codes[source.id], places[layer.id]] = weight
            elif layer.id in places:
                gone[places[layer.id]] = max(gone[places[layer.id]], weight)
    was, weights = np.vstack([was, gone]), np.vstack([weights, np.zeros(len(places))])
    denied = (guard.models.weights(was) > 0) & (guard.models.weights(weights) == 0)
    layers = np.flatnonzero(denied.any(axis=0)).tolist()
    if not layers:
        return []
    guard.optimizers.forget(layers)
    names = ", ".join(guard.models.layers[one] for one in layers)
    return [Check(8, "G108", "recorded", f"optimizers begin anew in {names}")]


def _refuse_revived(now: PolicyInEffect, place: int, dropped: Mapping[str, str]) -> None:
    """Refuse training on a source that had ended and that no change has brought back."""
    then = {one.id: one for one in now.history[place].sources}
    newest = {one.id: one for one in now.history[-1].sources}
    for name, why in dropped.items():
        row = now.policy.matrix[now.policy.codes[name]] if name in newest else ()
        if any(row) and then[name].agreement == newest[name].agreement:
            raise broken(
                "G112",
                f"the source {name} was left out since {why}, and by the clock of this node it "
                "may be used again",
                "set the clock of the node; or change the policy: with a new agreement",
            )


def _another(before: CompiledPolicy, now: CompiledPolicy, kind: str) -> Exception:
    changes = "; ".join(
        f"{one.source} in {one.layer}: {one.before} to {one.after}"
        for one in differences(before, now)[:3]
    )
    return broken(
        "G108",
        f"its policy is another one ({kind}): {changes or before.name}",
        "go on under the policy it was made under, or change it by `hpcdet policy change`, with "
        "the approvals it asks for",
    )
