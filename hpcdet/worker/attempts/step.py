"""The running processes of one attempt."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hpcdet.launchers.common import Launch
from hpcdet.store.fs import files

_PR_SET_PDEATHSIG = 1
_NOTICES = (signal.SIGTERM, signal.SIGUSR2)
# looked up here: a child of a process with threads must not wait for the linker's lock
_prctl = ctypes.CDLL(None, use_errno=True).prctl
_PEERS_GRACE_S = 10
PEER_LOST = os.EX_TEMPFAIL
"""Exit code of a rank that ended because another one had."""


@dataclass(frozen=True)
class Exit:
    """The end of a step.

    Attributes:
        code: exit code of the step as a shell would show it: of the first process that failed.
        rank: the rank that failed first, where the processes are ranks.
        died_of: the signal that ended it, "" if none did or if it was ours.
    """

    code: int
    rank: int | None = None
    died_of: str = ""


@dataclass(frozen=True)
class _Failure:
    """A process that ended with an error; ``ours``: because this worker killed it."""

    rank: int
    code: int
    ours: bool

    def echo(self) -> int:
        """Return how likely it is only the echo of another process's failure."""
        if self.ours or self.code == PEER_LOST:
            return 2
        return 0 if self.code == -signal.SIGKILL else 1


class StepProcess(Protocol):
    """A process of a step, as ``subprocess.Popen`` has it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...


class RunningStep:
    """The processes of a launch: polled, notified and ended here.

    Ranks without a launcher are treated as a launcher would: if one dies, the others are
    told to leave and, as they may wait for the dead one for ever, killed a little later; if this
    process dies, they die with it.
    """

    def __init__(
        self,
        launch: Launch,
        processes: Sequence[StepProcess],
        tell: Callable[[signal.Signals], None] | None = None,
    ) -> None:
        """Take the processes of a launch; ``tell`` sends signals to those on other nodes."""
        self._by_launcher = launch.by_launcher and tell is None
        self._tell = tell
        self._end_signal = launch.end_signal
        self._processes = processes
        self._failed: list[_Failure] = []  # in order of detection
        self._seen: set[int] = set()
        self._kill_at: float | None = None
        self._killed = False

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def running(self) -> bool:
        """Poll the processes; False once all have ended."""
        for rank, process in enumerate(self._processes):
            code = process.poll()
            if code is not None and rank not in self._seen:
                self._seen.add(rank)
                if code != 0:
                    ours = self._killed and code == -signal.SIGKILL
                    self._failed.append(_Failure(rank, code, ours))
        if len(self._seen) == len(self._processes):
            self._sweep()
            return False
        if self._failed and not self._by_launcher:
            self._end_peers()
        elif self._by_launcher and self._kill_at and time.monotonic() >= self._kill_at:
            self.kill()  # a launcher that was asked to end and does not
        return True

    def notify(self) -> None:
        """Tell the ranks to save and leave.

        Only SIGUSR2 is safe with every launcher: they answer SIGTERM by killing their ranks.
        """
        self._signal(signal.SIGUSR2)

    def end(self) -> None:
        """End the step at once, without a save; a launcher ends its ranks on all nodes."""
        if not self._by_launcher:
            self.kill()
        elif self._kill_at is None:
            self._killed = True
            self._kill_at = time.monotonic() + _PEERS_GRACE_S
            self._signal(self._end_signal)

    def kill(self) -> None:
        """Kill the step's processes at once."""
        self._killed = True
        self._signal(signal.SIGKILL)

    def result(self) -> Exit:
        """Return how the step ended; call it after ``running`` has returned False."""
        if not self._failed:
            return Exit(0)
        # the peers of a dead rank fail, too, and may be seen first
        first = min(self._failed, key=_Failure.echo)
        died = first.code < 0 and not first.ours and not self._by_launcher
        return Exit(
            code=first.code if first.code >= 0 else 128 - first.code,
            rank=None if self._by_launcher else first.rank,
            died_of=signal.Signals(-first.code).name if died else "",
        )

    def _end_peers(self) -> None:
        now = time.monotonic()
        if self._kill_at is None:
            self._kill_at = now + _PEERS_GRACE_S
            self.notify()
        elif now >= self._kill_at:
            self.kill()

    def _sweep(self) -> None:
        """Kill the processes that the ranks left behind (loader workers)."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._tell is not None:
            self._tell(number)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._processes[0].pid, number)


def start(launch: Launch, log: Path, cwd: Path) -> RunningStep:
    """Start the processes of a launch.

    Raises:
        OSError: one of them cannot be started; then none runs.
    """
    prepare = preparation(launch)
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    started: list[subprocess.Popen[bytes]] = []
    try:
        with files.append_log(log) as output:
            for extra in launch.processes:
                # all in the group of the first: one signal reaches all, and only them
                group = started[0].pid if started else 0
                started.append(
                    subprocess.Popen(
                        launch.argv,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        env={**launch.environment, **extra},
                        cwd=cwd,
                        process_group=group,
                        preexec_fn=prepare,
                    )
                )
    except BaseException:
        # a part of the ranks would wait for the others while the attempt is over
        for process in started:
            process.kill()
            process.wait()
        raise
    return RunningStep(launch, started)


def preparation(launch: Launch) -> Callable[[], None] | None:
    """Return the function that a child runs before it executes the rank or the launcher.

    Either ends with the worker; others are ended by the scheduler. A rank blocks notices until it
    can handle them; a launcher that SIGTERM would kill blocks it (and unblocks it for its ranks).
    """
    parent = os.getpid()
    if not launch.by_launcher:
        return lambda: _begin(parent, _NOTICES, signal.SIGKILL)
    if launch.end_signal is signal.SIGTERM:
        return None
    return lambda: _begin(parent, (signal.SIGTERM,), launch.end_signal)


def _begin(parent: int, blocked: Collection[signal.Signals], death: signal.Signals) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    _prctl(_PR_SET_PDEATHSIG, death)
    if os.getppid() != parent:
        os._exit(1)
