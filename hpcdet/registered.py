"""Plug-ins that distributions register by entry points: backends and launchers.

hpcdet's own are looked up in its own distribution alone: the search through all others takes tens
of milliseconds.
"""

from __future__ import annotations

import difflib
import functools
from typing import TYPE_CHECKING, Any

from hpcdet.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@functools.cache
def names(group: str) -> tuple[str, ...]:
    """All names in a group: hpcdet's own, then those of other distributions."""
    from importlib import metadata  # it takes as long as a whole verb

    own = [point.name for point in _own(group)]
    others = sorted(point.name for point in metadata.entry_points(group=group))
    return tuple(dict.fromkeys([*own, *others]))


@functools.cache
def find(group: str, name: str, what: str, where: str) -> Any:
    """The object that is registered by a name.

    Args:
        what: it is, for people.
        where: the key that names it.

    Raises:
        ConfigError: there is none, or it cannot be imported.
    """
    points = [point for point in _own(group) if point.name == name]
    if not points:
        from importlib import metadata

        points = list(metadata.entry_points(group=group, name=name))
    if not points:
        near = difflib.get_close_matches(name, known := names(group), n=1)
        raise ConfigError(
            f"there is no {what} {name}",
            where=where,
            hint=f"did you mean {near[0]}?" if near else f"those there are: {', '.join(known)}",
        )
    try:
        return points[0].load()
    except (ImportError, AttributeError) as error:
        said = f"the {what} {name} cannot be imported: {error}"
        hint = "install the distribution anew that registers it"
        raise ConfigError(said, where=points[0].value, hint=hint) from error


@functools.cache
def _own(group: str) -> tuple[EntryPoint, ...]:
    from importlib import metadata

    points = metadata.distribution("hpcdet").entry_points
    return tuple(point for point in points if point.group == group)
