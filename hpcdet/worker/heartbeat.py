"""The heartbeat of a worker, which shows that it lives."""

from __future__ import annotations

import contextlib
import os
import time

from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import files

BEAT_S = 15


class Heartbeat:
    """The beat of a worker: a file that is replaced every few seconds."""

    def __init__(self, me: WorkerPaths) -> None:
        self._me = me
        self._beat_at = 0.0
        self._said = ""

    def tick(self, leaving: str) -> None:
        """Beat if it is time, or if there is a new reason to leave."""
        if time.monotonic() < self._beat_at and leaving == self._said:
            return
        self._beat_at, self._said = time.monotonic() + BEAT_S, leaving
        why = {"leaving": leaving} if leaving else {}
        beat = files.canonical({"at": files.now(), "pid": os.getpid(), **why})
        with contextlib.suppress(OSError):  # a full disk: the scheduler knows that we live
            files.replace(self._me.beat, beat)
