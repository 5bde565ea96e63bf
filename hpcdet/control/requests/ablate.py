"""Controls of ablations: an experiment again, from its beginning, trained without routing.

Config, code, site, seeds, keys and twins are the same: what differs is what routing costs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from hpcdet.control.requests import commands
from hpcdet.errors import UsageError
from hpcdet.jobs.create import create
from hpcdet.policy.changes import policy_history
from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.trials import parents


def ablate(
    source: ExperimentPaths,
    changes: Mapping[str, Any],
    name: str | None = None,
    dry: bool = False,
) -> ExperimentPaths:
    """Make the control of an experiment beside it.

    Args:
        changes: of the config, as ``hpcdet set`` takes them.
        name: of the control; that of ``source`` if it is not given.
        dry: only find whether it may be; nothing is made, the paths are those of ``source``.

    Raises:
        UsageError: it has no policy, one that denies nothing, or one that was changed since; it
            is such a control itself; or it began from weights trained under a policy.
        PolicyRefused: P18: its policy does not allow it.
        GovernanceBroken: its policy is not what was written.
        Unavailable: it cannot be written.
    """
    policy = _control(source)

    def fill(paths: ExperimentPaths) -> None:
        if changes:
            commands.ask(paths, "set", **changes)

    return source if dry else create.again(source, fill, name, policy)


def without_routing(policy: CompiledPolicy, experiment: str) -> CompiledPolicy:
    """The policy of the control of ``experiment``: every source may change every layer.

    Layers that are frozen stay so; lanes stay with their sources: the model is the same.
    """
    kept = [one.frozen or one.lane for one in policy.layers]
    rows = [
        tuple(weight if keep else 1.0 for weight, keep in zip(row, kept, strict=True))
        for row in policy.matrix
    ]
    return dataclasses.replace(policy, matrix=tuple(rows), assurance="none", ablates=experiment)


def _control(source: ExperimentPaths) -> CompiledPolicy:
    """The policy of the control. Raises as ``ablate``."""
    governance = resolved_config.load(source.config).governance
    if governance is None:
        hint = "name one in its config: `governance: {policy: FILE}`"
        raise UsageError("the experiment has no policy", where=source.id, hint=hint)
    history = policy_history.load(source, governance, own=False)
    policy = history.newest
    if policy.ablates:
        what = f"it is the control of an ablation already, of {policy.ablates}"
        raise UsageError(what, where=source.id, hint=f"fork {policy.ablates}")
    if policy.ablation != "allowed":
        raise PolicyRefused(
            "P18",
            "its policy does not allow training without routing, on data that it restricts",
            where=f"{source.id}: ablation",
            hint="whoever answers for the data may write `ablation: allowed` into the policy: "
            "submit anew under that one",
        )
    if history.changes:
        what = "its policy was changed since it was submitted, and a control begins anew"
        raise UsageError(what, where=source.id, hint="submit anew under the changed policy")
    if any("governance" in one.manifest["meta"] for one in _begun_from(source)):
        what = "it began from weights that were trained under a policy, which a control may not use"
        hint = "ablate an experiment that begins with its own weights"
        raise UsageError(what, where=source.id, hint=hint)
    control = without_routing(policy, source.id)
    if control.matrix == policy.matrix:
        what = "its policy routes nothing: every source may change every layer"
        raise UsageError(what, where=source.id, hint="there is nothing to compare it with")
    return control


def _begun_from(source: ExperimentPaths) -> list[parents.Donation]:
    """The checkpoint that all trials begin from, if there is one."""
    origin = source.origin.trial(1)
    return parents.donations(origin, "batches") if origin.root.is_dir() else []
