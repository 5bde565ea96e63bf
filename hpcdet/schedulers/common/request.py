"""Requests of one submission, in words of no particular scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hpcdet.store.config.placement import UserOptions

if TYPE_CHECKING:
    from hpcdet.site.models import PartitionView

__all__ = ["AfterEnd", "NodeRequest", "ScriptRequest", "UserOptions"]

NO_OPTIONS = UserOptions()

DEFAULT_PRIORITY = 42
"""As Determined's: lower ones come first, higher ones later."""

AfterEnd = Literal["", "bad", "any"]
"""After which ends of another job a job starts: bad ones, any."""


@dataclass(frozen=True)
class NodeRequest:
    """A policy's requirements on the nodes of a job.

    Attributes:
        capabilities: names in the policy.
        features: nodes must have all of them, and the scheduler shows which do.
        settings: options that have exactly one right value.
        resources: of each host, with its value.
    """

    capabilities: tuple[str, ...]
    features: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ScriptRequest:
    """One submission.

    Attributes:
        name, tag: find the job again.
        tasks: workers; how many of them at once is ``throttle``.
        nodes, least_nodes: of one worker; it takes fewer where they differ.
        ranks_per_node, cpus_per_rank: of one worker.
        memory_per_node: bytes; None: what the scheduler gives.
        walltime_s: None: what the scheduler gives.
        folder: the experiment's, in which the job starts.
        output: folder of the tasks' logs.
        exclude: hosts to avoid.
        held: it waits until it is released.
        after: jobs that must have ended well.
        behind: jobs that must have ended, by colons.
        watches: the job after whose end (``after_end``) it starts; a small job that only looks
            after the experiment. "": a worker.
        signal_lead_s: the warning before the end.
        priority: 1 to 99, the higher the later (``DEFAULT_PRIORITY``); None: that.
        rerun: the scheduler may run it again under its id, after a preemption or a lost host.
        pool: the partition or queue that the user has chosen; None: the site's.
        view: the site in that pool, with its options expanded.
        user: the user's own options.
        required: what a policy requires of the nodes.
    """

    name: str
    tag: str
    tasks: int
    throttle: int
    nodes: int
    least_nodes: int
    ranks_per_node: int
    cpus_per_rank: int
    memory_per_node: int | None
    walltime_s: int | None
    folder: Path
    output: Path
    view: PartitionView
    exclude: tuple[str, ...] = ()
    held: bool = False
    after: tuple[str, ...] = ()
    behind: str = ""
    watches: str = ""
    after_end: AfterEnd = ""
    signal_lead_s: int = 0
    priority: int | None = None
    rerun: bool = False
    pool: str | None = None
    user: UserOptions = NO_OPTIONS
    required: NodeRequest | None = None

    @property
    def dependency(self) -> str | None:
        """The ends that a worker's job waits for, as Slurm and PBS write them; None: for none."""
        ends = [":".join(["afterok", *self.after])] if self.after else []
        ends += [f"afterany:{self.behind}"] if self.behind else []
        return ",".join(ends) or None
