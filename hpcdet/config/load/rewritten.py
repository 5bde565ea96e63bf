"""A config with hpcdet's own keys, from one that was written for Determined."""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import yaml

from hpcdet.config.check import problems
from hpcdet.config.determined import unsupported_keys
from hpcdet.config.load.load_config import DEFAULT, NULL_SAYS, LoadedConfig, load
from hpcdet.store.config import data_secrets
from hpcdet.store.config.sections.checkpoint_storage import SECTION as STORAGE

_OURS = ("derived", "generated")


def config(file: Path, ignored: Container[str] = ()) -> str:
    """Return the text of an equivalent config: the values of the file, without defaults.

    It begins with a comment on each key that has no effect here. A secret that stands in the
    file becomes a reference to a variable of the environment.

    Args:
        ignored: keys of Determined that count for nothing.

    Raises:
        ConfigError: a key would change the result and hpcdet does not have it.
    """
    loaded = load(file, ignored=ignored)
    said = [f"Made by hpcdet of {file.name}, a config for Determined."]
    said += [warning.partition(": ")[2] for warning in loaded.warnings]
    values = _written(loaded)
    for name in sorted(loaded.secrets):
        variable = "".join(c if c.isalnum() else "_" for c in name).upper()
        key = data_secrets.key_of(name)
        section, _, inner = key.partition(".")
        places = {STORAGE: values.get(STORAGE), "notify": values.get("notify", {}).get("webhook")}
        if section in places:
            places[section][inner.rpartition(".")[2]] = {"env": variable}
        else:
            values["data"]["secrets"][name] = {"env": variable}
        said.append(f"{key}: set {variable} where you submit")
    head = "".join(f"# {line}\n" for text in said for line in text.splitlines())
    return head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)


def _written(loaded: LoadedConfig) -> dict[str, Any]:
    """Return the file's values and those derived from them, in the order of the keys' reference."""
    values: dict[str, Any] = {}
    whole = loaded.resolved()
    for key in problems.all_keys():
        above, _, name = key.rpartition(".")
        if problems.model_at(key) is not None or key in unsupported_keys.WITHOUT_EFFECT:
            continue
        if (origin := loaded.origins.get(key, DEFAULT)) in _OURS:
            continue
        section: Any = whole
        for part in filter(None, above.split(".")):
            section = section.get(part) if isinstance(section, Mapping) else None
        if not isinstance(section, Mapping) or name not in section:
            continue
        if section[name] is None and key not in NULL_SAYS:
            continue
        if origin != DEFAULT or section[name] != problems.default(key):
            place = values
            for part in filter(None, above.split(".")):
                place = place.setdefault(part, {})
            place[name] = section[name]
    return values
