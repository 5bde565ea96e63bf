"""``data`` as the user's code gets it, with references to secrets resolved on the node.

Also the test which values are likely secrets by their names, so that no output shows them.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdet.errors import ConfigError
from hpcdet.store.config.sections import checkpoint_storage
from hpcdet.store.fs import files

HIDDEN = "(not shown: its name says that it is a secret)"
_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEY|ACCESS_KEY"
    r"|PRIVATE_KEY|CONNECTION_STRING)(?:$|_)",
    re.I,
)


def is_secret(name: str) -> bool:
    """True if the name of a value marks it as a secret."""
    return _NAME.search(name) is not None


def hidden(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resolved config for display, without values whose names mark them as secrets.

    Only in ``environment`` and ``data``: hyperparameters may have such names (``pad_token``).
    """
    parts = {name: _hidden(config[name]) for name in ("environment", "data") if name in config}
    return {**config, **parts}


def _hidden(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _hidden_if(str(name), inner) for name, inner in value.items()}
    return [_hidden(inner) for inner in value] if isinstance(value, list) else value


def _hidden_if(name: str, value: Any) -> Any:
    return HIDDEN if isinstance(value, str) and is_secret(name) else _hidden(value)


def key_of(name: str) -> str:
    """Return the key of the config that had the secret of a name in ``secrets.json``."""
    own = (f"{checkpoint_storage.SECTION}.", "governance.", "notify.")
    return name if name.startswith(own) else f"data.secrets.{name}"


def resolve(data: Mapping[str, Any], stored: Path) -> dict[str, Any]:
    """Return ``data`` with every reference under ``secrets`` replaced by its value.

    Args:
        stored: ``secrets.json`` of the experiment, which holds the literals.

    Raises:
        ConfigError: a variable is not set, a file cannot be read or others may read it. The
            message holds no secret.
    """
    secrets = data.get("secrets")
    if not isinstance(secrets, Mapping):
        return dict(data)
    found = {name: value(f"data.secrets.{name}", ref, stored) for name, ref in secrets.items()}
    return {**data, "secrets": found}


def value(where: str, reference: Mapping[str, str], stored: Path) -> Any:
    """Return what one reference stands for; ``where`` is its key. Raises as ``resolve``."""
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
        with io.TextIOWrapper(files.open_file(path), encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                hint = f"chmod 600 {path}"
                raise ConfigError(f"others may read {path}", where=where, hint=hint)
            return file.read()
    except OSError as error:
        hint = "name a file that is there, by an absolute path or one from ~"
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", where=where, hint=hint
        ) from error
