"""Unix sockets that their user alone can reach, the token behind them, and requests to them."""

from __future__ import annotations

import contextlib
import http.client
import secrets
import socket
import tempfile
from pathlib import Path

from hpcdet.errors import Unavailable
from hpcdet.store.folder import private_folders
from hpcdet.store.fs import files

LONGEST = 107
"""Bytes that the path of a Unix socket may have (``sun_path`` in unix(7), and its end)."""
_ROOM = 60
"""Of these, for what lies in the folder: a notebook's kernels have names of 45."""
_TIMEOUT_S = 10.0


def socket_folder() -> Path:
    """Make a new folder, mode 0700, on this host's own disk, for sockets.

    Raises:
        Unavailable: there is no place for one whose path is short enough.
    """
    for base in (tempfile.gettempdir(), "/tmp", "/dev/shm"):
        if len(base.encode()) + len("/hpcdet-00000000") + _ROOM > LONGEST:
            continue
        with contextlib.suppress(OSError, Unavailable):
            private_folders.refuse_exchangeable(Path(base, "hpcdet-0"), "")
            return Path(tempfile.mkdtemp(prefix="hpcdet-", dir=base))  # 0700, whatever the umask
    raise Unavailable(
        "there is no place for a socket on this host",
        where=tempfile.gettempdir(),
        hint="let TMPDIR name a folder on the host's own disk, with a short path",
    )


def write_token(path: Path) -> str:
    """Write a new token of 256 random bits into a file, mode 0600, and return it."""
    token = secrets.token_urlsafe(32)
    files.write_once(path, token.encode())
    return token


def read_token(path: Path) -> str:
    """Return the token in a file. Raises OSError as ``open``."""
    return files.read(path).decode()


class SocketConnection(http.client.HTTPConnection):
    """A connection for HTTP requests to a server on a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


def status(path: Path, address: str, token: str) -> int | None:
    """Return the status of a GET request through a socket; None without an answer.

    Args:
        address: path and query of the URL.
    """
    connection = SocketConnection(path)
    try:
        connection.request("GET", address, headers={"Authorization": f"token {token}"})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
