"""The policy that an experiment's config has to name, and the gates of its search.

Who submits, works or trains asks before anything else: a config that was edited since submission
would train without the policy that lies beside it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.store.config.resolved_config import GOVERNANCE_KEYS, Resolved
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files

if TYPE_CHECKING:  # it needs numpy
    from hpcdet.policy.compiled import CompiledPolicy

_SAYS = {"lower": None, "upper": None, "tolerance": 0.0, "warmup": None, "mode": "soft"}
_HINT = "put experiment.yaml back from a backup: it is written once, at submission"


def require(paths: ExperimentPaths, config: Resolved) -> CompiledPolicy | None:
    """Return the policy that an experiment was submitted under; None if it never had one.

    Raises:
        GovernanceBroken: G110: the config names none, and the folder has one, or had; it is gone,
            or another one; or the search lacks gates of the policy. G101: of an unknown version.
        PolicyRefused: P10: its twin key was revealed: whoever has it knows what is withheld or
            planted, and no number would mean anything.
        OSError: the folder cannot be looked at.
    """
    if config.governance is None:
        if trace := _trace(paths):
            what = f"the config names no policy, and the experiment has or had one: {trace}"
            raise GovernanceBroken("G110", what, where=str(paths.config), hint=_HINT)
        return None
    from hpcdet.policy import experiment_policy  # most experiments have no policy

    policy = experiment_policy.load(paths, config.governance)
    if missing := _missing(policy, config):
        what = f"the search lacks the policy's constraints on {', '.join(missing)}"
        where = f"{paths.config}: searcher.constraints"
        raise GovernanceBroken("G110", what, where=where, hint=_HINT)
    if _is_there(paths.revealed):
        raise PolicyRefused(
            "P10",
            "its twin key was revealed, and nothing is trained under it any more",
            where=str(paths.revealed),
            hint="submit anew: a key that is not given is drawn",
        )
    return policy


def _trace(paths: ExperimentPaths) -> str:
    """The trace of a policy that an experiment has or had; "" if there is none."""
    for path in (paths.compiled_policy, paths.policy, paths.policy_changes):
        if _is_there(path):
            return f"{path.name} is there"
    record = files.read_json(paths.provenance)
    named = isinstance(record, dict) and record.get("policy")
    if named:
        return f"{paths.provenance.name} names it"
    with contextlib.suppress(PermissionError):  # who may not read keys trains nothing
        kept = files.read_json(paths.secrets)
        if isinstance(kept, dict) and any(f"governance.{name}" in kept for name in GOVERNANCE_KEYS):
            return f"{paths.secrets.name} has its keys"
    return ""


def _is_there(path: Path) -> bool:
    """Whether there is anything of this name; what cannot be told is an error, not a no."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _missing(policy: CompiledPolicy, config: Resolved) -> list[str]:
    """The metrics of which the search has neither the policy's bounds nor stricter ones."""
    from hpcdet.policy import governed_metrics  # as above

    kept = [_bounds(one) for one in config.searcher.constraints]
    wanted = governed_metrics.constraints(policy, kept)
    gates = [one for one in wanted if one.get("origin") == governed_metrics.ORIGIN]
    return [one["metric"] for one in gates if _bounds(one) not in kept]


def _bounds(constraint: dict[str, Any]) -> dict[str, Any]:
    """A constraint with all that it can say, but who has asked for it."""
    return {**_SAYS, **{name: value for name, value in constraint.items() if name != "origin"}}
