"""The backend for Slurm."""

from __future__ import annotations

from hpcdet.schedulers.common.backend import Backend
from hpcdet.schedulers.common.lazy_backend import LazyBackend

BACKEND: Backend = LazyBackend(
    "slurm",
    "hpcdet.schedulers.slurm",
    control="slurm:SlurmScheduler",
    script="script.slurm_script",
    inside="slurm_inside",
    names="slurm_names",
    facts="slurm_facts",
)
