"""``context.profiler``: where the time goes, and a few numbers on what the process uses."""

from __future__ import annotations

import resource
import sys
import time

from hpcdet.core._train import TrainContext
from hpcdet.train.checkpoints.deadline import Every
from hpcdet.train.telemetry.phases import Within
from hpcdet.train.telemetry.profile import Profile

GROUP = "profiling"


class ProfilerContext:
    """The phases of a user's own loop; and Determined's ``on`` and ``off``.

    Those report CPU use, memory and, where there is one, the accelerator's, of rank 0's process, as
    metrics of a group.
    """

    def __init__(self, train: TrainContext, profile: Profile) -> None:
        self._train = train
        self._profile = profile
        self._every: Every | None = None
        self._samples: list[dict[str, float]] = []
        self._per_report = 10
        self._last = (0.0, 0.0)

    def phase(self, name: str) -> Within:
        """``with context.profiler.phase("data"): …``: what is done there counts as this phase.

        The trainer's are ``data, forward, backward, communication, optimizer, validation`` and
        ``checkpoint`` (which ``context.checkpoint`` tells by itself); any other name is shown as
        it is. Blocks may lie inside each other: the innermost counts. What is in none is
        ``other``.

        Raises:
            UsageError: a name that is no short word of small letters.
        """
        return self._profile.phase(name)

    def count(self, samples: int) -> None:
        """So many samples more have been trained on, over all ranks: for samples per second."""
        self._profile.count(samples)

    def on(self, sampling_interval: float = 1, samples_per_report: int = 10) -> None:
        """Sample every so many seconds while training; report means of so many samples."""
        self._every = Every(sampling_interval)
        self._per_report = samples_per_report
        self._last = (time.monotonic(), time.process_time())

    def off(self) -> None:
        """Stop; what was not reported yet is dropped."""
        self._every = None
        self._samples = []

    def tick(self) -> None:
        """Called after each step."""
        if self._every is None or not self._every.take():
            return
        self._samples.append(self._sample())
        if len(self._samples) >= self._per_report:
            names = self._samples[0]
            means = {n: sum(one[n] for one in self._samples) / len(self._samples) for n in names}
            self._train.report_metrics(GROUP, self._train.units.batches, means)
            self._samples = []

    def _sample(self) -> dict[str, float]:
        now, used = time.monotonic(), time.process_time()
        before, used_before = self._last
        self._last = (now, used)
        # kilobytes on Linux
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
        sample = {"cpu_cores": (used - used_before) / max(now - before, 1e-9), "rss_bytes": peak}
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            sample["accelerator_bytes"] = float(torch.cuda.memory_allocated())
        return sample
