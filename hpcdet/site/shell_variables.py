"""``$VARIABLES`` and ``~`` in values of a site file, expanded where the file is read."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from hpcdet.site.models import Site
from hpcdet.store.config.data_secrets import is_secret

_NAMED = re.compile(r"\$(\w+|\{[^}]*\})", re.ASCII)


def expanded(text: str) -> str:
    """Return text with ``$NAME``, ``${NAME}`` and a leading ``~``; unset names stay as written."""
    return os.path.expanduser(os.path.expandvars(text))  # noqa: PTH111 - not always a path


def with_environment(site: Site) -> Site:
    """Return the site with the values of ``env``, and of its partitions', expanded."""
    parts = {
        name: part.model_copy(update={"env": _expanded(part.env)})
        for name, part in site.partitions.items()
    }
    return site.changed({"env": _expanded(site.env), "partitions": parts}, {})


def unset(site: Site) -> list[str]:
    """Return a sentence for each value of ``env`` that names a variable and stays as written.

    It is not set here, or a name marks the value as a secret.
    """
    parts = {f"partitions.{name}.env": part.env for name, part in site.partitions.items()}
    found = [
        (f"{place}.{name}", name, value, named[0])
        for place, values in {"env": site.env, **parts}.items()
        for name, value in values.items()
        if (named := _NAMED.search(value))
    ]
    return [
        f"{where}: a secret would stand in every job script, so it stays as it is written; setup "
        "reads it from a file of yours"
        if _secret(name, value)
        else f"{where}: {variable} is not set here and stays as it is written; a value that only "
        f"the node knows is set by setup: ['export {name}=\"{value}\"']"
        for where, name, value, variable in found
    ]


def _expanded(values: Mapping[str, str]) -> dict[str, str]:
    return {n: value if _secret(n, value) else expanded(value) for n, value in values.items()}


def _secret(name: str, value: str) -> bool:
    """True if a value's own name, or that of a variable in it, marks it as a secret."""
    return any(map(is_secret, (name, *(found.strip("{}") for found in _NAMED.findall(value)))))
