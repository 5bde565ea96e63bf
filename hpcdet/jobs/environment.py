"""Which variables may travel: out of the submitting shell, into a job, into a step."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping

from hpcdet.site import Site

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
    *RANK, *BINDING, "SLURM_*", "SLURMD_*", "SBATCH_*", "SRUN_*", "SALLOC_*", "PBS_*",
    "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HPCDET_JOB",
    "HPCDET_TASK_INDEX", "HPCDET_RESTART_COUNT", "HPCDET_DEADLINE",
)  # fmt: skip
"""What a shell inside some other job has of that job, and options that override a script's."""

KEPT = ("SLURM_CONF",)
"""Says which cluster is meant; without it the commands may find none, or another."""

CARRIED = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "MODULEPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LANG",
    "LC_ALL", "LC_CTYPE", "TZ", "HPCDET_CACHE", "HPCDET_LOCAL_STATE", "HPCDET_SITE_DIR",
)  # fmt: skip
"""All that a job gets of the submitting shell, and all that is recorded of it."""

DEFAULTS = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_WCKEY": "wckey",
    "SBATCH_PARTITION": "partition",
}
"""A user's own defaults for ``sbatch``, and the options they stand for."""


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


def carried(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a job may have of the submitting shell."""
    environ = os.environ if environ is None else environ
    return {name: environ[name] for name in CARRIED if name in environ}


def fold_defaults(site: Site, environ: Mapping[str, str] | None = None) -> Site:
    """The site with the user's ``SBATCH_ACCOUNT`` and the like as directives.

    As with ``sbatch`` itself they win over what a script (here: the site file) says. The
    origin of each is the variable.
    """
    environ = os.environ if environ is None else environ
    given = {name: environ[name] for name in DEFAULTS if environ.get(name)}
    if not given or site.scheduler != "slurm":
        return site
    partition = given.pop("SBATCH_PARTITION", None)
    directives = {**site.directives, **{DEFAULTS[name]: value for name, value in given.items()}}
    origins = {f"directives.{DEFAULTS[name]}": f"${name}" for name in given}
    if partition is not None:
        origins["default_partition"] = "$SBATCH_PARTITION"
    return site.changed(
        {"directives": directives, "default_partition": partition or site.default_partition},
        origins,
    )
