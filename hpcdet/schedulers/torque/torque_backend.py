"""The backend for Torque."""

from __future__ import annotations

from hpcdet.schedulers.common.backend import Backend
from hpcdet.schedulers.common.lazy_backend import LazyBackend

BACKEND: Backend = LazyBackend(
    "torque",
    "hpcdet.schedulers.torque",
    control="torque:TorqueScheduler",
    script="torque_script:SCRIPT",
    inside="torque_inside",
    names="torque_names:NAMES",
    facts="torque_facts",
)
