"""The allocation that this process runs in, and whether the scheduler has ended it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Mapping

from hpcdet.jobs.script.launch import Allocation

_ANSWER_S = 60


def read(
    environment: Mapping[str, str] = os.environ, walltime_s: float | None = None
) -> Allocation:
    """Return the allocation that this process runs in.

    Args:
        walltime_s: counted from now where the scheduler does not say when it ends.
    """
    if job := environment.get("SLURM_JOB_ID"):
        return _slurm(environment, job, walltime_s)
    deadline = environment.get("HPCDET_DEADLINE")
    return Allocation(
        job=environment.get("HPCDET_JOB", ""),
        nodes=(socket.gethostname(),),
        restart=int(environment.get("HPCDET_RESTART_COUNT") or 0),
        end_at=float(deadline) if deadline else None,
    )


def stands(allocation: Allocation) -> bool:
    """True unless the scheduler reports that this allocation has ended.

    Asked once before a failed launch is judged: after its end, every launch fails. A scheduler
    that does not answer is no evidence against the allocation.
    """
    if not allocation.slurm:
        return True
    answer = ask("squeue", "--noheader", "--jobs", allocation.job, "--format=%T")
    return answer is None or answer.strip() in ("RUNNING", "")


def _slurm(environment: Mapping[str, str], job: str, walltime_s: float | None) -> Allocation:
    if array := environment.get("SLURM_ARRAY_JOB_ID"):
        job = f"{array}_{environment['SLURM_ARRAY_TASK_ID']}"
    nodelist = environment.get("SLURM_JOB_NODELIST", "")
    names = ask("scontrol", "show", "hostnames", nodelist) if nodelist else None
    return Allocation(
        job=job,
        nodes=tuple((names or nodelist or socket.gethostname()).split()),
        restart=int(environment.get("SLURM_RESTART_COUNT") or 0),
        end_at=_slurm_end(environment, job, walltime_s),
        slurm=True,
    )


def _slurm_end(environment: Mapping[str, str], job: str, walltime_s: float | None) -> float | None:
    if end := environment.get("SLURM_JOB_END_TIME"):  # since 23.02
        return float(end)
    shown = ask("scontrol", "show", "job", "--oneliner", job) or ""
    found = re.search(r"\bEndTime=(\S+)", shown)
    if found and found[1].isdecimal():
        return float(found[1])
    return time.time() + walltime_s if walltime_s else None


def ask(*command: str) -> str | None:
    """Return what a command of the scheduler prints; None if it fails or gives no answer."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
            env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
