"""One of the trials side by side in an allocation: an attempt from its claim to its end."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from hpcdet.store.layout import AttemptPaths
from hpcdet.store.records import End
from hpcdet.worker.step import RunningStep


@dataclass
class Lane:
    """An attempt at work.

    Attributes:
        number: which lane of the allocation, from 0.
        step: None if it could not even be started.
        oom_kills: processes that the kernel had killed for memory when it began.
        judged: the judgement over its end, once it has ended.
        told: it knows that it has to leave.
    """

    number: int
    attempt: AttemptPaths
    step: RunningStep | None
    oom_kills: int
    judged: Future[End] | None = None
    told: bool = False

    def running(self) -> bool:
        """Look after the processes; False once all have ended."""
        return self.judged is None and self.step is not None and self.step.running()

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
