"""``data`` as the code gets it: references to secrets replaced by the secrets, on the node."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdet.errors import ConfigError
from hpcdet.store import files


def resolve(data: Mapping[str, Any], stored: Path) -> dict[str, Any]:
    """``data`` with every reference under ``secrets`` replaced by what it refers to.

    Args:
        stored: ``secrets.json`` of the experiment, which holds the literals.

    Raises:
        ConfigError: a variable is not set, a file cannot be read or others may read it. The
            message holds no secret.
    """
    secrets = data.get("secrets")
    if not isinstance(secrets, Mapping):
        return dict(data)
    return {**data, "secrets": {name: _one(name, ref, stored) for name, ref in secrets.items()}}


def _one(name: str, reference: Mapping[str, str], stored: Path) -> Any:
    where = f"data.secrets.{name}"
    [(form, target)] = reference.items()
    if form == "env":
        if target not in os.environ:
            hint = f"export {target} in the job's environment, or use {{file: PATH}}"
            raise ConfigError(f"the variable {target} is not set", where=where, hint=hint)
        return os.environ[target]
    if form == "file":
        return _read(Path(target).expanduser(), where).rstrip("\n")
    literals = files.read_json(stored)
    if not isinstance(literals, dict) or target not in literals:
        raise ConfigError(f"{stored.name} does not hold it", where=where)
    return literals[target]


def _read(path: Path, where: str) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                hint = f"chmod 600 {path}"
                raise ConfigError(f"others may read {path}", where=where, hint=hint)
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", where=where) from error
