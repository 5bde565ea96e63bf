"""``backend.InsideFace`` of PBS: what a worker finds and may ask inside its allocation."""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Mapping

from hpcdet.errors import Unavailable
from hpcdet.schedulers.common.allocation import Allocation, ShownNode, by_script
from hpcdet.schedulers.pbs import pbs_query
from hpcdet.schedulers.pbs_family import job_hosts, pbs_commands, pbs_queues
from hpcdet.schedulers.pbs_family.job_hosts import HostDaemons
from hpcdet.schedulers.pbs_family.pbs_text import PbsRow
from hpcdet.store.folder.records import Reason

node_name = job_hosts.node_name
early_s = 0.0
"""PBS looks at time limits after they have passed, and warns of none."""
says: tuple[tuple[str, Reason], ...] = (
    (r"pbs_tmrsh: tm_poll\(obit\): .* not connected", "node_fail"),  # this host's daemon is gone
)
_RUNNING = frozenset("RSU")
_EXITING, _RERUN = 50, range(60, 64)
"""Substates of jobs that end: from here on; and of those that are run again, preempted ones too."""


def allocation(environ: Mapping[str, str], walltime_s: float | None) -> Allocation:
    """See ``backend.InsideFace``. By hand, outside of a job, as the script says.

    The job's environment has neither its end nor how often it was started: the server is asked.
    """
    if not (job := environ.get("PBS_JOBID")):
        return by_script(environ)
    row = shown(job)
    return Allocation(
        job=job,
        nodes=_hosts(environ, row),
        restart=max(0, row.run_count - 1) if row is not None else 0,
        counted=row is not None,
        end_at=_end(row, walltime_s),
    )


def _end(row: PbsRow | None, walltime_s: float | None) -> float | None:
    if row is not None and row.start is not None and row.walltime_s is not None:
        return row.start + row.walltime_s
    return time.time() + walltime_s if walltime_s else None


def _hosts(environ: Mapping[str, str], row: PbsRow | None) -> tuple[str, ...]:
    if names := job_hosts.listed(environ):
        return tuple(names)
    return row.hosts if row is not None and row.hosts else (socket.gethostname(),)


def shown(job: str) -> PbsRow | None:
    """Return the job as the server shows it; None if it does not answer."""
    try:
        rows = pbs_query.rows([job])
    except Unavailable:
        return None
    return next((row for row in rows if row.id == job), None)


def stands(allocation: Allocation) -> bool:
    """See ``backend.InsideFace``. A job that runs again elsewhere is another allocation."""
    row = shown(allocation.job) if allocation.job else None
    if row is None:
        return True
    again = row.run_count - 1 > allocation.restart
    return row.state in _RUNNING and row.substate < _EXITING and not again


def returns(allocation: Allocation) -> bool:
    """See ``backend.InsideFace``."""
    row = shown(allocation.job) if allocation.job else None
    if row is None:
        return False
    return row.substate in _RERUN or row.state == "Q" or row.run_count - 1 > allocation.restart


def shown_node(name: str) -> ShownNode | None:
    """See ``backend.InsideFace``. Its resources that are true, or texts: ``NAME=VALUE``."""
    try:
        [found] = pbs_queues.hosts(pbs_commands.said(["pbsnodes", "-F", "json", name]))
    except (Unavailable, ValueError):
        return None
    return found


def granted_gpus(environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """See ``backend.InsideFace``. PBS names those granted only as visible devices."""
    return 0


def daemons(python: str, allocation: Allocation) -> HostDaemons:
    """See ``backend.InsideFace``. Open MPI starts them by what it takes for a remote shell.

    Debian's knows nothing of PBS, which lets nobody log in on a job's hosts.
    """
    agent = shlex.join([python, "-Pm", "hpcdet.schedulers.pbs.remote_shell"])
    agents = {"OMPI_MCA_plm_rsh_agent": agent, "PRTE_MCA_plm_ssh_agent": agent}
    return job_hosts.daemons(agents, allocation.nodes)
