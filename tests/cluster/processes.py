"""Processes of a private cluster: start, find again by their mark, end without a trace."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

MARK = "HPCDET_TEST_CLUSTER"
"""Environment variable that every daemon of a cluster carries; its value is the state folder."""


class ClusterFailed(Exception):
    """A daemon did not come up; the message holds the end of its log."""


def start(argv: Sequence[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a daemon in a session of its own, its output appended to ``log``."""
    with log.open("ab") as out:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=dict(env),
            start_new_session=True,
            cwd="/",
        )


def until(
    condition: Callable[[], bool],
    what: str,
    logs: Iterable[Path] = (),
    timeout_s: float = 180.0,
) -> None:
    """Wait for a condition.

    Raises:
        ClusterFailed: it did not come true; with the last lines of the logs.
    """
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            tails = "".join(f"\n--- {log.name}\n{tail(log)}" for log in logs)
            raise ClusterFailed(f"no {what} within {timeout_s:.0f} s{tails}")
        time.sleep(0.1)


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a text file; empty if there is none."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; the kernel names them."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def listens(port: int) -> bool:
    """Whether somebody accepts connections on a port of this machine."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def started_at(pid: int) -> str:
    """Start time of a process in the kernel's ticks, which tells it from a later one of the same
    number; empty if it is not alive."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def of_cluster(root: Path) -> list[int]:
    """Every living process that belongs to the cluster in ``root``: its daemons, steps, and what
    jobs and tests started with its configuration in their environment; never the caller or its
    ancestors."""
    spared = set(_ancestors())
    marks = (f"{MARK}={root}\0".encode(), f"SLURM_CONF={root}/".encode())
    path = f"{root}/".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in spared:
            continue
        with contextlib.suppress(OSError):
            environ = Path(f"/proc/{entry}/environ").read_bytes() + b"\0"
            command = Path(f"/proc/{entry}/cmdline").read_bytes()
            if any(mark in environ for mark in marks) or path in command:
                found.append(int(entry))
    return found


def end_all(root: Path) -> None:
    """Kill every process of the cluster, again and again until none is left."""
    end = time.monotonic() + 60
    while pids := of_cluster(root):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            raise ClusterFailed(f"processes that cannot be killed: {pids}")
        time.sleep(0.05)


def _ancestors() -> Iterable[int]:
    pid = os.getpid()
    while pid > 0:
        yield pid
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return
        pid = int(stat.rpartition(")")[2].split()[1])
