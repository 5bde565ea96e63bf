"""A shell command that Determined runs once on each node, where hpcdet starts several ranks.

Only the first rank of a node runs the shell. A launcher of Determined's in it
(``hpcdet.determined.launch``) announces its command by a file in the attempt's folder, and the
other ranks of the node run the same: with what the shell has changed of the environment, where it
has redirected their output to, and with their statuses as part of the launcher's own. They end
when the shell does.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcdet.process.location import SAYS
from hpcdet.process.ranks import Ranks
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.records import Verdict
from hpcdet.store.fs import files
from hpcdet.store.fs.json_record import JsonRecord
from hpcdet.train.meeting.rank0_listener import opened

BEFORE = "HPCDET_SHELL"
"""A private folder, and in it the environment that the shell began with."""
_ENVIRONMENT = "environment.json"
_SHELLS_OWN = frozenset({BEFORE, "_", "OLDPWD", "PWD", "SHLVL"})
_LOOK_S = 0.1
_GRACE_S = 10.0
"""How long a command may go on after that of another rank has failed."""
_ANSWER_BYTES = 4096


@dataclass(frozen=True)
class Launched(JsonRecord):
    """The next task of the other ranks of a node.

    Attributes:
        argv: the command; none where the shell has ended.
        cwd: where it runs.
        changed: variables that the shell has set, to what.
        removed: those that it has unset.
        socket: of the launcher, which hands on its output and waits for statuses.
        status: of the shell, where it has ended.
    """

    argv: Sequence[str] = ()
    cwd: str = ""
    changed: Mapping[str, str] = field(default_factory=dict)
    removed: Sequence[str] = ()
    socket: str = ""
    status: int = 0


@dataclass(frozen=True)
class NodeResult:
    """How the command ended on one rank: its status, and its error if there was one."""

    status: int
    error: str = ""


def begin(folder: Path) -> dict[str, str]:
    """Before the shell: what to add to its environment. ``folder``: private, for its time."""
    output = [os.fstat(fd)[:3] for fd in (1, 2)]
    known = {"environment": dict(os.environ), "output": output}
    files.write_once(folder / _ENVIRONMENT, files.canonical(known))
    return {BEFORE: str(folder)}


def launch(attempt: AttemptPaths, ranks: Ranks, argv: Sequence[str]) -> int | None:
    """Run a command on all ranks of this node; the highest status, as a shell sees it.

    Returns:
        None where this process is not below a shell that ``begin`` prepared: nothing is run.

    Raises:
        OSError: the command cannot be started.
    """
    folder = os.environ.pop(BEFORE, "")
    known = files.read_json(Path(folder) / _ENVIRONMENT) if folder else None
    if not isinstance(known, dict):
        return None
    env = os.environ | ranks.variables()
    with socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder) / f"{os.getpid()}.sock")
        with opened(Path(folder)) as inside:  # however long its own path is
            listener.bind(f"{inside}/{Path(path).name}")
        listener.listen(ranks.local_world)
        before = known["environment"]
        now = {name: text for name, text in os.environ.items() if name not in _SHELLS_OWN}
        launched = Launched(
            list(argv),
            os.getcwd(),
            {name: text for name, text in now.items() if before.get(name) != text},
            [name for name in before if name not in os.environ],
            path,
        )
        child = subprocess.Popen(argv, env=env)
        _write(attempt, ranks, launched)
        redirected = [list(os.fstat(fd)[:3]) != known["output"][fd - 1] for fd in (1, 2)]
        answers = _gather(listener, child, ranks.local_world - 1, redirected)
    worst = max(answers, key=lambda answer: answer.status, default=NodeResult(0))
    if worst.error:
        Verdict("fail", "error", error=worst.error).write_once(Path(os.environ[SAYS]))
    return max(_as_shell(child.wait()), worst.status)


def end(attempt: AttemptPaths, ranks: Ranks, status: int) -> None:
    """Let the other ranks of this node go: the shell has ended."""
    _write(attempt, ranks, Launched(status=status))


def follow(
    attempt: AttemptPaths,
    ranks: Ranks,
    run: Callable[[Launched, Mapping[str, str], Sequence[int]], NodeResult],
) -> int:
    """Run on this rank what the shell on the node's first rank launches; the shell's status.

    Args:
        run: runs a command in an environment, with its output and errors to two descriptors.
    """
    for number in itertools.count(1):
        path = attempt.launched(ranks.node, number)
        while (launched := Launched.read(path)) is None:
            time.sleep(_LOOK_S)
        if not launched.argv:
            return launched.status
        env = {name: text for name, text in os.environ.items() if name not in launched.removed}
        env |= launched.changed
        with socket.socket(socket.AF_UNIX) as connection:
            there = Path(launched.socket)
            with opened(there.parent) as inside:
                connection.connect(f"{inside}/{there.name}")
            said, given, _, _ = socket.recv_fds(connection, 2, 2)
            if len(said) != 2:  # the launcher is gone
                return os.EX_TEMPFAIL
            output = [given.pop(0) if said[n : n + 1] == b"r" else n + 1 for n in (0, 1)]
            answer = run(launched, env, output)
            for fd in {*output} - {1, 2}:
                os.close(fd)
            with contextlib.suppress(OSError):  # the launcher's end is not this rank's fault
                text = f"{_as_shell(answer.status)} {answer.error}"
                connection.sendall(text.encode()[:_ANSWER_BYTES])
    raise AssertionError("numbers never end")


def _gather(
    listener: socket.socket, child: subprocess.Popen[bytes], others: int, redirected: Sequence[bool]
) -> list[NodeResult]:
    """Wait for the command of this rank and those of the others."""
    listener.settimeout(_LOOK_S)
    waiting: list[socket.socket] = []
    while len(waiting) < others:
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            if _is_ours(connection):
                given = [fd for fd in (1, 2) if redirected[fd - 1]]
                said = b"".join(b"r" if one else b"-" for one in redirected)
                socket.send_fds(connection, [said], given)
                waiting.append(connection)
    answers: list[NodeResult] = []
    failed_at = None
    for connection in waiting:
        connection.settimeout(_LOOK_S)
    while waiting or child.poll() is None:
        for connection in waiting[:]:
            with contextlib.suppress(TimeoutError):
                text = connection.recv(_ANSWER_BYTES).decode(errors="replace")
                status, _, error = text.partition(" ")
                answers.append(NodeResult(int(status or 1), error))
                waiting.remove(connection)
                connection.close()
        if not waiting:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_LOOK_S)
        if any(answer.status for answer in answers) and child.poll() is None:
            failed_at = failed_at or time.monotonic()
            if time.monotonic() - failed_at > _GRACE_S:
                child.kill()
    return answers


def _is_ours(connection: socket.socket) -> bool:
    """Whether the process at the other end is this user's."""
    form = "3i"
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form))
    if struct.unpack(form, said)[1] == os.getuid():
        return True
    connection.close()
    return False


def _as_shell(status: int) -> int:
    """A status as ``$?`` has it: that of a signal is above 128."""
    return 128 - status if status < 0 else status


def _write(attempt: AttemptPaths, ranks: Ranks, launched: Launched) -> None:
    for number in itertools.count(1):
        if launched.write_once(attempt.launched(ranks.node, number)):
            return
