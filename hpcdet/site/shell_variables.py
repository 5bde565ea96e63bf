"""``$VARIABLES`` and ``~`` in values of a site file, expanded where the file is read."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from hpcdet.site.models import Site

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
    """Return a sentence for each value of ``env`` that names a variable which is not set here."""
    parts = {f"partitions.{name}.env": part.env for name, part in site.partitions.items()}
    return [
        f"{place}.{name}: {found[0]} is not set here and stays as it is written; a value that only "
        f"the node knows is set by setup: ['export {name}=\"{value}\"']"
        for place, values in {"env": site.env, **parts}.items()
        for name, value in values.items()
        if (found := _NAMED.search(value))
    ]


def _expanded(values: Mapping[str, str]) -> dict[str, str]:
    return {name: expanded(value) for name, value in values.items()}
