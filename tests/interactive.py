"""Helpers for notebooks and their like: requests over sockets, another user, a private sshd."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import importlib.util
import os
import pty
import shutil
import socket
import subprocess
import termios
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcdet.tasks.servers.private_socket import SocketConnection
from tests.experiments import until

NOBODY = 65534
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")


def no_jupyter() -> str:
    """Why there is no JupyterLab here; "" if there is one."""
    if importlib.util.find_spec("jupyterlab") is None:
        return "JupyterLab is not installed: make test-interactive"
    return ""


def no_sshd() -> str:
    """Why no private sshd can run here; "" if one can."""
    if SSHD is None or shutil.which("ssh") is None:
        return "no sshd or ssh is installed (see scripts/packages.sh)"
    return "" if os.getuid() == 0 else "a private sshd is started by root"


def get(
    path: Path | str, address: str, token: str = "", host: str = "localhost"
) -> tuple[int, str]:
    """Status and body of a GET request through a Unix socket."""
    connection = SocketConnection(Path(path))
    headers = {"Host": host}
    if token:
        headers["Authorization"] = f"token {token}"
    with contextlib.closing(connection):
        connection.putrequest("GET", address, skip_host=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def another_user_tries(*paths: str) -> list[str]:
    """What another Unix user gets at some paths: a line for each try. Needs root."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        with os.fdopen(write, "w") as pipe:
            for path in paths:
                print(*_tries(path), sep="\n", file=pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said.splitlines()


def _tries(path: str) -> Iterator[str]:
    tries: dict[str, Callable[[], object]] = {
        "connect": lambda: socket.socket(socket.AF_UNIX).connect(path),
        "read": lambda: Path(path).read_text(),
        "list": lambda: os.listdir(Path(path).parent),
        "rename": lambda: Path(path).rename(f"{path}x"),
        "remove": lambda: os.unlink(path),
    }
    for name, call in tries.items():
        try:
            yield f"{name} got {call()}"
        except OSError as error:
            yield f"{name} {type(error).__name__}"


def listeners(pids: set[int]) -> list[str]:
    """Addresses of TCP sockets at which these processes listen, as ``/proc/net`` has them."""
    inodes = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                inodes[f"socket:[{fields[9]}]"] = fields[1]
    found = []
    for pid in pids:
        for fd in Path("/proc", str(pid), "fd").iterdir():
            with contextlib.suppress(OSError):
                found += [inodes[link] for link in [str(fd.readlink())] if link in inodes]
    return found


@dataclass(frozen=True)
class Sshd:
    """A private sshd on a port of the loopback.

    Attributes:
        command: a folder with an ``ssh`` that finds it under any name of a host.
    """

    command: Path

    def environment(self) -> dict[str, str]:
        """Variables with which ``ssh`` is the one above."""
        return {"PATH": f"{self.command}:{os.environ['PATH']}"}


@contextlib.contextmanager
def private_sshd(folder: Path, **environment: str) -> Iterator[Sshd]:
    """Run an sshd that lets this user in by a key of its own, as long as the context lasts.

    Args:
        environment: variables that commands find there.
    """
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(key, check=True, stdin=subprocess.DEVNULL)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lines = {
        "ListenAddress": f"127.0.0.1:{port}",
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "user.pub",
        "PidFile": folder / "pid",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "AllowStreamLocalForwarding": "yes",
        "SetEnv": " ".join(f"{name}={value}" for name, value in environment.items()),
    }
    text = "".join(f"{key} {value}\n" for key, value in lines.items() if value)
    (folder / "sshd.conf").write_text(text)
    client = {
        "HostName": "127.0.0.1",
        "Port": port,
        "User": getpass.getuser(),
        "IdentityFile": folder / "user",
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "no",
        "LogLevel": "ERROR",
    }
    text = "".join(f"    {key} {value}\n" for key, value in client.items())
    (folder / "ssh.conf").write_text(f"Host *\n{text}")
    command = folder / "bin"
    command.mkdir()
    wrapper = command / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh.conf "$@"\n')
    wrapper.chmod(0o755)
    assert SSHD is not None
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's own, empty
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(folder / "sshd.conf")], stdout=log, stderr=log
        )
    try:
        until(lambda: (folder / "pid").exists(), lambda: (folder / "log").read_text(), 60)
        yield Sshd(command)
    finally:
        daemon.terminate()
        daemon.wait()


@contextlib.contextmanager
def tunnel(line: list[str], sshd: Sshd, entrance: Path) -> Iterator[Path]:
    """Run the line that ``url`` prints, its port on this machine replaced by a socket.

    Args:
        line: its words.
        entrance: the socket, which is not there yet.
    """
    place = line.index("-L") + 1
    _, _, target = line[place].partition(":")
    words = [*line[:place], f"{entrance}:{target}", *line[place + 1 :]]
    process = subprocess.Popen(
        words, env={**os.environ, **sshd.environment()}, stdin=subprocess.PIPE
    )
    try:
        until(lambda: entrance.exists() or process.poll() is not None)
        assert process.poll() is None
        yield entrance
    finally:
        process.terminate()
        process.wait()


def in_terminal(argv: list[str], said: str) -> tuple[int, str]:
    """Exit code and output of a command that has a terminal, at which somebody types."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        argv, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, preexec_fn=_own
    )
    os.close(slave)
    os.write(master, said.encode())
    shown = b""
    with contextlib.suppress(OSError):  # what a terminal gives at its end
        while more := os.read(master, 4096):
            shown += more
    os.close(master)
    return process.wait(), shown.decode(errors="replace")


def _own() -> None:
    """Make standard input the terminal by which the new session is controlled."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
