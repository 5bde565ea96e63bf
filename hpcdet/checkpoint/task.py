"""A function in a thread of its own, and what comes of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Task(Generic[T]):
    """Starts at once. A process that ends does not wait for it.

    Args:
        work: what it raises is raised again by ``result``.
        name: of the thread.
    """

    def __init__(self, work: Callable[[], T], name: str) -> None:
        self._work = work
        self._value: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # for the main thread
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error
        finally:
            del self._work  # and all that it holds

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._thread.is_alive()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end, so long at most; whether it has ended."""
        self._thread.join(seconds)
        return self.done()

    def result(self) -> T:
        """Wait for its end and give what it returned, or raise what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]
