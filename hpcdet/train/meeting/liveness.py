"""Whether the other ranks still live: the others wait for one as long as it does.

A rank may be busy alone for hours (a validation of the whole data set on rank 0, an upload in a
callback), so collectives never time out. Instead every rank holds a connection to rank 0, over
which the store's requests go (``meeting.store``) and else nothing. The kernel closes it when either
process is gone, whatever it was doing, and finds by itself that a host no longer answers. Who
leaves well says goodbye before.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta

from hpcdet.process.console import say
from hpcdet.process.ranks import PEER_LOST
from hpcdet.train.meeting.frames import Frame, FrameKind, Incoming

NEVER = timedelta(days=1000)
"""Time-out of collectives: a rank that lives is waited for."""
GRACE_S = 5.0
"""How long a rank may take to notice a loss by itself, and to close its files."""
_CHUNK = 256 * 1024
# a host that is gone without a word is noticed after 30 + 6 * 10 seconds, with data under way, too
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 90_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)

Hears = Callable[[int, Frame | None], None]
"""Called with the rank and what it says; with None once its connection is closed."""


class Lifeline:
    """The connections of this rank: on rank 0 one to each other, elsewhere one to rank 0.

    When one breaks, this process ends with ``PEER_LOST``, by itself within ``GRACE_S`` or else
    by ``os._exit``: it may be stuck in a collective that can never complete.

    Attributes:
        lost: set once a rank is gone without a goodbye.
    """

    def __init__(self, connections: Mapping[int, socket.socket]) -> None:
        self.lost = threading.Event()
        self._connections = dict(connections)
        self._sending = {rank: threading.Lock() for rank in connections}
        self._incoming = {rank: Incoming() for rank in connections}
        self._wake, self._woken = socket.socketpair()
        self._left = threading.Event()
        self._goodbyes: set[int] = set()
        for connection in connections.values():
            connection.settimeout(None)
            if connection.family != socket.AF_UNIX:
                for option in _KEEPALIVE:
                    connection.setsockopt(*option)
        os.register_at_fork(after_in_child=self._close)  # a loader's worker must not hold it

    def start(self, hears: Hears) -> None:
        """Listen from now on, in a thread of its own."""
        watching = threading.Thread(target=self._watch, args=(hears,), name="lifeline", daemon=True)
        watching.start()

    def send(self, rank: int, frame: Frame) -> None:
        """Say something to a rank to which there is a connection.

        Raises:
            OSError: it is gone.
            ValueError: it is too long.
        """
        data = frame.encode()
        with self._sending[rank]:
            self._connections[rank].sendall(data)

    def leave(self) -> None:
        """Say goodbye; from now on the others ignore whether this process lives."""
        self._left.set()
        self._tell_all(FrameKind.GOODBYE)

    def close(self) -> None:
        """Close the connections."""
        self._wake.close()

    def _watch(self, hears: Hears) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # for the main thread
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for rank, connection in self._connections.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._woken:
                        self._close()
                        return
                    assert isinstance(key.fileobj, socket.socket)
                    if not self._listen(key.data, key.fileobj, hears):
                        selector.unregister(key.fileobj)

    def _listen(self, rank: int, connection: socket.socket, hears: Hears) -> bool:
        """Handle a rank's message; return True if more may come."""
        try:
            data = connection.recv(_CHUNK)
            if data:
                for frame in self._incoming[rank].take(data):
                    if frame.kind is FrameKind.GOODBYE:
                        self._goodbyes.add(rank)
                    elif frame.kind is FrameKind.LOST:
                        self._lose()
                    else:
                        hears(rank, frame)
                return True
        except (OSError, ValueError):  # or it is broken, which is no better
            pass
        hears(rank, None)
        if rank not in self._goodbyes:
            self._lose()
        return False

    def _lose(self) -> None:
        """A rank is gone."""
        if self.lost.is_set():
            return
        self.lost.set()
        # first: telling the others may wait for one that takes nothing any more
        threading.Thread(target=self._end, name="lifeline", daemon=True).start()
        self._tell_all(FrameKind.LOST)

    def _end(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        if not self._left.wait(GRACE_S):
            say("other ranks of this trial are gone")
            os._exit(PEER_LOST)

    def _tell_all(self, kind: FrameKind) -> None:
        for rank in self._connections:
            with contextlib.suppress(OSError):
                self.send(rank, Frame(kind))

    def _close(self) -> None:
        for one in (self._wake, self._woken, *self._connections.values()):
            with contextlib.suppress(OSError):
                one.close()
