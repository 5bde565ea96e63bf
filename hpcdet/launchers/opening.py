"""Launchers by their names, as entry points of the group ``hpcdet.launchers`` register them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from hpcdet import registered
from hpcdet.launchers.common import RankDeath, RankLauncher
from hpcdet.schedulers import opening

if TYPE_CHECKING:
    from hpcdet.site import PartitionView, Site

GROUP = "hpcdet.launchers"


def names() -> list[str]:
    """Names of all launchers there are, hpcdet's own first."""
    return [*registered.names(GROUP)]


def launcher(kind: str) -> RankLauncher:
    """The launcher of that kind. Raises ConfigError: there is none."""
    found: RankLauncher = registered.find(GROUP, kind, "launcher", "launcher.kind")
    return found


def kind_of(site: Site, view: PartitionView) -> str:
    """The kind of launcher in a partition; where no site file names one, the scheduler's own."""
    return view.launcher.kind or opening.of(site).facts.launcher


@functools.cache
def _own() -> tuple[RankLauncher, ...]:
    return tuple(launcher(name) for name in names())


def starters() -> frozenset[str]:
    """Programs that start ranks."""
    return frozenset().union(*(one.starters for one in _own()))


def death(said: str) -> RankDeath | None:
    """The first death of a rank that any launcher reports in this text.

    Several are called ``mpirun``; each knows its own words.
    """
    return next((found for one in _own() if (found := one.death(said))), None)


def first_failed(said: str) -> int | None:
    """The rank that any launcher reports in this text as the first to fail."""
    return next((rank for one in _own() if (rank := one.first_failed(said)) is not None), None)


def lost_node(said: str) -> bool:
    """True if any launcher reports in this text that a node was lost."""
    return any(one.lost_node(said) for one in _own())
