"""Live processes of this machine, distinguished from later ones with the same number.

Linux's ``/proc`` is read directly: a process is its number together with its start time, and a
session is everything a script started that did not leave it on purpose.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_PROC = Path("/proc")
_STATE, _SESSION, _START = 0, 3, 19  # fields of /proc/PID/stat behind the command name


def _stat(pid: int) -> list[str] | None:
    try:
        # a name is any bytes: one that was cut in the middle of a letter is no UTF-8
        text = (_PROC / str(pid) / "stat").read_text("latin-1")
    except OSError:
        return None
    # the name is in brackets and may itself hold blanks and brackets
    return text[text.rindex(")") + 2 :].split()


def started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is not there or a zombie."""
    fields = _stat(pid)
    if fields is None or fields[_STATE] in "ZX":
        return None
    return int(fields[_START])


def alive(pid: int, start: int) -> bool:
    """Whether the process that had this number and start time still runs."""
    return started(pid) == start


def members(session: int) -> Iterator[int]:
    """The living processes of a session."""
    for name in os.listdir(_PROC):
        if not name.isdecimal():
            continue
        fields = _stat(int(name))
        if fields is not None and fields[_STATE] not in "ZX" and int(fields[_SESSION]) == session:
            yield int(name)


def session_alive(leader: int, start: int) -> bool:
    """Whether anything of the session lives whose leader had this number and start time.

    A number stays taken while a session bears it: if it belongs to a process with another start
    time, the session we mean has ended.
    """
    fields = _stat(leader)
    if fields is not None:
        if int(fields[_START]) != start:
            return False
        if fields[_STATE] not in "ZX":
            return True
    return any(True for _ in members(leader))


def kill_session(leader: int) -> None:
    """SIGKILL everything in a session, and what it starts meanwhile; returns when it is gone."""
    while pids := list(members(leader)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def ended(
    argv: Sequence[str], variables: Mapping[str, str] | None = None, timeout: float | None = None
) -> tuple[int, str]:
    """Run a command in a session of its own; return its exit code and what it printed.

    None of its processes outlives an exception: an interruption, or the timeout.

    Args:
        variables: its environment; None: this process's.

    Raises:
        subprocess.TimeoutExpired: it has not ended after ``timeout`` seconds.
    """
    with subprocess.Popen(
        argv,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=timeout)
        except BaseException:
            kill_session(process.pid)
            raise
    return process.returncode, said
