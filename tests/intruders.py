"""What an intruder on the same network says to ports that are not his. Needs no torch.

``python -m tests.intruders`` attacks every listening port of others in its network namespace and
prints what it got for that, one JSON object; see ``main``.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

PREAMBLE = struct.Struct("=6Q")
"""gloo's header over TCP: bytes in all, operation, slot, offset, length, offset there."""
SENDS, SEND_READY, RECV_READY = 1, 2, 3
NUMBERS = range(4)
"""What gloo's ranks call their connections: how many of them there are."""


def be_a_rank_for_gloo(port: int, number: int, address: str = "127.0.0.1") -> socket.socket:
    """Be first at its port, with one of the numbers by which it knows its peers."""
    connection = socket.create_connection((address, port), timeout=5)
    connection.sendall(struct.pack("=q", number))
    return connection


def talk_gloo(connection: socket.socket, answer: bytes | None = None) -> Iterator[bytes]:
    """Ask for all that is offered and give what is asked for; yields what is got, with headers.

    Args:
        answer: repeated for as long as something is to be received; None: nothing is given.
    """
    while True:
        header = _exactly(connection, PREAMBLE.size)
        if len(header) < PREAMBLE.size:
            return
        nbytes, operation, slot, _, length, _ = PREAMBLE.unpack(header)
        body = _exactly(connection, nbytes - PREAMBLE.size) if operation == SENDS else b""
        yield header + body
        if operation == SEND_READY:
            connection.sendall(PREAMBLE.pack(PREAMBLE.size, RECV_READY, slot, 0, length, 0))
        elif operation == RECV_READY and answer is not None:
            data = (answer * (length // len(answer) + 1))[:length]
            size = PREAMBLE.size + length
            connection.sendall(PREAMBLE.pack(size, SENDS, slot, 0, length, 0) + data)


def _exactly(connection: socket.socket, length: int) -> bytes:
    got = b""
    while len(got) < length and (more := connection.recv(length - len(got))):
        got += more
    return got
