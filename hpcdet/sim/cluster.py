"""The assumed cluster: its queue, nodes, file system and the pace of the controller."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hpcdet.sim.waits import AT_ONCE, QueueWait


@dataclass(frozen=True)
class Cluster:
    """A cluster as one search sees it. The defaults are an ideal one. Times in seconds.

    Attributes:
        workers: tasks of the job array; each trains one trial at a time.
        throttle: so many of them run at once; 0: all.
        queue_wait: from a worker's submission until it may run, each time it is submitted.
        walltime_s: after which a worker's allocation ends; its trial is saved before.
        shared: a worker takes trials one after the other; otherwise each needs a job of its own.
        preempt_per_h: how often an hour a worker is told to leave; its trial is saved.
        fail_per_h: how often an hour a worker's node fails; nothing is saved then.
        on_failure: a trial whose node failed goes on from its last ``checkpoint``, begins again
            at the ``start``, or is ``lost``: the searcher hears that it failed.
        detect_s: until a failure is noticed.
        checkpoint_every_s: time of training between checkpoints (beside the training).
        save_s: a trial that leaves holds its worker so long.
        start_s: from taking a trial until it trains: processes start, libraries are imported.
        restore_s: besides, where it goes on from a checkpoint.
        stragglers: training between two reports takes ``1 + |z| * stragglers`` times as long,
            ``z`` standard normal.
        visible: from a report's write until others can read it.
        poll_s: the controller turns at multiples of it; 0: at once.
        directive_s: from a decision until the trial obeys.
        repeats: probability that a report is told to the searcher once more, later.
        away: windows (begin, end) in which nobody turns the crank.
        min_segment_s: a worker with less time left than this takes no trial.
        idle_s: a worker gives its allocation back after so long without a trial.
    """

    workers: int = 4
    throttle: int = 0
    queue_wait: QueueWait = AT_ONCE
    walltime_s: float = math.inf
    shared: bool = True
    preempt_per_h: float = 0.0
    fail_per_h: float = 0.0
    on_failure: Literal["checkpoint", "start", "lost"] = "checkpoint"
    detect_s: float = 0.0
    checkpoint_every_s: float = 600.0
    save_s: float = 0.0
    start_s: float = 0.0
    restore_s: float = 0.0
    stragglers: float = 0.0
    visible: QueueWait = AT_ONCE
    poll_s: float = 0.0
    directive_s: float = 0.0
    repeats: float = 0.0
    away: tuple[tuple[float, float], ...] = ()
    min_segment_s: float = 0.0
    idle_s: float = 120.0

    def __post_init__(self) -> None:
        if self.workers < 1 or self.throttle < 0:
            raise ValueError("a cluster has at least one worker, and no negative throttle")
        if self.walltime_s <= max(self.min_segment_s, self.lost_s):
            raise ValueError(
                f"in a walltime of {self.walltime_s:g} s no trial gets on: starting, saving or "
                f"the shortest useful stretch ({self.min_segment_s:g} s) use it up"
            )
        if self.checkpoint_every_s <= 0 or not 0 <= self.repeats < 1:
            raise ValueError("checkpoint_every_s is positive, repeats a probability below 1")
        times = (self.detect_s, self.save_s, self.start_s, self.restore_s)
        turns = (self.poll_s, self.directive_s)
        rates = (self.preempt_per_h, self.fail_per_h, self.stragglers, self.min_segment_s)
        if not all(0 <= value < math.inf for value in (*times, *turns, *rates)) or self.idle_s < 0:
            raise ValueError("times and rates are not negative and not infinite")
        if any(begin >= end for begin, end in self.away):
            raise ValueError("a window without a user begins before it ends")

    @property
    def lost_s(self) -> float:
        """Seconds that an attempt spends on start, restore and save, besides training."""
        return self.start_s + self.restore_s + self.save_s

    @property
    def instant(self) -> bool:
        """True if every report is decided the moment it is written."""
        return self.poll_s == 0 and self.visible.never and not self.away

    def turn(self, at: float) -> float:
        """Return the time of the controller's next turn from a time on."""
        if self.poll_s:
            at = math.ceil(at / self.poll_s - 1e-9) * self.poll_s
        for begin, end in sorted(self.away):
            if begin <= at < end:
                at = end
        return at
