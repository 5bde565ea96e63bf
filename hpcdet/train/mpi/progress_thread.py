"""The one thread of the process that calls MPI.

It starts an operation as soon as it is asked for, without waiting for those before it (MPI's
non-blocking calls), and completes its future when MPI says so. Messages move while somebody looks,
so it looks again at once as long as nothing else in this process computes, and sleeps between
looks when something does: a core that spins in MPI is a core that does not train.
``MPI_THREAD_SERIALIZED`` is enough.
"""

from __future__ import annotations

import atexit
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

Devices: TypeAlias = list[int | str | torch.device] | None
Steps: TypeAlias = Generator[Sequence[Any], None, None]
"""What an operation does: it yields MPI's requests, and goes on when they are done."""

_SPINS = 50  # looks without a break after something happened: small messages are that quick
_ALERT_S = 0.005  # after something happened, until somebody is late: only then is it worth a core
_SLEEP_S = (0.00002, 0.0002)  # between looks: at first, and at most
_SAMPLE_S = 0.0001  # between two looks at the clocks of threads, which are calls of the system
_BUSY = 0.2  # of a core that the other threads use: somebody computes


@dataclass(eq=False)
class Operation:
    """A collective under way.

    Attributes:
        steps: what it does.
        until: when it has failed, on the monotonic clock.
        result: what ``future`` gives.
        error: what went wrong; ``future`` raises it.
        requests: those that it waits for.
        statuses: what MPI says of the requests that are done, where somebody wants to know.
    """

    name: str
    steps: Iterator[Sequence[Any]]
    until: float
    result: Any = None
    devices: Devices = None
    requests: list[Any] = field(default_factory=list)
    error: Exception | None = None
    statuses: list[Any] | None = None

    def __post_init__(self) -> None:
        self.ended: torch.futures.Future[None] = torch.futures.Future(devices=self.devices)
        # an exception raised here is seen by those who wait in C++, too, as DDP does; one that is
        # set on a future from Python is not
        self.future = self.ended.then(self._outcome)

    def advance(self) -> bool:
        """Do the next step: whether it was the last."""
        try:
            self.requests = list(next(self.steps))
        except StopIteration:
            return True
        except Exception as error:
            self.error = error
            return True
        return False

    def end(self) -> None:
        """Complete the future, and run what waits for it."""
        self.ended.set_result(None)

    def _outcome(self, _ended: object) -> Any:
        if self.error is not None:
            raise RuntimeError(f"MPI {self.name} failed: {self.error}")
        return self.result


class Others:
    """Whether the other threads of this process compute, by the clocks of processor time."""

    def __init__(self) -> None:
        self._busy = True
        self._at = self._used = 0.0

    def busy(self) -> bool:
        now = time.monotonic()
        passed = now - self._at
        if passed > _SAMPLE_S:
            used = time.process_time() - time.thread_time()
            self._busy = used - self._used > _BUSY * passed
            self._at, self._used = now, used
        return self._busy


class ProgressThread(threading.Thread):
    """The one thread that calls MPI, from the first group to the end of the last."""

    _instance: ProgressThread | None = None

    def __init__(self) -> None:
        super().__init__(name="mpi", daemon=True)
        self._asked: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()
        self._active: list[Operation] = []
        self._others = Others()
        self._idle = 0  # looks since something happened
        self._last = 0.0  # when that was

    @classmethod
    def of_process(cls) -> ProgressThread:
        """The process's thread, which runs from its first use on."""
        if cls._instance is None:
            cls._instance = cls()
            cls._instance.start()
        return cls._instance

    @classmethod
    def stop(cls) -> None:
        """End it, whatever is under way: MPI is the main thread's again, to finalize it."""
        thread, cls._instance = cls._instance, None
        if thread is not None:
            thread._asked.put(None)
            thread.join()

    @classmethod
    def forget(cls) -> None:
        """In a child process, which has neither the thread nor a place among the ranks."""
        cls._instance = None

    def ask(self, operation: Operation) -> None:
        """Have an operation done, after those asked for before have been started."""
        self._asked.put(operation)

    def call(self, function: Callable[[], Any]) -> Any:
        """Have a blocking call made; returns what it does."""
        box: list[Any] = []

        def steps() -> Steps:
            box.append(function())
            yield ()

        operation = Operation("call", steps(), float("inf"))
        self.ask(operation)
        operation.future.wait()
        return box[0]

    def run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # for the main thread
        while self._turn():
            pass

    def drive(self, operation: Operation) -> None:
        """From a callback, which runs in this thread: go on until an operation is complete.

        A callback may ask for another operation and wait for it, as PowerSGD's does.
        """
        if threading.current_thread() is self:
            while not operation.future.done() and self._turn():
                pass

    def _turn(self) -> bool:
        """Start what has been asked for, if anything, and complete what is done; False at the end.

        Callbacks run in here, and may call it again.
        """
        pause = self._pause()
        try:
            asked = self._asked.get(block=pause != 0, timeout=pause)
        except queue.Empty:
            self._idle += 1
        else:
            if asked is None:
                self._asked.put(None)  # for the turns around this one
                return False
            self._happened()
            if asked.advance():
                asked.end()
            else:
                self._active.append(asked)
        for one in tuple(self._active):
            if one in self._active and _is_ready(one):
                self._happened()
                if one.error is not None or one.advance():
                    self._active.remove(one)
                    one.end()
        return True

    def _happened(self) -> None:
        self._idle, self._last = 0, time.monotonic()

    def _pause(self) -> float | None:
        """Seconds to wait for something to be asked for before the next look at what is active."""
        if not self._active:
            return None
        if self._idle <= _SPINS:
            return 0
        if time.monotonic() - self._last < _ALERT_S and not self._others.busy():
            os.sched_yield()
            return 0
        least, most = _SLEEP_S
        return min(least * (1 + (self._idle - _SPINS) // 8), most)


def _is_ready(operation: Operation) -> bool:
    """Whether an operation can go on: what it waits for is done, or has failed."""
    from mpi4py import MPI

    try:
        if operation.requests and not MPI.Request.Testall(operation.requests, operation.statuses):
            if time.monotonic() < operation.until:
                return False
            raise TimeoutError("the other ranks did not come")
    except Exception as error:
        operation.error = error
    return True


# a thread that wakes up while the interpreter goes down would bring it down with noise, and one
# that is in MPI while another finalizes it is not allowed
atexit.register(ProgressThread.stop)
os.register_at_fork(after_in_child=ProgressThread.forget)
