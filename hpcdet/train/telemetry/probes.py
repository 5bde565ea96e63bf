"""Probes of what a rank uses: its processes, its job's cgroup, its accelerator.

Only a rank that records a profile imports this module.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from hpcdet.process.ranks import JOB_CGROUP, Ranks
from hpcdet.train.telemetry.resource_monitor import Probe


def of_rank(ranks: Ranks, device: torch.device) -> list[Probe]:
    """All probes that a rank has on its machine."""
    probes: list[Probe] = [Processes()]
    job = job_cgroup() if ranks.local == 0 else None  # one of a node's ranks tells of all
    if job is not None:
        probes.append(job)
    if device.type == "cuda":
        uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
        of_driver = nvidia(str(uuid)) if uuid else None
        probes.append(lambda: {"accelerator_bytes": float(torch.cuda.memory_allocated(device))})
        if of_driver is not None:
            probes.append(of_driver)
    return probes


def nvidia(uuid: str) -> Probe | None:
    """``gpu_percent, gpu_memory_bytes, gpu_watts`` of the accelerator with this UUID.

    They come from the driver's library NVML, which makes no CUDA context. None where the library
    is absent or does not know the UUID. Percent is the share of time in which any kernel ran.

    Args:
        uuid: as torch writes it, without saying of what it is: a whole device, or a part of one.
    """
    import pynvml

    device = None
    for kind in ("GPU", "MIG"):
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            device = pynvml.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}")
            break
    if device is None:
        return None

    def ask() -> Mapping[str, float]:
        found: dict[str, float] = {}
        # a device may lack one of them: power in a virtual machine, use where it is partitioned
        with contextlib.suppress(pynvml.NVMLError):
            found["gpu_percent"] = float(pynvml.nvmlDeviceGetUtilizationRates(device).gpu)
        with contextlib.suppress(pynvml.NVMLError):
            found["gpu_memory_bytes"] = float(pynvml.nvmlDeviceGetMemoryInfo(device).used)
        with contextlib.suppress(pynvml.NVMLError):
            found["gpu_watts"] = pynvml.nvmlDeviceGetPowerUsage(device) / 1000
        return found

    return ask


class Processes:
    """The use of this process and those that it started.

    ``cpu_cores, rss_bytes, read_bytes_per_s, written_bytes_per_s``.

    Memory that processes share counts for each of them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[int, psutil.Process] = {}
        self._before = clock(), self._used()

    def __call__(self) -> Mapping[str, float]:
        now, used = self._clock(), self._used()
        (then, before), self._before = self._before, (now, used)
        passed = max(now - then, 1e-9)

        def rate(at: int) -> float:
            grown = (u[at] - before.get(pid, (0.0, 0.0, 0.0, 0.0))[at] for pid, u in used.items())
            return sum(max(0.0, one) for one in grown) / passed

        return {
            "cpu_cores": rate(0),
            "rss_bytes": sum(one[1] for one in used.values()),
            "read_bytes_per_s": rate(2),
            "written_bytes_per_s": rate(3),
        }

    def _used(self) -> dict[int, tuple[float, float, float, float]]:
        """For each process: seconds of CPU, resident bytes, bytes read and written."""
        known, self._known = self._known, {}
        found = {}
        for pid in _family(os.getpid()):
            with contextlib.suppress(psutil.Error, OSError):  # it has just ended
                process = self._known[pid] = known.get(pid) or psutil.Process(pid)
                with process.oneshot():
                    cpu, rss = process.cpu_times(), process.memory_info().rss
                found[pid] = (cpu.user + cpu.system, float(rss), *_io(process))
        return found


def _io(process: psutil.Process) -> tuple[float, float]:
    # a kernel without this accounting has no such method, a process that has ended no such file
    with contextlib.suppress(psutil.Error, OSError, AttributeError, RuntimeError):
        io = process.io_counters()
        return float(io.read_bytes), float(io.write_bytes)
    return 0.0, 0.0


