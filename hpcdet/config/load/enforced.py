"""An experiment under a policy: what this version enforces, and the constraints of its search."""

from __future__ import annotations

from dataclasses import replace

from hpcdet.config.load.load_config import LoadedConfig
from hpcdet.config.policy.anchor_places import refuse_unusable
from hpcdet.config.policy.enforced_keys import refuse_unenforced
from hpcdet.policy import governed_metrics as metrics
from hpcdet.policy.compiled import PolicyText

_CONSTRAINTS = "searcher.constraints"


def governed(loaded: LoadedConfig, policy: PolicyText) -> LoadedConfig:
    """The config of an experiment under a policy: its search has the policy's gates.

    Raises:
        PolicyRefused: the policy asks for what this version does not enforce, or for an anchor
            that cannot hold anything.
    """
    refuse_unenforced(policy.compiled)
    warnings = refuse_unusable(policy.compiled.ledger.anchor)
    asked = loaded.resolved()["searcher"].get("constraints") or []
    found = metrics.constraints(policy.compiled, asked)
    made = loaded.with_value(_CONSTRAINTS, found, "policy")
    return replace(made, policy=policy, warnings=[*made.warnings, *warnings])
