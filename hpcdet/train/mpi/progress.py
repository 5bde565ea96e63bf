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


@dataclass(eq=False)
class Operation:
    """A collective under way.

    Attributes:
        start: starts it; gives MPI's requests.
        finish: called when they are done, before ``future`` is.
        until: when it has failed, on the monotonic clock.
        result: what ``future`` gives.
        error: what went wrong; ``future`` raises it.
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

    def end(self) -> None:
        """Complete the future, and run what waits for it."""
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
        self._active: list[Operation] = []
        self._idle = 0  # looks since something happened

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
        try:
            asked = self._asked.get(block=self._idle > _SPINS, timeout=self._pause())
        except queue.Empty:
            self._idle += 1
        else:
            if asked is None:
                self._asked.put(None)  # for the turns around this one
                return False
            self._idle = 0
            self._active.append(asked)
            _start(asked)
        for one in tuple(self._active):
            if one in self._active and _is_over(one):
                self._active.remove(one)
                self._idle = 0
                one.end()
        return True

    def _pause(self) -> float | None:
        """Seconds to wait for something to be asked for before the next look at what is active."""
        if not self._active:
            return None
        least, most = _SLEEP_S
        return min(least * (1 + (self._idle - _SPINS) // 8), most)


def _start(operation: Operation) -> None:
    try:
        operation.requests = list(operation.start())
    except Exception as error:
        operation.error = error


def _is_over(operation: Operation) -> bool:
    from mpi4py import MPI

    try:
        if operation.error is None:
            if operation.requests and not MPI.Request.Testall(operation.requests):
                if time.monotonic() < operation.until:
                    return False
                raise TimeoutError("the other ranks did not come")
            operation.finish()
    except Exception as error:
        operation.error = error
    return True


def nothing() -> None:
    """An operation's end where nothing has to be done."""


# a thread that wakes up while the interpreter goes down would bring it down with noise, and one
# that is in MPI while another finalizes it is not allowed
atexit.register(Progress.stop)
os.register_at_fork(after_in_child=Progress.forget)
