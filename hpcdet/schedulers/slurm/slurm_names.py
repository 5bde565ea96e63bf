"""``backend.NamesFace`` of Slurm: its variables, and ids such as ``12`` and ``12_3``."""

from __future__ import annotations

import re
from collections.abc import Sequence

binding = ("SLURM_CPU_BIND*", "SLURM_MEM_BIND*", "SLURM_GPU_BIND*", "SLURM_DISTRIBUTION",
           "SLURM_HINT")  # fmt: skip
"""An inherited ``SLURM_CPU_BIND`` puts all ranks on one core."""
job = (*binding, "SLURM_*", "SLURMD_*", "SBATCH_*", "SRUN_*", "SALLOC_*", "SQUEUE_*", "SACCT_*",
       "SINFO_*", "SCANCEL_*", "SCONTROL_*")  # fmt: skip
kept = ("SLURM_CONF",)
"""Says which cluster is meant; without it the commands may find none, or another."""
place = ("SLURM_PROCID*", "SLURM_LOCALID*", "SLURM_NODEID*", "SLURM_TASK_PID*", "SLURM_GTIDS*",
         "SLURM_STEP*", "SLURM_SRUN_*", "SLURM_PMI*", "SLURM_LAUNCH_NODE_IPADDR*")  # fmt: skip
"""Of the batch step. ``srun`` replaces them; other launchers do not."""
defaults = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_WCKEY": "wckey",
    "SBATCH_PARTITION": "partition",
}
_WRITTEN = re.compile(r"(?:slurm:)?((\d+)(?:_\d+)?)")


def task_id(job: str, index: int) -> str:
    """See ``backend.NamesFace``."""
    return f"{job}_{index}"


def job_of(task: str) -> str:
    """See ``backend.NamesFace``."""
    return task.partition("_")[0]


def reads(text: str) -> bool:
    """See ``backend.NamesFace``."""
    return _WRITTEN.fullmatch(text) is not None


def means(text: str, job: str) -> bool:
    """See ``backend.NamesFace``."""
    found = _WRITTEN.fullmatch(text)
    return found is not None and found[2] == job


def waited_for(text: str) -> str | None:
    """See ``backend.NamesFace``."""
    found = _WRITTEN.fullmatch(text)
    return found[1] if found else None


def look(jobs: Sequence[str]) -> str:
    """See ``backend.NamesFace``."""
    return f"squeue --start -j {','.join(jobs)}" if jobs else ""
