"""Whether the other ranks still live: the others wait for one as long as it does.

A rank may be busy alone for hours (a validation of the whole data set on rank 0, an upload in a
callback), so collectives never time out. Instead every rank holds a connection to rank 0 on
which nothing is said. The kernel closes it when either process is gone, whatever it was doing,
and finds by itself that a host no longer answers. Who leaves well says goodbye before.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import socket
import threading
import time
from datetime import timedelta

from torch.distributed import Store  # type: ignore[attr-defined]

from hpcdet.errors import Unavailable
from hpcdet.train.ranks import PEER_LOST, Ranks
from hpcdet.train.saying import say

NEVER = timedelta(days=1000)
"""Time-out of collectives: a rank that lives is waited for."""
GRACE_S = 5.0
"""How long a rank may take to notice a loss by itself, and to close its files."""
_GOODBYE = b"."
_HELLO_S = 5.0
_KEY = "lifeline"
# a host that is gone without a word is noticed after 30 + 6 * 10 seconds
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
)


class Lifeline:
    """The connections of this rank: on rank 0 one to each other, elsewhere one to rank 0.

    When one breaks, this process ends with ``PEER_LOST``, by itself within ``GRACE_S`` or else
    by ``os._exit``: it may be stuck in a collective that can never complete.
    """

    def __init__(self, connections: list[socket.socket]) -> None:
        self._connections = connections
        self._wake, self._woken = socket.socketpair()
        self._left = threading.Event()
        for connection in connections:
            connection.settimeout(None)
            for option in _KEEPALIVE:
                connection.setsockopt(*option)
        os.register_at_fork(after_in_child=self._close)  # a loader's worker must not hold it
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def leave(self) -> None:
        """Say goodbye; from now on nobody minds whether this process lives."""
        self._left.set()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.send(_GOODBYE)
        self._wake.close()

    def _watch(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # for the main thread
        with selectors.DefaultSelector() as selector:
            for one in (self._woken, *self._connections):
                selector.register(one, selectors.EVENT_READ)
            while not self._left.is_set():
                for key, _ in selector.select():
                    connection = key.fileobj
                    assert isinstance(connection, socket.socket)
                    if connection is self._woken:
                        break
                    selector.unregister(connection)
                    if not _said_goodbye(connection):
                        self._lost()
        self._close()

    def _lost(self) -> None:
        if self._left.wait(GRACE_S):
            return
        say("other ranks of this trial are gone")
        os._exit(PEER_LOST)

    def _close(self) -> None:
        for one in (self._wake, self._woken, *self._connections):
            with contextlib.suppress(OSError):
                one.close()


def _said_goodbye(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == _GOODBYE
    except OSError:
        return False


def tie(ranks: Ranks, store: Store, host: str, patience_s: float) -> Lifeline:
    """Connect all ranks to rank 0; called by all together.

    Args:
        store: where rank 0 says what port it listens on.
        host: where the others reach rank 0; there, the address to listen on.

    Raises:
        Unavailable: some rank did not come.
    """
    return Lifeline(_hold(ranks, store, host, patience_s) if ranks.chief else [_grasp(store, host)])


def _hold(ranks: Ranks, store: Store, address: str, patience_s: float) -> list[socket.socket]:
    token = secrets.token_bytes(16)
    deadline = time.monotonic() + patience_s
    connections: list[socket.socket] = []
    with socket.create_server((address, 0), backlog=2 * ranks.world) as server:
        store.set(_KEY, f"{server.getsockname()[1]} {token.hex()}")
        while len(connections) < ranks.world - 1:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                raise Unavailable(
                    f"only {len(connections) + 1} of {ranks.world} ranks came",
                    where="rank 0",
                    hint="did a rank end at its start? its log says why",
                ) from None
            if _said(connection, token):
                connections.append(connection)
            else:  # anybody may connect to a port
                connection.close()
    return connections


def _said(connection: socket.socket, token: bytes) -> bool:
    connection.settimeout(_HELLO_S)
    with contextlib.suppress(OSError):
        return connection.recv(len(token), socket.MSG_WAITALL) == token
    return False


def _grasp(store: Store, host: str) -> socket.socket:
    port, token = store.get(_KEY).decode().split()
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(bytes.fromhex(token))
    return connection
