"""Conversion of Determined's experiment config, for keys that matter after the experiment's end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdet.errors import HpcdetError
from hpcdet.store.config import resolved_config
from hpcdet.store.config.sections.searcher_keys import Searcher
from hpcdet.units import UNITS

_SECRET = frozenset({
    "access_key", "account_url", "connection_string", "credential", "password", "registry_auth",
    "secret_key", "secrets", "auth", "serverAddress", "identitytoken", "registrytoken",
})  # fmt: skip
_OURS = ("single", "random", "grid", "async_halving", "adaptive_asha")
_TAKEN = ("divisor", "max_rungs", "num_rungs", "mode", "max_concurrent_trials")
"""Keys of ``searcher`` that mean the same here."""
_PLAIN = ("description", "hyperparameters", "labels", "max_restarts", "entrypoint")


def without_secrets(config: Any) -> Any:
    """Return a config without values that may be secrets; their keys stay."""
    if isinstance(config, Mapping):
        return {
            str(key): None if key in _SECRET else without_secrets(value)
            for key, value in config.items()
        }
    return [without_secrets(one) for one in config] if isinstance(config, list) else config


def shown(said: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resolved config of hpcdet's for the record of an experiment that has ended.

    A value that hpcdet would not read is left out; the whole is in ``provenance.json``.
    """
    config = without_secrets(config)
    slots = _mapping(config, "resources").get("slots_per_trial")
    seed = _mapping(config, "reproducibility").get("experiment_seed")
    wanted = {
        **{key: config.get(key) for key in _PLAIN},
        "labels": said.get("labels") or config.get("labels"),
        "description": said.get("description") or config.get("description"),
        "workspace": said.get("workspaceName") or config.get("workspace"),
        "project": said.get("projectName") or config.get("project"),
        "data": {k: v for k, v in _mapping(config, "data").items() if k != "secrets"},
        "searcher": _searcher(said, _mapping(config, "searcher")),
        "resources": {"slots_per_trial": slots if isinstance(slots, int) and slots > 0 else 1},
        "reproducibility": {"experiment_seed": seed} if isinstance(seed, int) else None,
    }
    name = said.get("name") or config.get("name") or f"experiment {said.get('id')}"
    made: dict[str, Any] = {"schema": 1, "name": str(name)[:200]}
    for key, value in wanted.items():
        if value not in (None, "", [], {}) and _readable({**made, key: value}):
            made[key] = value
    return made


def _searcher(said: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    name = theirs.get("name") or said.get("searcherType")
    made: dict[str, Any] = {"name": name if name in _OURS else "custom"}
    metric = theirs.get("metric") or said.get("searcherMetric")
    if isinstance(metric, str) and metric:
        made["metric"] = metric
    smaller = theirs.get("smaller_is_better")
    made["smaller_is_better"] = smaller if isinstance(smaller, bool) else True
    trials = theirs.get("max_trials") or said.get("numTrials")
    wanted = {"max_trials": trials, "max_length": _length(theirs)}
    for key, value in {**wanted, **{key: theirs.get(key) for key in _TAKEN}}.items():
        if value is not None and _readable({"searcher": {**made, key: value}}):
            made[key] = value
    return made


def _length(theirs: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the length of a whole training, by the keys of this or a former Determined."""
    amount, unit = theirs.get("max_time"), theirs.get("time_metric")
    length = theirs.get("max_length")
    if isinstance(length, Mapping) and len(length) == 1:
        [(unit, amount)] = length.items()
    if unit not in UNITS or not isinstance(amount, int) or amount <= 0:
        return None
    return {str(unit): amount}


def _mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def _readable(value: Mapping[str, Any]) -> bool:
    """True if hpcdet reads a resolved config with these values."""
    try:
        resolved: Searcher = resolved_config.resolve(value).searcher
        _ = resolved.goals, resolved.rungs
    except (HpcdetError, ValueError, TypeError, LookupError, ArithmeticError):
        return False
    return True
