"""What users have changed of an experiment's config since it was submitted, and who did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hpcdet.read.experiment.gather import Gathered
from hpcdet.store.config import overrides
from hpcdet.store.config.resolved_config import Resolved

Change = dict[str, Any]


def changes(gathered: Gathered, *, pending: bool = True) -> list[Change]:
    """The changes in force, by key.

    Args:
        pending: also those that nobody has obeyed yet.

    Returns:
        ``key, value, was`` (in ``experiment.yaml``), ``origin`` (``command 3``), ``user, at``,
        ``pending``: asked for, but nobody has obeyed yet.
    """
    heard = {line["seq"]: line for line in gathered.decisions if line["kind"] == "command"}
    found: dict[str, Change] = {}
    for seq, command in gathered.commands:
        line = heard.get(seq)
        left_out = not pending if line is None else bool(line.get("refused"))
        if left_out:
            continue
        arguments = line.get("arguments", {}) if line is not None else command.arguments
        for key, value in overrides.asked(command.verb, arguments).items():
            found[key] = {
                "key": key,
                "value": value,
                "was": _at(gathered.config.raw, key),
                "origin": f"command {seq}",
                "user": command.user,
                "at": command.at,
                "pending": line is None,
            }
    return [found[key] for key in sorted(found)]


def effective(gathered: Gathered, *, pending: bool = True) -> Resolved:
    """The config with these changes laid over it."""
    found = changes(gathered, pending=pending)
    return overrides.lay(gathered.config, {c["key"]: c["value"] for c in found})


def assigned(changed: Mapping[str, Any]) -> list[str]:
    """``key=value`` of each, the value as a config would have it: ``{batches: 32}``, ``null``."""
    return [
        f"{key}={value if isinstance(value, str) else json.dumps(value).replace(chr(34), '')}"
        for key, value in changed.items()
    ]


def refusals(gathered: Gathered) -> dict[int, str]:
    """Why commands were refused, by their number; "" of those that were obeyed."""
    lines = (line for line in gathered.decisions if line["kind"] == "command")
    return {line["seq"]: str(line.get("refused") or "") for line in lines}


def _at(plain: Any, key: str) -> Any:
    for part in key.split("."):
        plain = plain.get(part) if isinstance(plain, dict) else None
    return plain
