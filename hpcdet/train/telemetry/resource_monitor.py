"""A rank's use of its machine, sampled once a second by a thread of its own.

A look is a few reads of files in memory (0.1 ms for each process): no step waits for it, and a
probe that fails is left out.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence

Probe = Callable[[], Mapping[str, float]]
"""What is used just now, by name; names carry their unit."""


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
