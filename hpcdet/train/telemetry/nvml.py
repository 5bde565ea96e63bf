"""The state of an NVIDIA accelerator, read from the driver's own library."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from hpcdet.train.telemetry.resource_monitor import Probe

_LIBRARY = "libnvidia-ml.so.1"


class _Use(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def probe(uuid: str, library: str = _LIBRARY) -> Probe | None:
    """``gpu_percent, gpu_memory_bytes, gpu_watts`` of the accelerator with this UUID.

    None where the driver's library is not there or does not know it. Percent is the share of
    time in which any kernel ran at all.
    """
    try:
        nvml = ctypes.CDLL(library)
        device = ctypes.c_void_p()
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(
            name.encode(), ctypes.byref(device)
        ):
            return None
    except (OSError, AttributeError):
        return None

    def ask() -> Mapping[str, float]:
        found: dict[str, float] = {}
        use, memory, milliwatts = _Use(), _Memory(), ctypes.c_uint()
        if not nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(use)):
            found["gpu_percent"] = float(use.gpu)
        if not nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)):
            found["gpu_memory_bytes"] = float(memory.used)
        if not nvml.nvmlDeviceGetPowerUsage(device, ctypes.byref(milliwatts)):
            found["gpu_watts"] = milliwatts.value / 1000
        return found

    return ask
