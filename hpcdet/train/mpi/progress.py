"""The one thread of the process that calls MPI.

It starts an operation as soon as it is asked for, without waiting for those before it (MPI's
non-blocking calls), and completes its future when MPI says so. It sleeps between looks: a core that
spins in MPI is a core that does not train. ``MPI_THREAD_SERIALIZED`` is enough.
"""

from __future__ import annotations

import atexit
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

Devices: TypeAlias = list[int | str | torch.device] | None

_SPINS = 50  # looks without sleep after something was asked for: small messages are that quick
_SLEEP_S = (0.00002, 0.0002)  # between looks: at first, and at most


@dataclass
class Operation:
    """A collective under way.

    Attributes:
        start: starts it; gives MPI's requests.
        finish: called when they are done, before ``future`` is.
        until: when it has failed, on the monotonic clock.
        result: what ``future`` gives.
    """

    name: str
    start: Callable[[], Sequence[Any]]
    finish: Callable[[], None]
    until: float
    result: Any = None
    devices: Devices = None
    requests: list[Any] = field(default_factory=list)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.ended: torch.futures.Future[None] = torch.futures.Future(devices=self.devices)
        # an exception raised here is seen by those who wait in C++, too, as DDP does; one that is
        # set on a future from Python is not
        self.future = self.ended.then(self._outcome)

    def end(self, error: Exception | None = None) -> None:
        """Complete the future."""
        self.error = error
        self.ended.set_result(None)

    def _outcome(self, _ended: object) -> Any:
        if self.error is not None:
            raise RuntimeError(f"MPI {self.name} failed: {self.error}")
        return self.result


class Progress(threading.Thread):
    """The one thread that calls MPI, from the first group to the end of the last."""

    _instance: Progress | None = None

    def __init__(self) -> None:
        super().__init__(name="mpi", daemon=True)
        self._asked: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()

    @classmethod
    def of_process(cls) -> Progress:
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

        def start() -> Sequence[Any]:
            box.append(function())
            return ()

        operation = Operation("call", start, nothing, float("inf"))
        self.ask(operation)
        operation.future.wait()
        return box[0]

    def run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # for the main thread
        active: list[Operation] = []
        idle = 0
        while True:
            try:
                asked = self._asked.get(block=idle > _SPINS, timeout=_pause(idle, active))
            except queue.Empty:
                idle += 1
            else:
                if asked is None:
                    return
                idle = 0
                if _started(asked):
                    active.append(asked)
            if active:
                left = [one for one in active if not _done(one)]
                idle = 0 if len(left) < len(active) else idle
                active = left


def _pause(idle: int, active: list[Operation]) -> float | None:
    if not active:
        return None
    least, most = _SLEEP_S
    return min(least * (1 + (idle - _SPINS) // 8), most)


def _started(operation: Operation) -> bool:
    try:
        operation.requests = list(operation.start())
    except Exception as error:
        operation.end(error)
        return False
    return not _done(operation)


def _done(operation: Operation) -> bool:
    from mpi4py import MPI

    try:
        if operation.requests and not MPI.Request.Testall(operation.requests):
            if time.monotonic() < operation.until:
                return False
            raise TimeoutError("the other ranks did not come")
        operation.finish()
    except Exception as error:
        operation.end(error)
    else:
        operation.end()
    return True


def nothing() -> None:
    """An operation's end where nothing has to be done."""


# a thread that wakes up while the interpreter goes down would bring it down with noise, and one
# that is in MPI while another finalizes it is not allowed
atexit.register(Progress.stop)
os.register_at_fork(after_in_child=Progress.forget)
