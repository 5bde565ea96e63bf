"""``backend.InsideFace`` of Slurm: what a worker finds and may ask inside its allocation."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcdet.schedulers.common.allocation import Allocation, ShownNode, ask, by_script
from hpcdet.schedulers.slurm.answers import slurm_features, slurm_text
from hpcdet.store.folder.records import Reason

early_s = 90.0
"""Slurm looks at time limits every 30 s and may warn a minute early."""
says: tuple[tuple[str, Reason], ...] = (
    (r"DUE TO PREEMPTION|DUE TO JOB REQUEUE", "preempted"),
    (r"DUE TO TIME LIMIT", "walltime"),
    (r"DUE TO NODE FAILURE|[Nn]ode failure", "node_fail"),
    (r"oom.kill|[Oo]ut [Oo]f [Mm]emory", "oom"),
)


def allocation(environ: Mapping[str, str], walltime_s: float | None) -> Allocation:
    """See ``backend.InsideFace``. By hand, outside of a job, as the script says."""
    if not (job := environ.get("SLURM_JOB_ID")):
        return by_script(environ)
    if array := environ.get("SLURM_ARRAY_JOB_ID"):
        job = f"{array}_{environ['SLURM_ARRAY_TASK_ID']}"
    return Allocation(
        job=job,
        nodes=slurm_text.hosts(environ.get("SLURM_JOB_NODELIST", "")) or (socket.gethostname(),),
        restart=int(environ.get("SLURM_RESTART_COUNT") or 0),
        end_at=_end(environ, job, walltime_s),
        steps_hear=True,
    )


def _end(environ: Mapping[str, str], job: str, walltime_s: float | None) -> float | None:
    if end := environ.get("SLURM_JOB_END_TIME"):  # since 23.02
        return float(end)
    shown = ask("scontrol", "show", "job", "--oneliner", job, SLURM_TIME_FORMAT="%s") or ""
    found = re.search(r"\bEndTime=(\S+)", shown)
    if found and found[1].isdecimal():
        return float(found[1])
    return time.time() + walltime_s if walltime_s else None


def stands(allocation: Allocation) -> bool:
    """See ``backend.InsideFace``."""
    if not allocation.steps_hear:
        return True
    answer = ask("squeue", "--noheader", "--jobs", allocation.job, "--format=%T")
    return answer is None or answer.strip() in ("RUNNING", "")


def returns(allocation: Allocation) -> bool:  # noqa: ARG001
    """See ``backend.InsideFace``. A task asks for it itself here."""
    return False


def node_name(environ: Mapping[str, str]) -> str:
    """See ``backend.InsideFace``."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()


def shown_node(name: str) -> ShownNode | None:
    """See ``backend.InsideFace``."""
    return slurm_features.node(ask("scontrol", "--oneliner", "show", "node", name) or "")


def granted_gpus(environ: Mapping[str, str]) -> int:
    """See ``backend.InsideFace``."""
    count = environ.get("SLURM_GPUS_ON_NODE", "")
    return int(count) if count.isdecimal() else 0


@dataclass(frozen=True)
class _Steps:
    """A launcher's daemons as steps."""

    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    own: tuple[str, ...] = ()


def daemons(python: str, allocation: Allocation) -> _Steps:
    """See ``backend.InsideFace``. Open MPI starts them by ``srun``."""
    if not allocation.steps_hear:
        return _Steps()
    daemon = f"{python} -Pm hpcdet.worker.remote"
    return _Steps({
        "OMPI_MCA_orte_launch_agent": f"{daemon} orted",
        "PRTE_MCA_prte_launch_agent": f"{daemon} prted",
        "SRUN_EXPORT_ENV": "ALL",  # the job itself was submitted with an empty environment
        "SLURM_CPU_BIND": "none",
        "SLURM_OVERLAP": "1",  # a step beside the listener, and beside other lanes
    })  # fmt: skip
