"""Notices from the scheduler to leave soon: SIGTERM and SIGUSR2, which mean the same."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from hpcdet.jobs.script import environment
from hpcdet.launchers import opening as launchers
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.site import Site

_END_S = 10
_LOOK_S = 0.5  # the listener's file lies on the file server


class Notices:
    """The notices received so far, and the worker's only sleep, which a notice ends.

    Handlers only set a flag. A pipe ends the sleep at once: a flag that is set between a check
    and a sleep would otherwise be seen late.
    """

    def __init__(self) -> None:
        self._heard = ""
        self._listener: subprocess.Popen[bytes] | None = None
        self._file: Path | None = None
        self._look_at = 0.0
        self._wake, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def install(self) -> Notices:
        """Install the handlers; they are this process's only ones."""
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, self._note)
        signal.signal(signal.SIGCHLD, _wake_only)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGCONT, signal.SIG_IGN)
        return self

    def _note(self, number: int, _: FrameType | None) -> None:
        self._heard = self._heard or signal.Signals(number).name

    def listen(self, allocation: Allocation, site: Site, pool: str | None, file: Path) -> None:
        """Start a step that receives what is sent to steps only, while this process runs."""
        view = site.view(pool)
        command = (sys.executable, "-Pm", "hpcdet.worker.listener", str(file))
        launcher = launchers.launcher(launchers.kind_of(site, view))
        argv = launcher.listener(view.launcher.args, command)
        if not allocation.steps_hear or not argv:
            return
        self._file = file
        self._listener = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            env=environment.for_step(os.environ, site),
            start_new_session=True,
            bufsize=0,
        )
        with contextlib.suppress(BrokenPipeError):  # it has failed, and said why
            self._input.write(b"\n")

    @property
    def _input(self) -> IO[bytes]:
        assert self._listener is not None
        assert self._listener.stdin is not None
        return self._listener.stdin

    def heard(self) -> str:
        """Return the name of the first notice; "" while there is none."""
        if time.monotonic() >= self._look_at:
            self.look()
        return self._heard

    def look(self) -> None:
        """Check the listening step now instead of at the next periodic check."""
        self._look_at = time.monotonic() + _LOOK_S
        if not self._heard and self._file is not None:
            with contextlib.suppress(OSError):
                self._heard = self._file.read_text()

    def wait(self, seconds: float, also: Sequence[int] = ()) -> None:
        """Sleep until a signal arrives or a child ends, and no longer than this.

        Args:
            also: descriptors of which one that can be read ends it, too.
        """
        if self._wake in select.select([self._wake, *also], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._wake, 4096):
                    pass

    def wake(self) -> None:
        """End the sleep, from any thread."""
        with contextlib.suppress(BlockingIOError):  # it is full: awake already
            os.write(self._writer, b"\0")

    def close(self) -> None:
        """End the listening step and ignore notices: one would kill an exiting interpreter."""
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        if self._listener is not None:
            self._input.close()  # which ends it, if the launcher passes it on
            # a launcher makes a kill of its step of the first, and may wait for its controller
            for end in (self._listener.terminate, self._listener.kill):
                try:
                    self._listener.wait(_END_S)
                    break
                except subprocess.TimeoutExpired:
                    end()
            self._listener.wait()


def _wake_only(number: int, frame: FrameType | None) -> None:
    """Do nothing: SIGCHLD needs a handler for its number to reach the wake-up pipe."""
