"""Open MPI's ``mpirun`` (up to 4: orterun, from 5: prterun)."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence

from hpcdet.launchers.common import Launch, NurseryRequest, RankDeath, StepRequest

# What it says of the rank that failed first; by the time it says so it has ended all others.
_EXITED = re.compile(r"Process name: \[.*,\s*(\d+)\]\s+Exit code:")
_DIED = re.compile(r"run noticed that process rank \d+ .*? exited on\s+signal\s+(\d+)")
_LOST = re.compile(r"has lost communication with a remote daemon")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_A_NODE = ("OMPI_", "PMIX_", "PRTE_", "HOSTNAME", "SHLVL", "PWD", "OLDPWD")
"""What each node has of its own, or the launcher sends anyhow."""
# On one node it needs no transport that opens ports; those left out would (libfabric's, too).
_SHARED_MEMORY = ("OMPI_MCA_btl", "^tcp,ofi")


class Mpirun:
    """``common.RankLauncher`` for ``mpirun``."""

    command = "mpirun"
    starters = frozenset({"mpirun", "orterun", "prun"})
    contains = False
    divides = False
    alone = ("-np", "1")

    def step(self, request: StepRequest) -> Launch:
        """See ``common.RankLauncher``."""
        argv = (
            *(request.command or self.command, "-np", str(request.ranks)),
            # what is free has been counted by the scheduler, or by the local backend
            *("--map-by", f"ppr:{request.ranks_per_node}:node:OVERSUBSCRIBE", "--bind-to", "none"),
            *(request.daemons.arguments or _hosts(request)),
            *_sent(request),
            *request.args,
        )
        environ = {**request.environ}
        if request.nodes == 1:
            environ.setdefault(*_SHARED_MEMORY)
        environ.update(request.daemons.environment)
        end = signal.SIGINT
        return Launch((*argv, *request.rank), environ, ({},), by_launcher=True, end_signal=end)

    def nursery(self, request: NurseryRequest) -> Launch | str:
        """See ``common.RankLauncher``."""
        return "mpirun's standard input does not reach every rank"

    def listener(self, args: Sequence[str], command: Sequence[str]) -> tuple[str, ...]:
        """See ``common.RankLauncher``."""
        return ()

    def objection_to_mpi(self, args: Sequence[str]) -> tuple[str, str]:
        """See ``common.RankLauncher``."""
        return "", ""

    def death(self, said: str) -> RankDeath | None:
        """See ``common.RankLauncher``."""
        found = _DIED.search(said)
        return RankDeath(signal.Signals(int(found[1])).name) if found else None

    def first_failed(self, said: str) -> int | None:
        """See ``common.RankLauncher``."""
        found = _EXITED.search(said)
        return int(found[1]) if found else None

    def lost_node(self, said: str) -> bool:
        """See ``common.RankLauncher``."""
        return _LOST.search(said) is not None


def _hosts(request: StepRequest) -> Iterator[str]:
    if request.hosts:
        yield "-host"
        yield ",".join(f"{host}:{request.ranks_per_node}" for host in request.hosts)


def _sent(request: StepRequest) -> Iterator[str]:
    """Yield the options by which variables reach the ranks; their values are in no command line."""
    if request.daemons.own and (request.nodes > 1 or request.hosts):
        kept = (*_OF_A_NODE, *request.daemons.own)
        for name in sorted(request.environ):
            if _NAME.fullmatch(name) and not name.startswith(kept):
                yield from ("-x", name)


LAUNCHER = Mpirun()
