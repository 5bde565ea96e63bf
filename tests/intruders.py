"""What an intruder on the same network says to ports that are not his. Needs no torch."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

UID = 54_321
"""Of a user without an account."""
PREAMBLE = struct.Struct("=6Q")
"""gloo's header over TCP: bytes in all, operation, slot, offset, length, offset there."""
SENDS, SEND_READY, RECV_READY = 1, 2, 3
NUMBERS = range(4)
"""What gloo's ranks call their connections: how many of them there are."""
PROOF_BYTES = 32
HELD = 200
"""Silent connections at a time."""
_SETNS_NETWORK = 0x40000000


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


@dataclass
class Booty:
    """What an intruder got.

    Attributes:
        ports: at which he was.
        bodies: lengths of what gloo's ranks sent him, without headers, for each connection.
        said: what any port answered to what is not gloo.
        sockets: Unix sockets of others that he could connect to.
    """

    ports: set[int] = field(default_factory=set)
    bodies: list[list[int]] = field(default_factory=list)
    said: list[bytes] = field(default_factory=list)
    sockets: list[str] = field(default_factory=list)
    connections: int = 0

    @property
    def proofs(self) -> int:
        return sum(bodies[:1] == [PROOF_BYTES] for bodies in self.bodies)

    @property
    def more_than_proofs(self) -> bool:
        return any(bodies not in ([], [PROOF_BYTES]) for bodies in self.bodies)


def besiege(namespace: str, quits: Connection, tells: Connection, rich: Event) -> None:
    """Attack all ports in a network namespace as another user, until told to quit; tell the booty.

    Args:
        rich: set once he gets more than proofs.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    "x".encode("idna")  # what is imported for it is the other user's
    with Path(namespace).open() as opened:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.setns(opened.fileno(), _SETNS_NETWORK) == 0, os.strerror(ctypes.get_errno())
    os.setgroups([])
    os.setgid(UID)
    os.setuid(UID)
    booty = Booty()
    held: deque[socket.socket] = deque()
    while not quits.poll():
        for address, port in _listening():
            if port not in booty.ports:
                booty.ports.add(port)
                for number in NUMBERS:
                    _begin(_gloo, booty, address, port, number, rich)
                for said in _phrases():
                    _begin(_say, booty, address, port, said)
            _hold(booty, held, address, port)
        _knock_at_sockets(booty)
        time.sleep(0.0005)
    tells.send(booty)


def _begin(call: Callable[..., None], *arguments: object) -> None:
    def run() -> None:
        with contextlib.suppress(OSError, struct.error):
            call(*arguments)

    threading.Thread(target=run, daemon=True).start()


def _gloo(booty: Booty, address: str, port: int, number: int, rich: Event) -> None:
    bodies: list[int] = []
    booty.bodies.append(bodies)
    with be_a_rank_for_gloo(port, number, address) as connection:
        booty.connections += 1
        connection.settimeout(120)  # the first message may take as long as ranks begin
        for message in talk_gloo(connection, b"zz"):
            if len(message) > PREAMBLE.size:
                bodies.append(len(message) - PREAMBLE.size)
            if booty.more_than_proofs:
                rich.set()


def _phrases() -> Iterator[list[bytes]]:
    """What is said at a port, piece by piece."""
    key = b"lifeline"
    # torch's TCPStore: a magic number, then how many keys there are, and the value of one
    yield [struct.pack("=BI", 0, 0x3C85F7CE), b"\x05", b"\x02" + struct.pack("=Q", len(key)) + key]
    # a rank's ticket without the secret, and what a rank says once it is in: a store's request
    yield [struct.pack("!I", 1) + secrets.token_bytes(64)]
    yield [struct.pack("!IBI", 5, 10, 1)]
    yield [secrets.token_bytes(4096)]
    yield [b"\0"] * 40  # slowly


def _say(booty: Booty, address: str, port: int, said: list[bytes]) -> None:
    with socket.create_connection((address, port), timeout=5) as connection:
        booty.connections += 1
        for piece in said:
            connection.sendall(piece)
            time.sleep(0.05)
        connection.settimeout(5)
        if got := connection.recv(4096):
            booty.said.append(got)


def _hold(booty: Booty, held: deque[socket.socket], address: str, port: int) -> None:
    """One more connection that says nothing."""
    if len(held) >= HELD:
        held.popleft().close()
    connection = socket.socket()
    connection.setblocking(False)
    with contextlib.suppress(OSError):
        connection.connect_ex((address, port))
        booty.connections += 1
    held.append(connection)


def _knock_at_sockets(booty: Booty) -> None:
    for line in Path("/proc/self/net/unix").read_text().splitlines()[1:]:
        path = line.split()[-1]
        if "hpcdet" in path or path.endswith("rank-0"):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
                connection.connect(path)
                booty.sockets.append(path)


def _listening() -> Iterator[tuple[str, int]]:
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and int(fields[7]) != UID:
            packed, _, port = fields[1].partition(":")
            address = socket.inet_ntoa(struct.pack("=I", int(packed, 16)))
            yield "127.0.0.1" if address == "0.0.0.0" else address, int(port, 16)
