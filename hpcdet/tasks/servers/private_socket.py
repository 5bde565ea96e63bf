"""The token behind a Unix socket, and requests to a server on one."""

from __future__ import annotations

import http.client
import secrets
import socket
from pathlib import Path

from hpcdet.store.fs import files

_TIMEOUT_S = 10.0


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
