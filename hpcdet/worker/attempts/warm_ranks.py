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

from hpcdet.jobs.script import warm_launch
from hpcdet.launchers.common import Launch
from hpcdet.schedulers.common import processes
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.warm import fork_messages
from hpcdet.warm.fork_messages import Answer, ForkRequest
from hpcdet.worker.attempts import step
from hpcdet.worker.attempts.step import RunningStep

_PIECE = 1 << 16
_READY_S = 600
_FORK_S = 30
_END_S = 10


class ForkedRank:
    """A rank, as ``subprocess.Popen`` has its processes; its end is its nursery's to tell."""

    def __init__(
        self, pid: int, is_orphan: Callable[[], bool], has_ended: Callable[[], bool]
    ) -> None:
        self.pid = pid
        self.code: int | None = None
        self._is_orphan, self._has_ended = is_orphan, has_ended

    def poll(self) -> int | None:
        """Return how it ended; None while it runs. With its nursery it is killed."""
        orphan = self._is_orphan()  # which also hears what the nursery has said of it
        if self.code is None and orphan and self._has_ended():
            self.code = -signal.SIGKILL
        return self.code


class WarmRanks:
    """The nurseries of a worker's nodes, and the ranks that were forked from them.

    One process stands for all: the nursery of this node, or the launcher of several.

    Attributes:
        why: why ranks start without a nursery; "" while they need not.
        oom_kills: ranks that a kernel has killed for memory.
    """

    def __init__(self, experiment: Resolved, note: Callable[..., None]) -> None:
        self.why = ""
        self.oom_kills = 0
        self._experiment, self._note = experiment, note
        self._nursery: subprocess.Popen[bytes] | None = None
        self._by_launcher = False
        self._environ: Mapping[str, str] = {}
        self._ready: set[int] = set()  # nodes
        self._rest = b""
        self._number = 0
        self._answers: dict[int, Answer] = {}  # to the newest request, by node
        self._forked: dict[int, list[ForkedRank]] = {}  # for it, by node
        self._ranks: dict[tuple[int, int], ForkedRank] = {}  # by node and process
        self._limit = 0.0

    def start(self, launch: Launch | str) -> None:
        """Start the nurseries, or note why there are none."""
        if isinstance(launch, str):
            self._cool(launch)
            return
        self._environ, self._by_launcher = launch.environment, launch.by_launcher
        self._limit = time.monotonic() + _READY_S
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
        for pipe in (self._input, self._output):
            os.set_blocking(pipe.fileno(), False)

    @property
    def _input(self) -> IO[bytes]:
        assert self._nursery is not None
        assert self._nursery.stdin is not None
        return self._nursery.stdin

    @property
    def _output(self) -> IO[bytes]:
        assert self._nursery is not None
        assert self._nursery.stdout is not None
        return self._nursery.stdout

    @property
    def settled(self) -> bool:
        """True once it is known whether ranks are forked."""
        self._look()
        if self._nursery is None or self._is_ready or self.why:
            return True
        if time.monotonic() >= self._limit:
            self._give_up(f"the nursery was not ready after {_READY_S} s")
        return False

    @property
    def _is_ready(self) -> bool:
        return self._nursery is not None and len(self._ready) == self._experiment.resources.nodes

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that are readable when the nursery has answered."""
        return (self._output.fileno(),) if self._nursery and not self._output.closed else ()

    def fork(self, launch: Launch, log: Path, cwd: Path) -> RunningStep | None:
        """Fork the ranks of an attempt; None if they have to start without a nursery.

        Raises:
            OSError: they cannot be forked, or the nursery is gone.
        """
        self._look()
        if not self._is_ready or self.why:
            return None
        if name := self._difference(launch):
            self._note("cold", why=f"{name} is not as it was when libraries were loaded")
            return None
        self._number += 1
        self._answers.clear()
        self._forked.clear()
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = {n: v for n, v in launch.environment.items() if self._environ.get(n) != v}
        # on other nodes the descriptors of this process lead nowhere
        folder = cwd.resolve() if self._by_launcher else cwd
        request = ForkRequest(
            number=self._number,
            argv=list(launch.rank),
            environ=own,
            ranks=[[dict(rank) for rank in node] for node in launch.forked],
            folder=str(folder),
            log=str(log),
        )
        self._ask(request)
        self._wait()
        tell = self._teller(self._number) if self._by_launcher else None
        refused = [one.text for one in self._answers.values() if one.kind == "refused"]
        if refused:
            if tell is not None:
                tell(signal.SIGKILL)
            raise OSError(refused[0])
        forked = [rank for _, ranks in sorted(self._forked.items()) for rank in ranks]
        return RunningStep(launch, forked, tell)

    def _rank(self, pid: int) -> ForkedRank:
        """Return the rank of a process, which a launcher may have started on another node."""
        gone = self._is_gone
        return ForkedRank(pid, gone, lambda: self._by_launcher or processes.started(pid) is None)

    def _teller(self, number: int) -> Callable[[signal.Signals], None]:
        def tell(what: signal.Signals) -> None:
            with contextlib.suppress(OSError):  # with the nursery its ranks are gone, too
                self._ask(ForkRequest(number=number, signal=what))

        return tell

    def close(self) -> None:
        """End the nursery, and with it what still runs of its ranks."""
        if self._nursery is None:
            return
        with contextlib.suppress(OSError):
            self._input.close()
        try:
            self._nursery.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._nursery.kill()
            self._nursery.wait()
        self._output.close()

    def _difference(self, launch: Launch) -> str:
        """Return a variable by which libraries would load differently in a rank; "" for none."""
        for own in (rank for node in launch.forked for rank in node):
            environ = {**launch.environment, **own}
            loaded = warm_launch.loaded_with(environ, self._experiment)
            if name := warm_launch.difference(self._environ, loaded, launch.prefix):
                return name
        return ""

    def _ask(self, request: ForkRequest) -> None:
        whole, limit = memoryview(fork_messages.line(request)), time.monotonic() + _FORK_S
        try:
            while whole:
                left_s = max(0.0, limit - time.monotonic())
                if not select.select([], [self._input], [], left_s)[1]:
                    raise TimeoutError(f"none in {_FORK_S} s")
                whole = whole[os.write(self._input.fileno(), whole) :]
        except OSError as error:
            self._give_up(f"the nursery takes no requests: {error}")
            raise

    def _wait(self) -> None:
        """Wait for the answers of all nodes to the newest request.

        Raises:
            OSError: a nursery does not answer.
        """
        limit = time.monotonic() + _FORK_S
        while len(self._answers) < len(self._ready):
            if time.monotonic() >= limit:
                self._give_up(f"the nursery forked no rank in {_FORK_S} s")
            if self.why:
                raise ChildProcessError(self.why)
            select.select(self.descriptors, [], [], 1.0)
            self._look()

    def _look(self) -> None:
        """Take the answers that have come."""
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
            self._ready.add(answer.node)
        elif answer.kind == "cold":
            self._cool(answer.text)
        elif answer.kind == "ended":
            if (rank := self._ranks.pop((answer.node, answer.pid), None)) is not None:
                rank.code = answer.code
                self.oom_kills += answer.oom
        elif answer.number == self._number:
            self._answers[answer.node] = answer
            # at once: that one of them has ended may be the next that is heard
            ranks = {(answer.node, pid): self._rank(pid) for pid in answer.pids}
            self._forked[answer.node] = [*ranks.values()]
            self._ranks |= ranks

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
