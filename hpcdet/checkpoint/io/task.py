"""A function in a thread of its own, and what comes of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundTask(Generic[T]):
    """Starts at once. A process that ends does not wait for it.

    Args:
        work: what it raises is raised again by ``result``.
        name: of the thread.
        or_here: where a limit leaves no thread for it, it is done before this returns.

    Raises:
        RuntimeError: there is no thread for it, and it may not be done here.
    """

    def __init__(self, work: Callable[[], T], name: str, *, or_here: bool = False) -> None:
        self._work = work
        self._value: T | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = threading.Thread(
            target=self._beside, name=name, daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError:
            if not or_here:
                raise
            self._thread = None
            self._run()

    def _beside(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # for the main thread
        self._run()

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error
        finally:
            del self._work  # and all that it holds

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end, so long at most; whether it has ended."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self.done()

    def result(self) -> T:
        """Wait for its end and give what it returned, or raise what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]
