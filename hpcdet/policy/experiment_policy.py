"""The policy of an experiment, as its folder has it, and the keys that go with it."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdet.errors import ConfigError
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.store.config import data_secrets
from hpcdet.store.config.resolved_config import Governance
from hpcdet.store.folder.layout import ExperimentPaths


def load(paths: ExperimentPaths, governance: Governance) -> CompiledPolicy:
    """Return the policy under which an experiment was submitted.

    Args:
        governance: of the experiment's config, which names the policy by its digest.

    Raises:
        GovernanceBroken: it is gone, or is not the one that was submitted (G110), or of an
            unknown version (G101).
    """
    policy = CompiledPolicy.load(paths.compiled_policy)
    if policy.digest != governance.digest:
        raise GovernanceBroken(
            "G110",
            "it is not the policy that the experiment's config names",
            where=str(paths.compiled_policy),
            hint="put it back from a backup, or fork the experiment",
        )
    return policy


def given_key(governance: Mapping[str, Any], name: str, drawn: Mapping[str, Any]) -> str:
    """Return a key of an experiment that is about to be made: ``run_key`` or ``twin_key``.

    Args:
        governance: of its config, with a reference for each key.
        drawn: values of ``{"stored": NAME}``.

    Raises:
        PolicyRefused: it cannot be read here (P10). The message holds no key.
    """
    where, reference = f"governance.{name}", governance[name]
    try:
        stored = drawn.get(reference.get("stored", ""))
        found = data_secrets.value(where, reference, Path()) if stored is None else stored
    except ConfigError as error:
        raise PolicyRefused("P10", error.what, where=error.where, hint=error.hint) from None
    return str(found)


def key(paths: ExperimentPaths, governance: Governance, name: str) -> str:
    """Return a key of an experiment: ``run_key`` or ``twin_key``.

    Raises:
        PolicyRefused: there is none (P10): no reference, a variable that is not set, or a file that
            cannot be read or that others may read. The message holds no key.
        OSError: what was stored cannot be read.
    """
    where = f"governance.{name}"
    reference: dict[str, str] | None = getattr(governance, name)
    if reference is None:
        hint = "submit anew: a key that is not given is drawn"
        raise PolicyRefused("P10", "there is no key", where=where, hint=hint)
    if "stored" in reference and paths.secrets.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        hint = f"chmod 600 {paths.secrets}; if it was read, submit anew: that draws another key"
        raise PolicyRefused("P10", f"others may read {paths.secrets}", where=where, hint=hint)
    try:
        return str(data_secrets.value(where, reference, paths.secrets))
    except ConfigError as error:
        raise PolicyRefused("P10", error.what, where=error.where, hint=error.hint) from None
