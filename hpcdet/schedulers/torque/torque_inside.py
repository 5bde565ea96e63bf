"""``backend.InsideFace`` of Torque: what a worker finds and may ask inside its allocation."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from pathlib import Path

from hpcdet.errors import Unavailable
from hpcdet.schedulers.common.allocation import Allocation, ShownNode, by_script
from hpcdet.schedulers.pbs_family import job_hosts, pbs_text
from hpcdet.schedulers.pbs_family.job_hosts import HostDaemons
from hpcdet.schedulers.pbs_family.pbs_text import PbsRow
from hpcdet.schedulers.torque import torque_query
from hpcdet.store.folder.records import Reason

node_name = job_hosts.node_name
early_s = 0.0
"""Torque looks at time limits after they have passed, and warns of none."""
says: tuple[tuple[str, Reason], ...] = ()


def allocation(environ: Mapping[str, str], walltime_s: float | None) -> Allocation:
    """See ``backend.InsideFace``. By hand, outside of a job, as the script says."""
    if not (job := environ.get("PBS_JOBID")):
        return by_script(environ)
    row = _shown(job)
    hosts = tuple(job_hosts.listed(environ)) or (row.hosts if row is not None else ())
    return Allocation(
        job=job, nodes=hosts or (socket.gethostname(),), end_at=_end(row, environ, walltime_s)
    )


def _end(row: PbsRow | None, environ: Mapping[str, str], walltime_s: float | None) -> float | None:
    if row is not None and row.start is not None and row.walltime_s is not None:
        return row.start + row.walltime_s
    # not told when it began: counted from now, by what was asked for
    asked = row.walltime_s if row is not None else None
    granted = asked or pbs_text.seconds(environ.get("PBS_WALLTIME", "")) or walltime_s
    return time.time() + granted if granted else None


def _shown(job: str) -> PbsRow | None:
    """Return the job as the server shows it; None if it does not answer."""
    try:
        rows = [each.row for each in torque_query.rows([job])]
    except Unavailable:
        return None
    return next((row for row in rows if row.id == job), None)


def stands(allocation: Allocation) -> bool:
    """See ``backend.InsideFace``."""
    row = _shown(allocation.job) if allocation.job else None
    return row is None or row.state in "RS"


def returns(allocation: Allocation) -> bool:  # noqa: ARG001
    """See ``backend.InsideFace``. Our jobs are not run again."""
    return False


def shown_node(name: str) -> ShownNode | None:
    """See ``backend.InsideFace``. Its properties."""
    try:
        [found] = torque_query.nodes(name)
    except (Unavailable, ValueError):
        return None
    return found.shown


def granted_gpus(environ: Mapping[str, str]) -> int:
    """See ``backend.InsideFace``. The lines ``HOST-gpuN`` of the job's file of them."""
    try:
        lines = Path(environ.get("PBS_GPUFILE", "")).read_text().split()
    except (OSError, UnicodeDecodeError):
        return 0
    here = node_name(environ)
    return sum(line.rpartition("-gpu")[0] == here for line in lines)


def daemons(python: str, allocation: Allocation) -> HostDaemons:  # noqa: ARG001
    """See ``backend.InsideFace``. As the launcher is built: through Torque, or ``ssh``."""
    return job_hosts.daemons({}, allocation.nodes)
