"""``governance`` in a config: its keys are references, or drawn at submission."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcdet.config.check.problems import Problem
from hpcdet.config.load.secret_references import is_reference
from hpcdet.store.config.resolved_config import GOVERNANCE_KEYS

_SECTION = "governance"
_OWN = ("digest", "commitment", "signer")
"""Written at submission."""


def problems(values: dict[str, Any], source: str) -> Iterator[Problem]:
    """Yield what is wrong with references to keys; leave out what a submission has filled in.

    A resolved config is a config: keys that were drawn for one experiment are drawn anew for the
    next. The path of a file begins at the config's folder, as that of the policy: jobs and later
    commands begin elsewhere. No message holds a value, which may be the key itself.

    Args:
        source: the config's file.
    """
    section = values.get(_SECTION)
    if isinstance(section, dict):
        section = {name: given for name, given in section.items() if name not in _OWN}
        values[_SECTION] = section
        for name in GOVERNANCE_KEYS:
            given, key = section.get(name), f"{_SECTION}.{name}"
            if given == {"stored": key}:
                section.pop(name)
            elif given is not None and not is_reference(given):
                section.pop(name)
                hint = "{file: PATH} or {env: NAME}; leave it out, and one is drawn"
                yield Problem(key, "expected a reference, not the key itself", hint)
            elif given is not None and not given.get("file", "~").startswith("~"):
                beside = Path(source).parent.resolve() / given["file"]
                section[name] = {"file": os.path.normpath(beside)}
    data = values.get("data")
    kept = data.get("secrets") if isinstance(data, dict) else None
    for name in GOVERNANCE_KEYS:
        if isinstance(kept, dict) and (key := f"{_SECTION}.{name}") in kept:
            yield Problem(f"data.secrets.{key}", "the name is hpcdet's own", "take another name")
