"""Where the server listens: a Unix socket of its user alone, or a loopback port where asked for."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcdet.errors import HpcdetError, Unavailable, UsageError
from hpcdet.store.folder import private_folders

PORT = 8765
"""The port on the user's own machine that the printed ssh line proposes."""
_BACKLOG = 64


@dataclass(frozen=True)
class Listening:
    """A bound socket; ``path`` is None where it is a port, ``port`` 0 where it is a path."""

    socket: socket.socket
    path: Path | None
    port: int

    def url(self, token: str) -> str:
        """The address in a browser, with the token."""
        return f"http://localhost:{self.port or PORT}/?token={token}"

    def ssh(self, user: str, host: str) -> str:
        """The line that leads a port of the user's own machine here."""
        there = str(self.path) if self.path is not None else f"127.0.0.1:{self.port}"
        return f"ssh -N -o ExitOnForwardFailure=yes -L {self.port or PORT}:{there} {user}@{host}"


@contextlib.contextmanager
def listening(port: int | None) -> Iterator[Listening]:
    """Listen on a new Unix socket, mode 0600 in a folder 0700, or on a port of 127.0.0.1.

    Args:
        port: None: a Unix socket; 0: any free port.

    Raises:
        UsageError: the port is taken, or may not be used.
        Unavailable: there is no place for a socket.
    """
    if port is not None:
        yield _on_port(port)
        return
    folder = _folder()
    try:
        path = folder / "s"
        found = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)  # bind makes the file with what the umask leaves
        try:
            found.bind(str(path))
        finally:
            os.umask(before)
        found.listen(_BACKLOG)
        with found:
            yield Listening(found, path, 0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _folder() -> Path:
    """Make a new private folder in ``$XDG_RUNTIME_DIR`` if that is sound, else on a local disk."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and len(os.fsencode(runtime)) < private_folders.LONGEST_SOCKET - 20:
        with contextlib.suppress(OSError, HpcdetError):
            private_folders.refuse_foreign(Path(runtime), "")
            private_folders.refuse_exchangeable(Path(runtime), "")
            return Path(tempfile.mkdtemp(prefix="hpcdet-", dir=runtime))
    return private_folders.of_sockets()


def _on_port(port: int) -> Listening:
    found = socket.socket(socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(("127.0.0.1", port))
        found.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        found.close()
        what = getattr(error, "strerror", None) or str(error)
        if isinstance(error, OSError) and error.errno not in _OF_THE_PORT:
            raise Unavailable(what, where=f"--port {port}") from error
        raise UsageError(what, where=f"--port {port}", hint="--port 0 takes a free one") from error
    return Listening(found, None, found.getsockname()[1])


_OF_THE_PORT = (errno.EACCES, errno.EADDRINUSE)
"""Errors of one port, where another may do."""
