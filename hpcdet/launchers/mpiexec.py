"""``mpiexec`` of Hydra (MPICH, MVAPICH, Intel MPI) and of PALS (HPE Cray)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from signal import Signals

from hpcdet.launchers.common import Launch, NurseryRequest, RankDeath, StepRequest

# What Hydra (MPICH, MVAPICH) says: one rank's status, and then all ranks' statuses or-ed together,
# those of ranks that it has killed itself among them. Intel's says each rank's, in their order.
_DIED = re.compile(r"=   EXIT CODE: (\d+)(?s:.*?)EXIT STRING: .*\(signal (\d+)\)")
_INTEL_DIED = re.compile(r"=   KILLED BY SIGNAL: (\d+)")
# An exit code of 1 must not pass for a hang-up.
_CRASHES = frozenset(set(Signals) - {Signals.SIGHUP, Signals.SIGINT, Signals.SIGQUIT})


class Mpiexec:
    """``common.RankLauncher`` for ``mpiexec``."""

    command = "mpiexec"
    starters = frozenset({"mpiexec", "mpirun.hydra", "mpiexec.hydra", "aprun", "ibrun"})
    contains = False
    divides = False
    alone = ("-n", "1")

    def step(self, request: StepRequest) -> Launch:
        """See ``common.RankLauncher``."""
        argv = (
            *(request.command or self.command, "-n", str(request.ranks)),
            *("-ppn", str(request.ranks_per_node)),
            *(request.daemons.arguments or _hosts(request)),
            *request.args,
        )
        environ = {**request.environ, **request.daemons.environment}
        return Launch((*argv, *request.rank), environ, ({},), True, Signals.SIGINT)

    def nursery(self, request: NurseryRequest) -> Launch | str:
        """See ``common.RankLauncher``."""
        return "mpiexec's standard input does not reach every rank"

    def listener(self, args: Sequence[str], command: Sequence[str]) -> tuple[str, ...]:
        """See ``common.RankLauncher``."""
        return ()

    def objection_to_mpi(self, args: Sequence[str]) -> tuple[str, str]:
        """See ``common.RankLauncher``."""
        return "", ""

    def death(self, said: str) -> RankDeath | None:
        """See ``common.RankLauncher``.

        It kills the others of a rank that has failed, and does not say whom first.
        """
        if number := _killed(said):
            return RankDeath(Signals(number).name, first=False)
        return None

    def first_failed(self, said: str) -> int | None:
        """See ``common.RankLauncher``."""
        return None

    def lost_node(self, said: str) -> bool:
        """See ``common.RankLauncher``."""
        return False


def _hosts(request: StepRequest) -> tuple[str, ...]:
    return ("-hosts", ",".join(request.hosts)) if request.hosts else ()


def _killed(text: str) -> int:
    """Return the signal that ended a rank and that Hydra did not send itself; 0 if unknown."""
    if each := [int(number) for number in _INTEL_DIED.findall(text)]:
        return next((number for number in each if number != Signals.SIGKILL), Signals.SIGKILL)
    if (found := _DIED.search(text)) is None:
        return 0
    one, all_of_them = int(found[1]), int(found[2])
    return one if all_of_them in (one, one | Signals.SIGKILL) and one in _CRASHES else 0


LAUNCHER = Mpiexec()
