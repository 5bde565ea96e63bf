"""Some batches recorded by torch's profiler, where the config asks for it (``profiling``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hpcdet.core.training import Session
from hpcdet.process.console import say
from hpcdet.store.fs import files

BATCHES = 20
"""Recorded where nobody says how many; a trace has some ten thousand lines for each."""

PHASE = "profiling"
"""What the profiler's start and its file take: seconds that would make steps look slow."""


def profiler(folder: Path, *args: Any, **options: Any) -> Any:
    """One of the code's own, which writes into a folder."""
    ready = torch.profiler.tensorboard_trace_handler(str(folder))
    return torch.profiler.profile(*args, **{**options, "on_trace_ready": ready})


class Traces:
    """Records one stretch of batches into a file of Chrome's trace format.

    It carries the trainer's phases as ``hpcdet: forward`` and so on. What cannot be written ends
    no training.

    Args:
        own: a profiler of the code's own, which is run as long as the trainer trains.
    """

    def __init__(self, session: Session, own: Any = None) -> None:
        wanted = session.config.profiling
        last = wanted.end_after_batch
        self._session = session
        self._own, self._owns = own, False
        self._begin = wanted.begin_on_batch
        self._end = wanted.begin_on_batch + BATCHES - 1 if last is None else last
        self._sync = wanted.sync_timings and session.device.type == "cuda"
        self._on = wanted.enabled and session.attached
        self._profiler: Any = None
        self._range: Any = None

    def before(self, batch: int) -> None:
        """A batch comes next, by its index over the whole trial."""
        if self._own is not None:
            self._go_on("step" if self._owns else "start")
        if not self._on:
            return
        if self._profiler is not None:
            if batch > self._end:
                self.close()
            else:
                self._profiler.step()
        elif self._begin <= batch <= self._end:
            with self._session.profile.apart(PHASE):
                self._start()

    def close(self) -> None:
        """Write what was recorded, if anything was; no more is."""
        self._on = False
        if self._owns:
            self._go_on("stop")
        if self._profiler is not None:
            with self._session.profile.apart(PHASE):
                self._write()

    def _go_on(self, what: str) -> None:
        """Start, step or stop the code's own profiler, which may write a file then."""
        self._owns = what != "stop"
        with self._session.profile.apart(PHASE):
            try:
                getattr(self._own, what)()
            except (OSError, RuntimeError) as error:
                say(f"the profiler records no more: {error}")
                self._own, self._owns = None, False

    def _write(self) -> None:
        self._session.profile.watch(None)
        self._profiler.stop()
        path = self._session.place.attempt.trace(self._session.ranks.rank)
        try:
            files.make_folder(path.parent)
            self._profiler.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            say(f"the trace cannot be written: {error}")
        self._profiler = None

    def _start(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._session.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities)
        self._profiler.start()
        self._session.profile.watch(self._phase)

    def _phase(self, phase: str) -> None:
        if self._sync:
            torch.cuda.synchronize(self._session.device)
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None
        if phase:
            self._range = torch.profiler.record_function(f"hpcdet: {phase}")
            self._range.__enter__()
