"""A lane of an allocation: one of the attempts that run side by side, from claim to end."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass

from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.records import End
from hpcdet.worker.attempts.step import RunningStep


@dataclass
class Lane:
    """An attempt in its lane.

    Attributes:
        number: which lane of the allocation, from 0.
        step: None if it could not even be started.
        oom_kills: processes that the kernel had killed for memory when it began.
        said: why it could not be started, if so.
        judged: the judgement over its end, once it has ended.
        told: it knows that it has to leave.
        end_at: when what it reserved is used up, epoch seconds; None: not before the allocation.
        lead_s: how long before that it is told.
        kill_wait_s: how long after it is killed, if it does not listen.
    """

    number: int
    attempt: AttemptPaths
    step: RunningStep | None
    oom_kills: int
    said: str = ""
    judged: Future[End] | None = None
    told: bool = False
    end_at: float | None = None
    lead_s: float = 0.0
    kill_wait_s: float = 0.0

    def running(self) -> bool:
        """Poll the processes; False once all have ended."""
        return self.judged is None and self.step is not None and self.step.running()

    @property
    def is_used_up(self) -> bool:
        """True if the attempt must leave soon because its reservation is nearly used up."""
        return self.end_at is not None and time.time() >= self.end_at - self.lead_s

    def enforce(self) -> None:
        """Have an attempt whose reservation is used up save and leave; end it if it does not."""
        if self.judged is not None or not self.is_used_up:
            return
        self.tell()
        if self.end_at is not None and time.time() >= self.end_at + self.kill_wait_s:
            self.end()

    @property
    def at_work(self) -> bool:
        """True while the step runs and no stop was sent."""
        return not self.told and self.judged is None and self.step is not None

    def end(self) -> None:
        """End the step at once, without a save; no further notice is sent to it."""
        if self.step is not None:
            self.told = True
            self.step.end()

    def tell(self) -> bool:
        """Notify the ranks to save and leave; False if they have been notified or have ended."""
        if not self.at_work or self.step is None:
            return False
        self.told = True
        self.step.notify()
        return True
