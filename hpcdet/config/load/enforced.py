"""An experiment under a policy: what this version enforces, and the constraints of its search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hpcdet.config.load.load_config import LoadedConfig
from hpcdet.errors import ConfigError
from hpcdet.policy import governed_metrics as metrics
from hpcdet.policy.compiled import CompiledPolicy, PolicyText

_CONSTRAINTS = "searcher.constraints"


def governed(loaded: LoadedConfig, policy: PolicyText) -> LoadedConfig:
    """The config of an experiment under a policy: its search has the policy's gates.

    Raises:
        ConfigError: the policy asks for what this version does not enforce.
    """
    missing = list(_unenforced(policy.compiled))
    if missing:
        raise ConfigError(
            f"the policy asks for what this version does not enforce: {'; '.join(missing)}",
            where="governance.policy",
            hint="a policy that is written down and not enforced is worse than none: leave it out",
        )
    asked = loaded.resolved()["searcher"].get("constraints") or []
    found = metrics.constraints(policy.compiled, asked)
    return replace(loaded.with_value(_CONSTRAINTS, found, "policy"), policy=policy)


def _unenforced(policy: CompiledPolicy) -> Iterator[str]:
    """Yield the keys of a policy that are read and compiled, and that nothing enforces yet."""
    memory = policy.memorization
    if policy.coverage.min > 0:
        yield "coverage.min above 0 (provenance chains are not verified)"
    if memory is not None and memory.twins is not None:
        yield "memorization.twins"
    if memory is not None and memory.canaries is not None:
        yield "memorization.canaries"
    if policy.entropy.reference:
        yield "entropy.spectral.expected"
    if policy.ledger.anchor:
        yield "ledger.anchor"
    if policy.assurance == "isolated":
        yield "assurance: isolated"
    elif any(layer.lane for layer in policy.layers):
        yield "layers.lane"
