"""Users' changes of an experiment's config since its submission, and their authors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcdet.read.experiment.gather import Gathered
from hpcdet.store.config import overrides
from hpcdet.store.config.resolved_config import Resolved


@dataclass(frozen=True)
class Change:
    """A change of the config since the submission."""

    key: str
    """The key, as ``resources.walltime_s``."""
    value: Any
    """Its value since."""
    was: Any
    """Its value in ``experiment.yaml``."""
    origin: str
    """The command that changed it, as ``command 3``."""
    user: str
    """Who gave that command."""
    at: str
    """When."""
    pending: bool
    """True if it is recorded, but not obeyed by the process that decides yet."""


@dataclass(frozen=True)
class NoteView:
    """A note on an experiment."""

    text: str
    """The text."""
    user: str
    """Who wrote it."""
    at: str
    """When."""


def changes(gathered: Gathered, *, pending: bool = True) -> list[Change]:
    """Return the changes in force, by key.

    Args:
        pending: also those that no holder of the lease has obeyed yet.
    """
    heard = {line["seq"]: line for line in gathered.decisions if line["kind"] == "command"}
    found: dict[str, Change] = {}
    for seq, command in gathered.commands:
        for key, words in overrides.about(command.verb, command.arguments).items():
            was, by = _at(gathered.submitted.raw, key), f"command {seq}"
            found[key] = Change(key, words, was, by, command.user, command.at, pending=False)
        line = heard.get(seq)
        left_out = not pending if line is None else bool(line.get("refused"))
        if left_out:
            continue
        arguments = line.get("arguments", {}) if line is not None else command.arguments
        for key, value in overrides.asked(command.verb, arguments).items():
            was, by = _at(gathered.submitted.raw, key), f"command {seq}"
            found[key] = Change(key, value, was, by, command.user, command.at, line is None)
    return [found[key] for key in sorted(found)]


def labels(gathered: Gathered) -> list[str]:
    """Return the config's labels with the later changes of ``hpcdet tag``."""
    found = dict.fromkeys(str(label) for label in gathered.config.labels)
    for _, command in gathered.commands:
        if command.verb == "tag":
            for label in command.arguments.get("add", []):
                found[label] = None
            for label in command.arguments.get("rm", []):
                found.pop(label, None)
    return list(found)


def notes(gathered: Gathered) -> list[NoteView]:
    """Return the notes of ``hpcdet note``, oldest first."""
    return [
        NoteView(str(command.arguments.get("text", "")), command.user, command.at)
        for _, command in gathered.commands
        if command.verb == "note"
    ]


def effective(gathered: Gathered, *, pending: bool = True) -> Resolved:
    """Return the config with these changes merged."""
    found = changes(gathered, pending=pending)
    return overrides.lay(gathered.config, {c.key: c.value for c in found})


def assigned(changed: Mapping[str, Any]) -> list[str]:
    """Format each as ``key=value``, the value as in a config: ``{batches: 32}``, ``null``."""
    return [
        f"{key}={value if isinstance(value, str) else json.dumps(value).replace(chr(34), '')}"
        for key, value in changed.items()
    ]


def refusals(gathered: Gathered) -> dict[int, str]:
    """Return why commands were refused, by their number; "" for those that were obeyed."""
    lines = (line for line in gathered.decisions if line["kind"] == "command")
    return {line["seq"]: str(line.get("refused") or "") for line in lines}


def _at(plain: Any, key: str) -> Any:
    for part in key.split("."):
        plain = plain.get(part) if isinstance(plain, dict) else None
    return plain