def _family(root: int) -> list[int]:
    """A process and all below it. ``psutil`` would read every process of the node for that."""
    found = [root]
    for pid in found:  # grows while it is gone through
        # a loader's workers are children of the thread that made them, the first one
        with contextlib.suppress(OSError):
            children = Path(psutil.PROCFS_PATH, str(pid), "task", str(pid), "children")
            found += map(int, children.read_text().split())
    return found


@dataclass(frozen=True)
class Cgroup:
    """The job's part of a node: ``job_cpu_cores, job_memory_bytes, job_memory_limit_bytes``.

    Memory is what counts towards the limit without what the kernel can drop at once.

    Attributes:
        usage, memory, limit, stat: files with seconds of CPU in all, bytes, and of what they are.
        scale: of ``usage``, seconds per unit.
    """

    usage: Path
    memory: Path
    limit: Path
    stat: Path
    scale: float

    def cpu_s(self) -> float:
        """Seconds of CPU since the job began."""
        text = self.usage.read_text()
        return float(text.split()[1 if text.startswith("usage_usec") else 0]) * self.scale

    def memory_bytes(self) -> float:
        """Bytes in use that the kernel cannot drop."""
        stat = dict(line.split() for line in self.stat.read_text().splitlines())
        droppable = float(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
        return max(0.0, float(self.memory.read_text()) - droppable)

    def limit_bytes(self) -> float | None:
        """The most it may have; None if there is no bound."""
        with contextlib.suppress(OSError, ValueError):
            limit = float(self.limit.read_text())
            return limit if limit < 2**60 else None
        return None


def job_cgroup(
    text: str | None = None, root: Path = Path("/sys/fs/cgroup")
) -> Callable[[], Mapping[str, float]] | None:
    """A probe of the cgroup of the job this process is in; None where there is no such.

    Args:
        text: what ``/proc/self/cgroup`` says.
    """
    if text is None:
        try:
            text = Path("/proc/self/cgroup").read_text()
        except OSError:
            return None
    found: dict[str, Path] = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        parts = path.strip("/").split("/")
        at = next((i for i, part in enumerate(parts) if JOB_CGROUP.fullmatch(part)), None)
        if at is not None:
            for name in names.split(","):
                found[name] = Path(*parts[: at + 1])
    group = _version_2(root, found.get("")) or _version_1(root, found)
    return None if group is None else _probe(group)


def _version_2(root: Path, path: Path | None) -> Cgroup | None:
    if path is None:
        return None
    for mount in (root, root / "unified"):
        folder = mount / path
        if (folder / "cpu.stat").is_file() and (folder / "memory.current").is_file():
            names = ("cpu.stat", "memory.current", "memory.max", "memory.stat")
            usage, memory, limit, stat = (folder / name for name in names)
            return Cgroup(usage, memory, limit, stat, 1e-6)
    return None


def _version_1(root: Path, found: Mapping[str, Path]) -> Cgroup | None:
    cpu, memory = found.get("cpuacct"), found.get("memory")
    if cpu is None or memory is None:
        return None
    for controller in ("cpuacct", "cpu,cpuacct"):
        usage = root / controller / cpu / "cpuacct.usage"
        folder = root / "memory" / memory
        names = ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.stat")
        used, limit, stat = (folder / name for name in names)
        if usage.is_file() and used.is_file():
            return Cgroup(usage, used, limit, stat, 1e-9)
    return None


def _probe(group: Cgroup) -> Probe:
    before = time.monotonic(), group.cpu_s()

    def probe() -> Mapping[str, float]:
        nonlocal before
        now = time.monotonic(), group.cpu_s()
        cores = (now[1] - before[1]) / max(now[0] - before[0], 1e-9)
        before = now
        found = {"job_cpu_cores": cores, "job_memory_bytes": group.memory_bytes()}
        limit = group.limit_bytes()
        return found if limit is None else {**found, "job_memory_limit_bytes": limit}

    return probe
