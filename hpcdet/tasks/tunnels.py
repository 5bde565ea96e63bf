"""The way from a user's own machine to a server on a node: one line of ssh, by the site's tunnel.

``node``     ssh reaches the node, by way of the login node
``reverse``  the node reaches the login node: the job leads a socket there to the server
``relay``    no ssh between nodes: the scheduler carries the bytes (``hpcdet.tasks.relay``)

Every hop ends in a Unix socket, so that no other user of a node on the way can connect; only on
the user's own machine is it a port.
"""

from __future__ import annotations

import getpass
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from hpcdet.store.folder import private_folders
from hpcdet.tasks.folder.task_folder import TaskOrder, TaskPaths, TaskServing, TaskStarted

PORTS = {"notebook": 8888, "tensorboard": 6006}
"""The port on the user's own machine: the server's customary one."""
FROM_LOGIN = ("reverse", "relay")
"""Tunnels that begin at a socket on the login node."""
_AGAIN_S = 10.0
_OPTIONS = ("-o", "ExitOnForwardFailure=yes")


def this_host() -> str:
    """Return the full name of this host, by which other sites reach it, if it has one."""
    short, full = socket.gethostname(), socket.getfqdn()
    return full if full.partition(".")[0] == short.partition(".")[0] else short


def entrance() -> str:
    """Make the folder on the login node in which the socket of a tunnel will lie; mode 0700."""
    folder = Path(tempfile.mkdtemp(prefix="hpcdet-", dir=private_folders.temporary()))
    return str(folder)


def close_entrance(order: TaskOrder) -> None:
    """Remove the folder on the login node, if this is that one."""
    if order.entrance and order.host == this_host():
        shutil.rmtree(order.entrance, ignore_errors=True)


def at_entrance(order: TaskOrder) -> Path:
    """Return the path of the socket on the login node."""
    return Path(order.entrance) / "s"


def ssh_line(
    task: TaskPaths,
    order: TaskOrder,
    started: TaskStarted,
    serving: TaskServing,
    tunnel: str,
    port: int | None = None,
) -> str:
    """Return the command for the user's own machine, quoted for a shell.

    Args:
        tunnel: ``node``, ``reverse`` or ``relay``.
        port: on the user's machine; None: the customary one of ``PORTS``.
    """
    user = getpass.getuser()
    way = "-N" if tunnel != "relay" else ""
    target = at_entrance(order) if tunnel in FROM_LOGIN else Path(serving.socket)
    host = order.host if tunnel in FROM_LOGIN else started.host
    words = ["ssh", *filter(None, [way]), *_OPTIONS]
    if host.partition(".")[0] != order.host.partition(".")[0]:
        words += ["-J", f"{user}@{order.host}"]
    words += ["-L", f"{port or PORTS[order.kind]}:{target}", f"{user}@{host}"]
    if tunnel == "relay":  # the remote shell reads this once more
        words.append(shlex.join([sys.executable, "-Pm", "hpcdet.tasks.relay", str(task.root)]))
    return shlex.join(words)


class ReverseTunnel:
    """From the node to a socket on the login node, made again whenever it breaks.

    Args:
        log: what ssh says.
    """

    def __init__(self, order: TaskOrder, path: Path, log: IO[bytes]) -> None:
        self._order, self._path, self._log = order, path, log
        self._process: subprocess.Popen[bytes] | None = None
        self._next = 0.0

    def see_to_it(self) -> None:
        """Connect unless it is connected, at most every few seconds."""
        if self._process is not None and self._process.poll() is None:
            return
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _AGAIN_S
        there, host = at_entrance(self._order), self._order.host
        ssh = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", *_OPTIONS]
        # sshd does not remove the socket of a tunnel that broke, and makes none in its place
        remove = [*ssh, host, shlex.join(["rm", "-f", "--", str(there)])]
        lead = [*ssh, "-N", "-R", f"{there}:{self._path}", host]
        script = f"{shlex.join(remove)} && exec {shlex.join(lead)}"
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def close(self) -> None:
        """End the connection."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
