"""Variables of a job or a rank, which must not reach another job or another rank."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Mapping

from hpcdet.schedulers.common.backend import NamesFace

RANK = (
    "PMI_*", "PMI2_*", "PMIX_*", "PMIX[0-9]*", "OMPI_COMM_WORLD_*", "OMPI_UNIVERSE_SIZE",
    "OMPI_MCA_ess*", "OMPI_MCA_orte_*", "PRTE_*", "MPI_LOCAL*", "MV2_COMM_WORLD_*", "PALS_*",
    "HYDRA_*", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "ROLE_*", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_*",
)  # fmt: skip
"""Who a process is among others. A step that inherits them believes it is somebody else."""

BINDING = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")
"""Where a process may run."""

JOB = (
    *RANK, *BINDING, "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
    "HPCDET_JOB", "HPCDET_TASK_INDEX", "HPCDET_RESTART_COUNT", "HPCDET_DEADLINE", "HPCDET_GRACE",
    "HPCDET_LOCAL_DEVICES", "HPCDET_LOCAL_SLOTS",
)  # fmt: skip
"""What a shell inside some other job has of that job, whatever the scheduler."""


def _is(name: str, patterns: tuple[str, ...]) -> bool:
    return _any_of(patterns).match(name) is not None


@functools.cache
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, patterns)))


def job_variables(environ: Mapping[str, str], names: NamesFace) -> list[str]:
    """Names of the variables that must not reach a submission."""
    patterns = (*JOB, *names.job)
    return sorted(name for name in environ if _is(name, patterns) and name not in names.kept)


def scrubbed(environ: Mapping[str, str], names: NamesFace) -> dict[str, str]:
    """The environment in which a scheduler's commands run."""
    gone = set(job_variables(environ, names))
    return {name: value for name, value in environ.items() if name not in gone}


def for_step(environ: Mapping[str, str], names: NamesFace) -> dict[str, str]:
    """The environment of a step: without rank, PMI and binding variables.

    Those of the allocation stay: some launchers make a new job where they find none.
    """
    patterns = (*RANK, *BINDING, *names.binding, *names.place)
    return {name: value for name, value in environ.items() if not _is(name, patterns)}
