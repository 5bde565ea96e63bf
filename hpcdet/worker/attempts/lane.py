"""One of the trials side by side in an allocation: an attempt from its claim to its end."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass

from hpcdet.store.folder.layout import AttemptPaths
from hpcdet.store.folder.records import End
from hpcdet.worker.attempts.step import RunningStep


@dataclass
class Lane:
    """An attempt at work.

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
        """Look after the processes; False once all have ended."""
        return self.judged is None and self.step is not None and self.step.running()

    @property
    def is_used_up(self) -> bool:
        """Whether it is time to leave because of what it may cost."""
        return self.end_at is not None and time.time() >= self.end_at - self.lead_s

    def enforce(self) -> None:
        """Tell an attempt whose budget is used up to save and leave, and do not wait for ever."""
        if self.judged is not None or not self.is_used_up:
            return
        self.tell()
        if self.end_at is not None and time.time() >= self.end_at + self.kill_wait_s:
            self.end()

    @property
    def at_work(self) -> bool:
        """Whether there is somebody who does not know yet that he has to leave."""
        return not self.told and self.judged is None and self.step is not None

    def end(self) -> None:
        """End it at once, without a save; nothing more is told to it then."""
        if self.step is not None:
            self.told = True
            self.step.end()

    def tell(self) -> bool:
        """Tell the ranks to save and leave; True the first time, if there is somebody to tell."""
        if not self.at_work or self.step is None:
            return False
        self.told = True
        self.step.notify()
        return True
