"""Cores and accelerators of this machine."""

from __future__ import annotations

import os
from pathlib import Path

_GPUS = Path("/proc/driver/nvidia/gpus")


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def accelerators() -> list[str]:
    """NVIDIA devices that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    there = len(os.listdir(_GPUS)) if _GPUS.is_dir() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not there or visible is None:
        return [str(number) for number in range(there)]
    return [name.strip() for name in visible.split(",") if name.strip()]
