"""The job array: workers that wait in the queue, run, or are idle."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator

import numpy as np

from hpcdet.sim.actors import SimulatedWorker
from hpcdet.sim.cluster import Cluster


class JobArray:
    """Workers and their state at the scheduler; the simulation assigns their trials.

    Attributes:
        coming: workers that wait in the queue.
        waits_s: how long each that has run waited there.
        allocated_s: worker-seconds of the allocations that have ended.
    """

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.coming = 0
        self.waits_s: list[float] = []
        self.allocated_s = 0.0
        self._workers = [
            SimulatedWorker(n, np.random.default_rng((seed, 2, n))) for n in range(cluster.workers)
        ]
        self._out = deque(range(cluster.workers))
        self._idle: list[int] = []  # a heap
        self._eligible: deque[int] = deque()
        self._granted = 0

    def __getitem__(self, number: int) -> SimulatedWorker:
        return self._workers[number]

    def submit(self, wanted: int, now: float) -> Iterator[tuple[SimulatedWorker, float]]:
        """Submit workers while too few are on their way; yield each and the end of its wait."""
        while self._out and self.coming < wanted:
            worker = self._workers[self._out.popleft()]
            worker.state, worker.submitted = "queued", now
            self.coming += 1
            yield worker, now + self.cluster.queue_wait.draw(worker.rng)

    def grant(self, worker: SimulatedWorker, now: float) -> bool:
        """Grant a worker its allocation; False if the throttle holds it back."""
        if self.cluster.throttle and self._granted >= self.cluster.throttle:
            worker.state = "eligible"
            self._eligible.append(worker.number)
            return False
        self.coming -= 1
        self._granted += 1
        worker.began = now
        worker.ends = now + self.cluster.walltime_s
        self.waits_s.append(now - worker.submitted)
        return True

    def end(self, worker: SimulatedWorker) -> tuple[float, str]:
        """Return when and why a worker's allocation ends by itself; infinity if never."""
        ends = [(worker.ends - self.cluster.save_s, "walltime")]
        for rate, why in (
            (self.cluster.preempt_per_h, "preempted"),
            (self.cluster.fail_per_h, "node failed"),
        ):
            if rate:
                ends.append((worker.began + float(worker.rng.exponential(3600 / rate)), why))
        return min(ends)

    def may_train(self, worker: SimulatedWorker, now: float) -> bool:
        """True if the worker has time left for another trial."""
        useful = max(self.cluster.min_segment_s, self.cluster.save_s)
        return not worker.going and worker.ends - now >= useful

    def rest(self, worker: SimulatedWorker, now: float) -> float:
        """Make a worker idle, and return until when it waits for work."""
        worker.state, worker.idle_since = "idle", now
        heapq.heappush(self._idle, worker.number)
        return now + self.cluster.idle_s

    def has_idled(self, worker: SimulatedWorker, now: float) -> bool:
        """True if the worker was idle for so long that it gives its allocation back."""
        return worker.state == "idle" and now >= worker.idle_since + self.cluster.idle_s

    def first_idle(self) -> SimulatedWorker | None:
        """Return an idle worker, no longer marked idle; None without one."""
        return self._workers[heapq.heappop(self._idle)] if self._idle else None

    def leave(self, worker: SimulatedWorker, now: float) -> SimulatedWorker | None:
        """End an allocation, and return the worker that the throttle lets run instead."""
        self.allocated_s += now - worker.began
        worker.state, worker.trial, worker.going = "out", 0, False
        worker.version += 1
        if worker.number in self._idle:
            self._idle.remove(worker.number)
            heapq.heapify(self._idle)
        self._out.append(worker.number)
        self._granted -= 1
        return self._workers[self._eligible.popleft()] if self._eligible else None

    def allocated(self, now: float) -> float:
        """Return the worker-seconds up to now, running allocations included."""
        running = (worker for worker in self._workers if worker.state in ("idle", "busy"))
        return self.allocated_s + math.fsum(now - worker.began for worker in running)
