"""The ranks that are forked from processes which have imported all that ranks need.

A nursery starts with its worker and ends with it. Until it says whether ranks can be forked, the
worker claims nothing: the first trial would import the same, at the same time.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from hpcdet import fork_messages
from hpcdet.fork_messages import Answer, ForkRequest
from hpcdet.jobs.script import warm_launch
from hpcdet.launchers.common import Launch
from hpcdet.schedulers.common import processes
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.worker.attempts import step
from hpcdet.worker.attempts.step import RunningStep

_PIECE = 1 << 16
_READY_S = 600
_FORK_S = 30
_END_S = 10


class ForkedRank:
    """A rank, as ``subprocess.Popen`` has its processes; its end is its nursery's to tell."""

    def __init__(self, pid: int, is_orphan: Callable[[], bool]) -> None:
        self.pid = pid
        self.code: int | None = None
        self._is_orphan = is_orphan

    def poll(self) -> int | None:
        """Return how it ended; None while it runs. With its nursery it is killed."""
        orphan = self._is_orphan()  # which also hears what the nursery has said of it
        if self.code is None and orphan and processes.started(self.pid) is None:
            self.code = -signal.SIGKILL
        return self.code


class WarmRanks:
    """The nursery of a worker's node, and the ranks that were forked from it.

    Attributes:
        why: why ranks start without a nursery; "" while they need not.
    """

    def __init__(
        self, launch: Launch | str, experiment: Resolved, note: Callable[..., None]
    ) -> None:
        self.why = ""
        self._experiment, self._note = experiment, note
        self._nursery: subprocess.Popen[bytes] | None = None
        self._environ: Mapping[str, str] = {}
        self._ready = False
        self._rest = b""
        self._number = 0
        self._answer: Answer | None = None
        self._ranks: dict[int, ForkedRank] = {}
        self._limit = time.monotonic() + _READY_S
        if isinstance(launch, str):
            self._cool(launch)
        else:
            self._environ = launch.environment
            self._start(launch)

    def _start(self, launch: Launch) -> None:
        try:
            self._nursery = subprocess.Popen(
                launch.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=dict(launch.environment),
                process_group=0,
                preexec_fn=step.preparation(launch),
            )
        except OSError as error:
            self._cool(f"{launch.argv[0]}: {error}")
            return
        os.set_blocking(self._output.fileno(), False)

    @property
    def _output(self) -> IO[bytes]:
        assert self._nursery is not None
        assert self._nursery.stdout is not None
        return self._nursery.stdout

    @property
    def settled(self) -> bool:
        """True once it is known whether ranks are forked."""
        self._look()
        if not self._ready and not self.why and time.monotonic() >= self._limit:
            self._give_up(f"the nursery was not ready after {_READY_S} s")
        return self._ready or bool(self.why)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What can be read when the nursery has something to say."""
        return (self._output.fileno(),) if self._nursery and not self._output.closed else ()

    def fork(self, launch: Launch, log: Path, cwd: Path) -> RunningStep | None:
        """Fork the ranks of an attempt; None if they have to start without a nursery.

        Raises:
            OSError: they cannot be forked, or the nursery is gone.
        """
        self._look()
        if not self._ready or self.why:
            return None
        differing = [self._difference({**launch.environment, **own}) for own in launch.processes]
        if name := next(filter(None, differing), ""):
            self._note("cold", why=f"{name} is not as it was when libraries were loaded")
            return None
        self._number += 1
        self._answer = None
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        ranks = [dict(own) for own in launch.processes]
        self._ask(
            ForkRequest(
                number=self._number,
                argv=list(launch.argv),
                environ=dict(launch.environment),
                ranks=[ranks],
                folder=str(cwd),
                log=str(log),
            )
        )
        answer = self._wait()
        if answer.kind == "refused":
            raise OSError(answer.text)
        forked = [ForkedRank(pid, self._is_gone) for pid in answer.pids]
        self._ranks |= {rank.pid: rank for rank in forked}
        return RunningStep(launch, forked)

    def close(self) -> None:
        """End the nursery, and with it what still runs of its ranks."""
        if self._nursery is None:
            return
        with contextlib.suppress(OSError):
            assert self._nursery.stdin is not None
            self._nursery.stdin.close()
        try:
            self._nursery.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._nursery.kill()
            self._nursery.wait()
        self._output.close()

    def _difference(self, environ: Mapping[str, str]) -> str:
        loaded = warm_launch.loaded_with(environ, self._experiment)
        return warm_launch.difference(self._environ, loaded)

    def _ask(self, request: ForkRequest) -> None:
        assert self._nursery is not None
        assert self._nursery.stdin is not None
        try:
            self._nursery.stdin.write(fork_messages.line(request))
            self._nursery.stdin.flush()
        except OSError as error:
            self._give_up(f"the nursery takes no requests: {error}")
            raise

    def _wait(self) -> Answer:
        """Return the answer to the newest request.

        Raises:
            OSError: there is none.
        """
        limit = time.monotonic() + _FORK_S
        while self._answer is None:
            if time.monotonic() >= limit:
                self._give_up(f"the nursery forked no rank in {_FORK_S} s")
            if self.why:
                raise ChildProcessError(self.why)
            select.select(self.descriptors, [], [], 1.0)
            self._look()
        return self._answer

    def _look(self) -> None:
        """Take what the nursery has said."""
        if self._nursery is None or self._output.closed:
            return
        while True:
            try:
                piece = os.read(self._output.fileno(), _PIECE)
            except BlockingIOError:
                return
            if not piece:
                break
            *whole, self._rest = (self._rest + piece).split(b"\n")
            for raw in whole:
                self._hear(raw)
        self._output.close()
        self._cool(f"the nursery has ended, exit code {self._nursery.wait()}")

    def _hear(self, raw: bytes) -> None:
        try:
            answer = fork_messages.read(Answer, raw)
        except ValueError as error:
            self._give_up(f"the nursery says what nobody understands: {error}")
            return
        if answer.kind == "ready":
            self._ready = True
        elif answer.kind == "cold":
            self._cool(answer.text)
        elif answer.kind == "ended":
            if (rank := self._ranks.pop(answer.pid, None)) is not None:
                rank.code = answer.code
        elif answer.number == self._number:
            self._answer = answer

    def _is_gone(self) -> bool:
        self._look()
        return self._output.closed

    def _give_up(self, why: str) -> None:
        assert self._nursery is not None
        self._nursery.kill()
        self._cool(why)

    def _cool(self, why: str) -> None:
        """Start all later ranks without a nursery."""
        if not self.why:
            self.why = why
            self._note("cold", why=why)
