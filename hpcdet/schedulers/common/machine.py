"""Cores and accelerators of this machine."""

from __future__ import annotations

import contextlib
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


def accelerator_models() -> list[str]:
    """Models of the NVIDIA devices of this machine that this process may use; asks no driver."""
    models = []
    for place in sorted(_GPUS.iterdir()) if _GPUS.is_dir() else ():
        with contextlib.suppress(OSError):
            lines = (place / "information").read_text(errors="replace").splitlines()
            found = (line.partition(":") for line in lines)
            models += [value.strip() for name, _, value in found if name.strip() == "Model"]
    return models if accelerators() else []
