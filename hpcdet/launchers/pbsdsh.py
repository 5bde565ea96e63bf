"""``pbsdsh``: PBS's own launcher, where there is no MPI.

Ranks of the first host are processes of the worker. Each other one is started by a ``pbsdsh`` of
its own, which takes a program without the variables, the folder or the output of who calls it, ends
well whatever became of that, and passes SIGTERM on. So this module stands between it and the worker
(``python -m hpcdet.launchers.pbsdsh PROGRAM FOLDER -- RANK ...``): it hands on what a rank needs by
a private file, and ends as the rank does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcdet.launchers.common import Launch, NurseryRequest, RankDeath, StepRequest

_MODULE = ("-Pm", "hpcdet.launchers.pbsdsh")
_NOTICES = (signal.SIGTERM, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1
_SIGNALED = 256
_STATUS = re.compile(r"exit status (-?\d+)")
_HOST = "HPCDET_RANK_HOST"
_OF_A_NODE = ("PBS_", "TMPDIR", "HOSTNAME")


class Pbsdsh:
    """``common.Launcher`` for ``pbsdsh``."""

    command = "pbsdsh"
    starters = frozenset({"pbsdsh"})
    contains = False
    divides = False
    alone = ("-n", "0", "--")

    def step(self, request: StepRequest) -> Launch:
        """See ``common.Launcher``."""
        ranks = tuple(_rank(number, request) for number in range(request.ranks))
        if request.nodes == 1 and not request.hosts:
            return Launch(request.rank, request.environ, ranks, by_launcher=False)
        program = request.command or self.command
        words = (request.python, *_MODULE, program, str(request.folder), "--", *request.rank)
        return Launch(words, request.environ, ranks, by_launcher=False)

    def nursery(self, request: NurseryRequest) -> Launch | str:
        """See ``common.Launcher``."""
        return "pbsdsh has no standard input"

    def listener(self, args: Sequence[str], command: Sequence[str]) -> tuple[str, ...]:
        """See ``common.Launcher``."""
        return ()

    def objection_to_mpi(self, args: Sequence[str]) -> tuple[str, str]:
        """See ``common.Launcher``."""
        hint = "site file: launcher: {kind: mpirun} (docs/guides/sites.md); or backend: auto"
        return "this launcher starts processes without MPI", hint

    def death(self, said: str) -> RankDeath | None:
        """See ``common.Launcher``. Each rank's end is that of a process of the worker."""
        return None

    def first_failed(self, said: str) -> int | None:
        """See ``common.Launcher``."""
        return None

    def lost_node(self, said: str) -> bool:
        """See ``common.Launcher``."""
        return False


def _rank(rank: int, request: StepRequest) -> dict[str, str]:
    here = request.ranks_per_node
    where = {_HOST: request.hosts[rank // here]} if request.hosts else {}
    return where | {
        "RANK": str(rank),
        "WORLD_SIZE": str(request.ranks),
        "LOCAL_RANK": str(rank % here),
        "LOCAL_WORLD_SIZE": str(here),
        "NODE_RANK": str(rank // here),
    }


def start(program: str, folder: Path, rank: list[str], environ: Mapping[str, str]) -> int:
    """Become a rank of this host, or start one elsewhere and return how it ended."""
    lines = Path(environ["PBS_NODEFILE"]).read_text().split()
    number = int(environ["RANK"])
    if host := environ.get(_HOST):  # of a job that has other trials on its other hosts
        number = lines.index(host) + int(environ["LOCAL_RANK"])
    if lines[number] == lines[0]:
        os.execvp(rank[0], rank)
    letter = folder / f"rank-{environ['RANK']}-{secrets.token_hex(8)}.json"
    carried = {n: value for n, value in environ.items() if not n.startswith(_OF_A_NODE)}
    said = {
        "argv": rank,
        "environ": carried,
        "folder": os.getcwd(),
        "output": str(Path("/proc/self/fd/1").readlink()),
    }
    with os.fdopen(os.open(letter, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(said, file)
    here = [sys.executable, *_MODULE, "--there", str(letter)]
    try:
        return _wait([program, "-n", str(number), "--", *here])
    finally:
        letter.unlink(missing_ok=True)


def _wait(argv: list[str]) -> int:
    parent = os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def prepare() -> None:
        # it passes on what ends it, and so ends the rank when this process is killed
        for number in _NOTICES:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOTICES)
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    process = subprocess.Popen(
        argv, stderr=subprocess.PIPE, text=True, process_group=0, preexec_fn=prepare
    )

    def tell(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)

    for number in _NOTICES:
        signal.signal(number, tell)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOTICES)
    assert process.stderr is not None
    status = 0
    for line in process.stderr:
        if found := _STATUS.search(line):
            status = int(found[1])
        else:
            sys.stderr.write(line)
    process.wait()
    if status > _SIGNALED:
        return 128 + status - _SIGNALED
    return status or process.returncode


def become(letter: Path) -> None:
    """Become the rank that a letter describes, on whatever host this is."""
    said = json.loads(letter.read_text())
    letter.unlink()
    with contextlib.suppress(OSError):
        log = os.open(said["output"], os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
    os.chdir(said["folder"])
    signal.pthread_sigmask(signal.SIG_BLOCK, _NOTICES)  # until the rank can handle them
    environ = {**os.environ, **said["environ"], "HOSTNAME": socket.gethostname()}
    os.execvpe(said["argv"][0], said["argv"], environ)


LAUNCHER = Pbsdsh()

if __name__ == "__main__":
    first, *rest = sys.argv[1:]
    if first == "--there":
        become(Path(rest[0]))
    sys.exit(start(first, Path(rest[0]), rest[2:], os.environ))
