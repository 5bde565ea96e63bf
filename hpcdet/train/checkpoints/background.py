"""Work beside the training, in one thread: asked for again while it runs, it runs once more."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_LOOK_S = 0.2
_GIVE_UP_S = 2.0


class Background(Generic[T]):
    """Runs ``work`` off the training's path, never twice at the same time.

    Args:
        work: takes a function that says whether to give up. What it raises goes to the log.
    """

    def __init__(self, work: Callable[[Callable[[], bool]], T]) -> None:
        self._work = work
        self._done: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._wanted = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def request(self) -> None:
        """Have the work done, from what there is from now on."""
        with self._lock:
            if self._stop.is_set():
                return
            self._wanted = True
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="hpcdet", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._wanted or self._stop.is_set():
                    self._thread = None
                    return
                self._wanted = False
            try:
                self._done.put(self._work(self._stop.is_set))
            except BaseException:
                with self._lock:
                    self._thread = None  # nobody waits for what has failed
                raise

    def results(self) -> list[T]:
        """Return the results that have come since the last call."""
        found: list[T] = []
        with contextlib.suppress(queue.Empty):  # two threads may ask
            while True:
                found.append(self._done.get_nowait())
        return found

    def wait(self, seconds: float) -> bool:
        """Wait so long at most; whether nothing is being done (any more)."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return self._thread is None

    def settled(self, *, hurry: bool) -> bool:
        """Wait for a moment; return True once nothing is being done.

        Args:
            hurry: give up what is being done, do nothing more, and return True at once.
        """
        if not hurry:
            return self.wait(_LOOK_S)
        self._stop.set()
        self.wait(_GIVE_UP_S)  # while it verifies it does not listen; to be cut off is harmless
        return True
