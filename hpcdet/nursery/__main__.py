"""A nursery, ``python -Pm hpcdet.nursery [MODULE ...]``: it forks ranks on request.

Requests come on its standard input, and answers go to its standard output.

The last argument is padding: ranks write their command lines over it. One thread: a rank is a copy
of this process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import sys
from types import FrameType

signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGUSR2))  # before imports

from hpcdet.nursery import imports  # noqa: E402
from hpcdet.nursery.forked_rank import Descriptors, Rank  # noqa: E402
from hpcdet.nursery.imports import Unfit  # noqa: E402
from hpcdet.process import command_line, ranks, signals  # noqa: E402
from hpcdet.warm import fork_messages, oom_kills  # noqa: E402
from hpcdet.warm.fork_messages import Answer, ForkRequest  # noqa: E402

_PIECE = 1 << 16


class Nursery:
    """The loop of a nursery: requests, notices and ends of ranks, one after the other."""

    def __init__(self) -> None:
        self._requests, self._answers = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)  # what imports print is no answer
        self._wake, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._node = ranks.node_of_step()
        self._heard: list[signal.Signals] = []
        self._ranks: dict[int, int] = {}  # process: number of the request
        self._groups: dict[int, int] = {}  # the other way round, of each first rank
        self._oom_kills = 0
        self._rest = b""

    def begin(self, wanted: list[str]) -> bool:
        """Import, and say what came of it; False if no rank can be forked."""
        try:
            self._program = imports.load(wanted)
            imports.probe()
        except Unfit as why:
            self._say(Answer("cold", text=str(why)))
            return False
        self._say(Answer("ready"))
        return True

    def serve(self) -> None:
        """Fork ranks until the requests end. Ranks that run then end with this process."""
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (*signals.NOTICES, signal.SIGCHLD):
            signal.signal(number, self._hear)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.NOTICES)
        while True:
            ready, _, _ = select.select([self._requests, self._wake], [], [])
            with contextlib.suppress(BlockingIOError):
                while os.read(self._wake, _PIECE):
                    pass
            while self._heard:
                number = self._heard.pop()
                for pid in self._ranks:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
            self._reap()
            if self._requests in ready and not self._take():
                return

    def _hear(self, number: int, _: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._heard.append(signal.Signals(number))

    def _tell(self, request: ForkRequest) -> None:
        """Send a signal to the ranks of a request, and to all that is in their group."""
        with contextlib.suppress(ProcessLookupError, KeyError):
            os.killpg(self._groups[request.number], request.signal)
        if request.number not in self._ranks.values():  # what they left was swept up
            self._groups.pop(request.number, None)

    def _reap(self) -> None:
        for pid, number in list(self._ranks.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._ranks[pid]
                code = os.waitstatus_to_exitcode(status)
                oom = code == -signal.SIGKILL and oom_kills.of_group() > self._oom_kills
                self._say(Answer("ended", number=number, pid=pid, code=code, oom=oom))

    def _take(self) -> bool:
        """Take what has come of requests; False once there will be no more."""
        piece = os.read(self._requests, _PIECE)
        *whole, self._rest = (self._rest + piece).split(b"\n")
        for raw in whole:
            self._do(fork_messages.read(ForkRequest, raw))
        return bool(piece)

    def _do(self, request: ForkRequest) -> None:
        if request.signal:
            self._tell(request)
            return
        if not self._ranks:
            self._oom_kills = oom_kills.of_group()
        pids: list[int] = []
        try:
            descriptors = Descriptors(request)
            try:
                for own in request.ranks[self._node]:
                    group = pids[0] if pids else 0
                    rank = Rank(self._program, request, own, group, descriptors, self._leave)
                    pids.append(rank.fork())
            finally:
                descriptors.close()
        except OSError as error:
            # a part of the ranks would wait for the others while the attempt is over
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            self._say(Answer("refused", number=request.number, text=str(error)))
            return
        self._ranks |= dict.fromkeys(pids, request.number)
        self._groups[request.number] = pids[0]
        self._say(Answer("forked", number=request.number, pids=pids))

    def _leave(self) -> None:
        """In a rank: be nothing of a nursery."""
        signal.set_wakeup_fd(-1)
        for fd in (self._requests, self._answers, self._wake, self._writer):
            os.close(fd)
        self.__dict__.clear()

    def _say(self, answer: Answer) -> None:
        with contextlib.suppress(BrokenPipeError):
            whole = fork_messages.line(dataclasses.replace(answer, node=self._node))
            while whole:
                whole = whole[os.write(self._answers, whole) :]


def main(argv: list[str]) -> int:
    """Run a nursery; returns the exit code: 1 if no rank can be forked here."""
    wanted = argv[1:-1]
    nursery = Nursery()
    command_line.show([sys.executable, "-Pm", "hpcdet.nursery", *wanted])
    if not nursery.begin(wanted):
        return 1
    nursery.serve()
    return 0


if __name__ == "__main__":
    code = main(sys.argv)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
