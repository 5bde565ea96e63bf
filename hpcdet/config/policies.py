"""Policies by name or path: found, read as files that only their owner may write, compiled."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

from hpcdet import shipped
from hpcdet.config.policy.compile_policy import compile_policy
from hpcdet.errors import ConfigError
from hpcdet.policy.compiled import PolicyText
from hpcdet.store.folder import trust
from hpcdet.store.fs import yaml12

SUFFIX = ".yaml"


def shipped_policies() -> Iterator[tuple[str, Path]]:
    """Yield names and files of the policies that hpcdet ships, in order."""
    for path in sorted(shipped.folder("governance").glob(f"*{SUFFIX}")):
        yield path.stem, path


def find(name: str, base: Path) -> Path:
    """The file of a policy: a path, relative to ``base``, or the name of a shipped one.

    Raises:
        ConfigError: there is none.
    """
    known = dict(shipped_policies())
    path = base / Path(name).expanduser()
    if path.is_file():
        return path
    if name in known:
        return known[name]
    raise ConfigError(
        f"no policy {name!r}",
        where="governance.policy",
        hint=f"give a file, relative to {base}, or a shipped policy: {', '.join(known)}",
    )


def load(name: str, base: Path) -> PolicyText:
    """Read, check and compile a policy, as of today.

    Raises:
        PolicyRefused: it is not valid; names line, key and repair.
        ConfigError: there is none, or others may write it.
    """
    path = find(name, base)
    trust.refuse_writable_by_others(path, "policy")
    text = yaml12.text(path)
    today = datetime.datetime.now(datetime.UTC).date()
    return PolicyText(text, compile_policy(text, str(path), today))
