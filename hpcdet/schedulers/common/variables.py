"""Variables of a job or a rank, which must not reach another job or another rank."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

RANK = (
    "PMI_*", "PMI2_*", "PMIX_*", "PMIX[0-9]*", "OMPI_COMM_WORLD_*", "OMPI_UNIVERSE_SIZE",
    "OMPI_MCA_ess*", "OMPI_MCA_orte_*", "PRTE_*", "MPI_LOCAL*", "MV2_COMM_WORLD_*", "PALS_*",
    "HYDRA_*", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "ROLE_*", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_*",
)  # fmt: skip
"""Who a process is among others. A step that inherits them believes it is somebody else."""

BINDING = (
    "SLURM_CPU_BIND*", "SLURM_MEM_BIND*", "SLURM_GPU_BIND*", "SLURM_DISTRIBUTION", "SLURM_HINT",
    "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND",
)  # fmt: skip
"""Where a process may run. An inherited ``SLURM_CPU_BIND`` puts all ranks on one core."""

JOB = (
    *RANK, *BINDING, "SLURM_*", "SLURMD_*", "SBATCH_*", "SRUN_*", "SALLOC_*", "SQUEUE_*", "SACCT_*",
    "SINFO_*", "SCANCEL_*", "SCONTROL_*", "PBS_*",
    "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HPCDET_JOB",
    "HPCDET_TASK_INDEX", "HPCDET_RESTART_COUNT", "HPCDET_DEADLINE", "HPCDET_GRACE",
    "HPCDET_LOCAL_DEVICES", "HPCDET_LOCAL_SLOTS",
)  # fmt: skip
"""What a shell inside some other job has of that job, and options that override a script's."""

KEPT = ("SLURM_CONF",)
"""Says which cluster is meant; without it the commands may find none, or another."""


def _is(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def job_variables(environ: Mapping[str, str]) -> list[str]:
    """Names of the variables that must not reach a submission."""
    return sorted(name for name in environ if _is(name, JOB) and name not in KEPT)


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a scheduler's commands run."""
    gone = set(job_variables(environ))
    return {name: value for name, value in environ.items() if name not in gone}


def for_step(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a step: without rank, PMI and binding variables.

    Those of the allocation stay: an ``srun`` without ``SLURM_JOB_ID`` makes a new job.
    """
    return {n: v for n, v in environ.items() if not _is(n, RANK) and not _is(n, BINDING)}
