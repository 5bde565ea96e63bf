"""The job array: which workers wait in the queue, which may run, which have nothing to do."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator

import numpy as np

from hpcdet.sim.actors import SimulatedWorker
from hpcdet.sim.cluster import Cluster


class JobArray:
    """Workers by what the scheduler lets them do; what they train is the simulation's.

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
        """Workers go to the queue, each until then, while fewer are coming than are wanted."""
        while self._out and self.coming < wanted:
            worker = self._workers[self._out.popleft()]
            worker.state, worker.submitted = "queued", now
            self.coming += 1
            yield worker, now + self.cluster.queue_wait.draw(worker.rng)

    def grant(self, worker: SimulatedWorker, now: float) -> bool:
        """Its turn has come: whether it runs, or is held by the throttle."""
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
        """When and why a worker's allocation ends by itself; at infinity if never."""
        ends = [(worker.ends - self.cluster.save_s, "walltime")]
        for rate, why in (
            (self.cluster.preempt_per_h, "preempted"),
            (self.cluster.fail_per_h, "node failed"),
        ):
            if rate:
                ends.append((worker.began + float(worker.rng.exponential(3600 / rate)), why))
        return min(ends)

    def may_train(self, worker: SimulatedWorker, now: float) -> bool:
        """Whether another trial makes sense on it."""
        useful = max(self.cluster.min_segment_s, self.cluster.save_s)
        return not worker.going and worker.ends - now >= useful

    def rest(self, worker: SimulatedWorker, now: float) -> float:
        """It has nothing to do; until when it waits for something."""
        worker.state, worker.idle_since = "idle", now
        heapq.heappush(self._idle, worker.number)
        return now + self.cluster.idle_s

    def has_idled(self, worker: SimulatedWorker, life: int, now: float) -> bool:
        """Whether it has had nothing to do for so long that it gives its allocation back."""
        idle = worker.life == life and worker.state == "idle"
        return idle and now >= worker.idle_since + self.cluster.idle_s

    def first_idle(self) -> SimulatedWorker | None:
        """An idle worker, which is not idle any more."""
        return self._workers[heapq.heappop(self._idle)] if self._idle else None

    def leave(self, worker: SimulatedWorker, now: float) -> SimulatedWorker | None:
        """Its allocation ends; the worker that the throttle lets run instead, if any."""
        self.allocated_s += now - worker.began
        worker.state, worker.trial, worker.going = "out", 0, False
        worker.life += 1
        if worker.number in self._idle:
            self._idle.remove(worker.number)
            heapq.heapify(self._idle)
        self._out.append(worker.number)
        self._granted -= 1
        return self._workers[self._eligible.popleft()] if self._eligible else None

    def allocated(self, now: float) -> float:
        """Worker-seconds up to now, running allocations included."""
        running = (worker for worker in self._workers if worker.state in ("idle", "busy"))
        return self.allocated_s + math.fsum(now - worker.began for worker in running)
