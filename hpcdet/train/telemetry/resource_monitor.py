"""A rank's use of its machine, sampled once a second by a thread of its own.

A look is a few reads of files in memory (0.3 ms): nobody waits for it, and what cannot be read
is left out.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Probe = Callable[[], Mapping[str, float]]
"""What is used just now, by name; names carry their unit."""

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_JOB = re.compile(r"job_\d+|.*pbs.*\d+.*|\d+\.[\w.-]+")
"""The folder of a job among cgroups: Slurm's ``job_12``, PBS's by its id."""


class ResourceMonitor:
    """Asks probes at an interval, in seconds; keeps sums and peaks."""

    def __init__(self, probes: Sequence[Probe], interval_s: float = 1.0) -> None:
        self._probes = probes
        self._interval = interval_s
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._sums: dict[str, float] = {}
        self._peaks: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; the thread ends with the process at the latest."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hpcdet-sampler", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """No further look, once this returns."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def look(self) -> None:
        """Ask all probes once."""
        found: dict[str, float] = {}
        for probe in self._probes:
            with contextlib.suppress(OSError, ValueError, IndexError):
                found.update(probe())
        with self._lock:
            for name, value in found.items():
                self._sums[name] = self._sums.get(name, 0.0) + value
                self._peaks[name] = max(self._peaks.get(name, value), value)
                self._counts[name] = self._counts.get(name, 0) + 1

    def take(self) -> dict[str, float]:
        """Means since the last call, and peaks of what is measured in bytes.

        A peak has its own name: ``rss_bytes``, ``rss_bytes_max``.
        """
        with self._lock:
            means = {name: total / self._counts[name] for name, total in self._sums.items()}
            peaks = {f"{n}_max": v for n, v in self._peaks.items() if n.endswith("_bytes")}
            self._sums, self._peaks, self._counts = {}, {}, {}
        return {name: round(value, 4) for name, value in (means | peaks).items()}

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self.look()


class Processes:
    """The use of this process and those that it started.

    ``cpu_cores, rss_bytes, read_bytes_per_s, written_bytes_per_s``.

    Memory that processes share counts for each of them.
    """

    def __init__(self, proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic):
        self._proc = proc
        self._clock = clock
        self._pid = os.getpid()
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
        found = {}
        for pid in self._family():
            with contextlib.suppress(OSError, IndexError):  # it has just ended
                stat = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
                found[pid] = (
                    (int(stat[11]) + int(stat[12])) / _TICKS,
                    float(int(stat[21]) * _PAGE),
                    *self._io(pid),
                )
        return found

    def _io(self, pid: int) -> tuple[float, float]:
        with contextlib.suppress(OSError):
            text = (self._proc / str(pid) / "io").read_text()
            io = dict(line.split(": ") for line in text.splitlines())
            return float(io["read_bytes"]), float(io["write_bytes"])
        return 0.0, 0.0

    def _family(self) -> list[int]:
        found = [self._pid]
        for pid in found:  # grows while it is gone through
            # a loader's workers are children of the thread that made them, the first one
            with contextlib.suppress(OSError):
                children = self._proc / str(pid) / "task" / str(pid) / "children"
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
        at = next((i for i, part in enumerate(parts) if _JOB.fullmatch(part)), None)
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
