"""The backend for OpenPBS and PBS Professional."""

from __future__ import annotations

from hpcdet.schedulers.common.backend import Backend
from hpcdet.schedulers.common.lazy_backend import LazyBackend

BACKEND: Backend = LazyBackend(
    "pbs",
    "hpcdet.schedulers",
    control="pbs.pbs:PbsScheduler",
    script="pbs.pbs_script:SCRIPT",
    inside="pbs.pbs_inside",
    names="pbs_family.pbs_names:NAMES",
    facts="pbs.pbs_facts",
)
