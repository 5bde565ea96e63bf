"""Partitions and queues of a site: what they add to a job, and the bounds they set to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, model_validator

from hpcdet.errors import ConfigError
from hpcdet.site.value_types import Directives, Duration, Model, Text


class Launcher(Model):
    """Launcher that starts the ranks of a step."""

    kind: str | None = Field(default=None, description="its name; null: the scheduler's own")
    command: str | None = Field(
        default=None, min_length=1, description="program in the place of its own, as ibrun"
    )
    args: list[Text] = Field(default_factory=list, description="arguments added to it")


class Partition(Model):
    """Values of one partition or queue that differ from the site's, and its bounds."""

    directives: Directives = Field(default_factory=dict)
    chunk: Directives = Field(
        default_factory=dict,
        description="resources added to each chunk of a job, where the scheduler has chunks",
    )
    skip: list[str] = Field(default_factory=list)
    slots_per_node: int | None = Field(default=None, ge=1)
    cpus_per_node: int | None = Field(default=None, ge=1)
    min_nodes: int | None = Field(default=None, ge=1, description="fewest nodes of a job")
    max_nodes: int | None = Field(default=None, ge=1, description="most nodes of a job")
    min_walltime_s: Duration | None = Field(default=None, description="shortest walltime of a job")
    max_walltime_s: Duration | None = Field(default=None, description="longest walltime of a job")
    walltime_by_nodes: dict[Annotated[int, Field(ge=1)], Duration] = Field(
        default_factory=dict,
        description="longest walltime of jobs of up to so many nodes; of larger: max_walltime_s",
    )
    whole_nodes: bool = Field(default=False, description="a job gets its nodes alone, and pays so")
    preemptible: bool = Field(
        default=False, description="jobs may be ended at any time to run others"
    )
    chain: bool = Field(
        default=True, description="false: a job may not submit its own continuation here"
    )
    max_running: int | None = Field(
        default=None, ge=1, description="jobs of one user that may run at once here; null: no limit"
    )
    env: dict[str, Text] = Field(default_factory=dict, description="as the site's, over it")
    setup: list[str] = Field(default_factory=list)
    launcher: Launcher | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Partition:
        if self.min_nodes and self.max_nodes and self.min_nodes > self.max_nodes:
            raise ValueError(f"min_nodes {self.min_nodes} is above max_nodes {self.max_nodes}")
        longest = [self.max_walltime_s, *self.walltime_by_nodes.values()]
        for most in longest:
            if self.min_walltime_s and most and self.min_walltime_s > most:
                raise ValueError(f"min_walltime_s {self.min_walltime_s} is above a limit of {most}")
        return self

    @classmethod
    def any_of(cls, parts: Mapping[str, Partition]) -> Partition:
        """Return what holds for a job that runs in any one of these.

        Its bounds are the widest of theirs, and its nodes as small as the smallest.

        Raises:
            ConfigError: their options differ, and a job has only one set of them.
        """
        first, *others = parts.values()
        if not others:
            return first
        for key in ("directives", "chunk", "skip", "env", "setup", "launcher"):
            if any(getattr(part, key) != getattr(first, key) for part in parts.values()):
                raise ConfigError(
                    f"{' and '.join(parts)} have different {key}, and a job has one script",
                    where="resources.resource_pool",
                    hint="name one of them",
                )
        all_of = list(parts.values())
        steps = sorted({most for part in all_of for most in part.walltime_by_nodes})
        return first.model_copy(
            update={
                "slots_per_node": _of_known(min, [part.slots_per_node for part in all_of]),
                "cpus_per_node": _of_known(min, [part.cpus_per_node for part in all_of]),
                "min_nodes": _of_all(min, [part.min_nodes for part in all_of]),
                "max_nodes": _of_all(max, [part.max_nodes for part in all_of]),
                "min_walltime_s": _of_all(min, [part.min_walltime_s for part in all_of]),
                "max_walltime_s": _of_all(max, [part.max_walltime_s for part in all_of]),
                "walltime_by_nodes": {
                    most: longest
                    for most in steps
                    if (longest := _of_all(max, [part.longest_s(most) for part in all_of]))
                },
                "whole_nodes": any(part.whole_nodes for part in all_of),
                "preemptible": any(part.preemptible for part in all_of),
                "chain": all(part.chain for part in all_of),
                "max_running": None,  # the scheduler chooses where there is room
            }
        )

    def longest_s(self, nodes: int) -> int | None:
        """Return the longest walltime of a job of so many nodes in seconds; None: no limit."""
        steps = sorted(self.walltime_by_nodes.items())
        given = next((limit for most, limit in steps if nodes <= most), None)
        return _of_known(min, [given, self.max_walltime_s])


def _of_known(choose: Callable[[list[int]], int], values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None


def _of_all(choose: Callable[[list[int]], int], values: list[int | None]) -> int | None:
    """The least or greatest; None if one of them is: there is no bound."""
    return None if None in values else _of_known(choose, values)


@dataclass(frozen=True)
class PartitionView:
    """The site as seen from one partition: the partition's values over the site's."""

    name: str | None
    directives: Directives
    skip: frozenset[str]
    env: dict[str, str]
    setup: tuple[str, ...]
    launcher: Launcher
    slots_per_node: int | None
    cpus_per_node: int | None
    max_walltime_s: int | None
    chunk: Directives = field(default_factory=dict)
    place: str | None = None
    bounds: Partition = field(default_factory=Partition)

    def longest_s(self, nodes: int) -> int | None:
        """Return the longest walltime of a job of so many nodes in seconds; None: no limit."""
        return self.bounds.longest_s(nodes)

    def nearest_s(self, walltime_s: int, nodes: int) -> int:
        """Return the walltime nearest to a wanted one that a job of so many nodes may have."""
        enough = max(walltime_s, self.bounds.min_walltime_s or 0)
        longest = self.longest_s(nodes)
        return enough if longest is None else min(enough, longest)
