"""The interface of every launcher.

A step is one or more processes: the launcher's own, or, where there is none, one per rank.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hpcdet.schedulers.common.backend import RemoteDaemons


@dataclass(frozen=True)
class StepRequest:
    """The ranks of one attempt.

    Attributes:
        rank: the command of one rank.
        environ: of the ranks; without what belongs to another step.
        nodes, ranks, ranks_per_node, cpus_per_rank: the size of the step.
        memory_per_node: bytes; None: what there is.
        name: for people.
        lanes: steps side by side on these nodes.
        hosts: the nodes that it has of a larger allocation; (): it may be on any of them.
        gpus: that the scheduler says it has granted on this node; 0: it does not say.
        mpi: ranks speak MPI.
        args, command: the site's, and the launcher's own name if "".
        daemons: how the launcher's own daemons start on other nodes.
        python: that of the ranks.
        folder: the attempt's, which all nodes see.
    """

    rank: tuple[str, ...]
    environ: Mapping[str, str]
    nodes: int
    ranks: int
    ranks_per_node: int
    cpus_per_rank: int
    memory_per_node: int | None
    name: str
    lanes: int
    hosts: tuple[str, ...]
    gpus: int
    mpi: bool
    args: tuple[str, ...]
    command: str
    daemons: RemoteDaemons
    python: str
    folder: Path


@dataclass(frozen=True)
class Launch:
    """A step, ready to be started: ``argv`` once for each entry of ``processes``.

    Attributes:
        environment: complete, without what belongs to another step.
        processes: what each process has in its environment on top.
        by_launcher: the process is a launcher that starts the ranks elsewhere.
        end_signal: makes a launcher end its ranks everywhere. Where it is not SIGTERM, that is
            kept from the launcher: schedulers send it as a notice, to whatever they find.
        rank: the command of one rank, where ranks may be forked from nurseries instead.
        forked: what each then has in its environment on top, by node.
        prefix: of the variables that the launcher sets in ranks; "": it sets none.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    processes: tuple[Mapping[str, str], ...]
    by_launcher: bool
    end_signal: signal.Signals = signal.SIGTERM
    rank: tuple[str, ...] = ()
    forked: tuple[tuple[Mapping[str, str], ...], ...] = ()
    prefix: str = ""


@dataclass(frozen=True)
class NurseryRequest:
    """One process on each node, from which the ranks of all trials are forked.

    Attributes:
        process: its command line; it is told what to do on its standard input.
        environ, nodes, ranks_per_node, cpus_per_rank, memory_per_node, lanes, mpi, args, command:
            as of ``StepRequest``.
    """

    process: tuple[str, ...]
    environ: Mapping[str, str]
    nodes: int
    ranks_per_node: int
    cpus_per_rank: int
    memory_per_node: int | None
    lanes: int
    mpi: bool
    args: tuple[str, ...]
    command: str


@dataclass(frozen=True)
class RankDeath:
    """A rank that a signal ended, as its launcher reports it.

    Attributes:
        first: no other rank failed before; False: it may be one that the launcher itself ended.
    """

    signal: str
    first: bool = True


class RankLauncher(Protocol):
    """One launcher.

    Attributes:
        command: its program; "": there is none.
        starters: programs that start processes as it does.
        divides: it gives each of several steps side by side its accelerators.
        contains: sites may have given it options that start ranks in containers.
        alone: its arguments for one process.
    """

    @property
    def command(self) -> str: ...

    @property
    def starters(self) -> frozenset[str]: ...

    @property
    def divides(self) -> bool: ...

    @property
    def contains(self) -> bool: ...

    @property
    def alone(self) -> tuple[str, ...]: ...

    def step(self, request: StepRequest) -> Launch:
        """Return how to start the ranks."""

    def nursery(self, request: NurseryRequest) -> Launch | str:
        """Return how to start the processes that ranks are forked from, or why it cannot."""

    def listener(self, args: Sequence[str], command: Sequence[str]) -> tuple[str, ...]:
        """Return a step on the first node that only hears signals; () if it starts none."""

    def objection_to_mpi(self, args: Sequence[str]) -> tuple[str, str]:
        """Return what keeps MPI from its ranks, and the repair; "" for nothing."""

    def death(self, said: str) -> RankDeath | None:
        """Return the first death of a rank that it reports on its standard error."""

    def first_failed(self, said: str) -> int | None:
        """Return the rank that it reports as the first to fail."""

    def lost_node(self, said: str) -> bool:
        """True if it reports that a node was lost."""
