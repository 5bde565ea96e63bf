"""The survey of a cluster: what a site file can say of it, in no scheduler's words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class QueueSurvey:
    """A partition or queue.

    Attributes:
        default: jobs that name none go there.
        nodes: that it has, those that are down or powered off counted.
        max_nodes, min_walltime_s, max_walltime_s: None: no limit.
        whole_nodes: jobs get their nodes alone.
        preemptible: jobs of others may end its jobs.
        suspends: jobs are stopped in memory while others run, which hpcdet does not support.
        cpus_per_node, memory_mib: of the smallest node.
        slots_per_node: accelerators of each node; 0 if none, or if not every node has them.
        accelerator: their type, as the scheduler calls it.
        directives, chunk: options, and resources of a chunk, that ask for the accelerators.
    """

    name: str
    default: bool = False
    nodes: int = 0
    min_nodes: int = 1
    max_nodes: int | None = None
    min_walltime_s: int | None = None
    max_walltime_s: int | None = None
    whole_nodes: bool = False
    preemptible: bool = False
    suspends: bool = False
    cpus_per_node: int | None = None
    memory_mib: int | None = None
    slots_per_node: int = 0
    accelerator: str = ""
    directives: dict[str, str] = field(default_factory=dict)
    chunk: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterSurvey:
    """A cluster as one of its users sees it.

    Attributes:
        name: its own name.
        scheduler: with its version, for people.
        parent: the shipped site file that one of this cluster extends.
        detect: the rule by which a host of it is recognised.
        accounts: that this user may name, the default one first.
        max_running: jobs of one user that run at once; None: no limit that is known.
        remarks: what else helps to complete the file, for people, a line each.
    """

    name: str
    scheduler: str
    parent: str
    detect: dict[str, str]
    queues: tuple[QueueSurvey, ...] = ()
    accounts: tuple[str, ...] = ()
    max_running: int | None = None
    remarks: tuple[str, ...] = ()


@runtime_checkable
class ReadsKeys(Protocol):
    """Facts of a backend that acts on keys of site files which mean nothing to others.

    Attributes:
        reads: of ``jobs.checks.idle_keys.OF_SOME``.
    """

    @property
    def reads(self) -> frozenset[str]: ...


@runtime_checkable
class Surveys(Protocol):
    """Facts of a backend that can say what a site file may say of its cluster."""

    def survey(self) -> ClusterSurvey:
        """Ask the cluster. Raises Unavailable: it gives no answer."""
