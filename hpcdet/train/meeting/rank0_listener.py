"""Rank 0's door: where it listens until all other ranks have come, and whom it lets in.

Where all ranks share a node the door is a Unix socket in a fresh folder that only their user can
enter; over several nodes it is TCP on this host's addresses, never on all interfaces. Whoever
knocks has to prove the attempt's secret (``proof``). Those who have not said anything of worth are
few at a time, and for a short time: the newest displaces the oldest, so that silent or slow
strangers, however many, keep no rank out.

A rank says its number, a nonce and a proof that it knows the secret at all (``ticket``, 68
bytes); rank 0 answers with a nonce and its own proof over both (64); the rank proves the same (32)
and is told that it is in (1).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcdet.errors import Unavailable
from hpcdet.train.meeting import proof

STRANGERS = 64
"""Connections at a time that have not shown that they know the secret."""
KNOCK_S = 10.0
"""Seconds that one connection has for its proof."""
WELCOME = b"+"
SOCKET = "rank-0"
"""Name of the Unix socket in its folder."""
_RANK = struct.Struct("!I")
TICKET_BYTES = _RANK.size + 2 * proof.BYTES
ANSWER_BYTES = 2 * proof.BYTES
_FOLDERS = ("/tmp", "/dev/shm")


class Door:
    """Listens from its making on; leave it (``with``) to close and remove all it has opened.

    Attributes:
        folder: of the Unix socket; "" where there is none.
        ports: what it listens at, for each address.

    Args:
        addresses: of this host; none for a Unix socket.
        most: of ranks that may come at once.
    """

    def __init__(self, addresses: Sequence[str], most: int) -> None:
        self.folder = ""
        self._listeners = []
        if addresses:
            for address in addresses:
                self._listeners.append(socket.create_server((address, 0), backlog=most + 1024))
        else:
            self.folder, listener = _unix()
            listener.listen(most)
            self._listeners.append(listener)
        self.ports = [one.getsockname()[1] for one in self._listeners] if addresses else []

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._listeners:
            one.close()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def admit(self, secret: bytes, world: int, patience_s: float) -> dict[int, socket.socket]:
        """The connections of all other ranks, by rank, once each has proven the secret.

        Raises:
            Unavailable: some rank did not come.
        """
        deadline = time.monotonic() + patience_s
        hall = _Hall(secret, world)
        with selectors.DefaultSelector() as selector:
            for listener in self._listeners:
                listener.setblocking(False)
                selector.register(listener, selectors.EVENT_READ)
            hall.selector = selector
            try:
                while len(hall.admitted) < world - 1:
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        raise Unavailable(
                            f"only {len(hall.admitted) + 1} of {world} ranks connected",
                            where="rank 0",
                            hint="a rank may have failed at its start: see its log",
                        )
                    for key, _ in selector.select(min(left_s, hall.next_s())):
                        if isinstance(key.data, _Caller):
                            hall.hear(key.data)
                        else:
                            assert isinstance(key.fileobj, socket.socket)
                            hall.enter(key.fileobj)
                    hall.tidy()
            except BaseException:
                for connection in hall.admitted.values():
                    connection.close()
                raise
            finally:
                hall.clear()
        return hall.admitted


class _Caller:
    """A connection that has not proven everything yet."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.until = time.monotonic() + KNOCK_S
        self.said = b""
        self.needs = TICKET_BYTES
        self.rank = 0
        self.nonces = (b"", b"")

    @property
    def stranger(self) -> bool:
        return self.rank == 0


class _Hall:
    """Those who are at the door, and those who are in."""

    selector: selectors.BaseSelector

    def __init__(self, secret: bytes, world: int) -> None:
        self._secret, self._world = secret, world
        self._callers: dict[_Caller, None] = {}  # in the order in which they came
        self.admitted: dict[int, socket.socket] = {}

    def enter(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # it is gone again; or no descriptors are left: the oldest must go
            self._displace(0)
            return
        if connection.family == socket.AF_UNIX and peer_uid(connection) != os.geteuid():
            connection.close()
            return
        connection.setblocking(False)
        self._displace(STRANGERS - 1)
        caller = _Caller(connection)
        self._callers[caller] = None
        self.selector.register(connection, selectors.EVENT_READ, caller)

    def hear(self, caller: _Caller) -> None:
        if caller not in self._callers:
            return
        try:
            said = caller.connection.recv(caller.needs - len(caller.said))
            caller.said += said
            complete = len(caller.said) == caller.needs
            if not said or (complete and not self._proceed(caller)):
                self._drop(caller)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(caller)

    def next_s(self) -> float:
        """Seconds until the time of one of them is over."""
        first = min((one.until for one in self._callers), default=float("inf"))
        return max(0.0, first - time.monotonic())

    def tidy(self) -> None:
        """Send away those whose time is over."""
        now = time.monotonic()
        for caller in [one for one in self._callers if one.until <= now]:
            self._drop(caller)

    def clear(self) -> None:
        """Send all away."""
        for caller in list(self._callers):
            self._drop(caller)

    def _proceed(self, caller: _Caller) -> bool:
        """Handle a caller's next message; return True if it was right."""
        said, caller.said = caller.said, b""
        if not caller.stranger:
            if not proof.is_proven(self._secret, said, "rank", caller.rank, *caller.nonces):
                return False
            self._admit(caller)
            return True
        (rank,) = _RANK.unpack_from(said)
        nonce, shown = said[_RANK.size : -proof.BYTES], said[-proof.BYTES :]
        known = proof.is_proven(self._secret, shown, "ticket", rank, nonce)
        if not known or not 0 < rank < self._world:
            return False
        caller.rank, caller.nonces, caller.needs = rank, (nonce, proof.draw()), proof.BYTES
        own = proof.prove(self._secret, "rank 0", rank, *caller.nonces)
        return caller.connection.send(caller.nonces[1] + own) == ANSWER_BYTES

    def _admit(self, caller: _Caller) -> None:
        self.selector.unregister(caller.connection)
        del self._callers[caller]
        caller.connection.setblocking(True)
        caller.connection.send(WELCOME)
        if former := self.admitted.pop(caller.rank, None):  # it did not hear that it was in
            former.close()
        self.admitted[caller.rank] = caller.connection

    def _displace(self, most: int) -> None:
        strangers = [one for one in self._callers if one.stranger]
        for caller in strangers[: max(0, len(strangers) - most)]:
            self._drop(caller)

    def _drop(self, caller: _Caller) -> None:
        if caller in self._callers:
            del self._callers[caller]
            self.selector.unregister(caller.connection)
            caller.connection.close()


def knock(
    where: Path | tuple[str, int], secret: bytes, rank: int, patience_s: float
) -> socket.socket | None:
    """A connection to rank 0 on which both sides have proven the secret.

    Args:
        where: the folder of the Unix socket, or an address and a port.

    Returns:
        None if who answers there is not rank 0 of this attempt, or nobody does in time.
    """
    until = time.monotonic() + patience_s
    try:
        connection = _connect(where, patience_s)
    except OSError:
        return None
    nonce = proof.draw()
    ticket = proof.prove(secret, "ticket", rank, nonce)
    with contextlib.suppress(OSError):
        connection.sendall(_RANK.pack(rank) + nonce + ticket)
        answer = _read(connection, ANSWER_BYTES, until)
        nonces = (nonce, answer[: proof.BYTES])
        if proof.is_proven(secret, answer[proof.BYTES :], "rank 0", rank, *nonces):
            connection.sendall(proof.prove(secret, "rank", rank, *nonces))
            if _read(connection, len(WELCOME), until) == WELCOME:
                connection.settimeout(None)
                return connection
    connection.close()
    return None


def peer_uid(connection: socket.socket) -> int:
    """Return the user at the other end of a Unix socket, as the kernel reports it."""
    _, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )
    return int(uid)


def _connect(where: Path | tuple[str, int], patience_s: float) -> socket.socket:
    if not isinstance(where, Path):
        return socket.create_connection(where, timeout=min(5.0, patience_s))
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(patience_s)
        with opened(where) as inside:
            connection.connect(f"{inside}/{SOCKET}")
        if peer_uid(connection) != os.geteuid():
            raise PermissionError(f"{where} belongs to another user")
    except BaseException:
        connection.close()
        raise
    return connection


def _unix() -> tuple[str, socket.socket]:
    """Open a Unix socket in a new folder that no other user may enter."""
    failures = []
    for parent in dict.fromkeys((tempfile.gettempdir(), *_FOLDERS)):
        folder = ""
        listener = socket.socket(socket.AF_UNIX)
        try:
            folder = tempfile.mkdtemp(prefix="hpcdet-", dir=parent)
            with opened(Path(folder)) as inside:
                listener.bind(f"{inside}/{SOCKET}")
            return folder, listener
        except OSError as error:  # some network file systems have no sockets
            failures.append(f"{parent}: {error.strerror}")
            listener.close()
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
    raise Unavailable(
        f"no folder takes a Unix socket: {'; '.join(failures)}",
        where="rank 0",
        hint="set TMPDIR to a folder on a disk of the node",
    )


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[str]:
    """A short path to what is now in a folder of this user's, however long its own path is.

    Raises:
        OSError: it is not there, or others can enter it.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{folder} is not this user's alone")
        inside = f"/proc/self/fd/{fd}"
        yield inside if Path(inside).is_dir() else str(folder)
    finally:
        os.close(fd)


def _read(connection: socket.socket, length: int, until: float) -> bytes:
    """So many bytes, or less if the other side ends.

    Raises:
        TimeoutError: it has not said as much in time.
    """
    said = b""
    while len(said) < length:
        connection.settimeout(max(0.001, until - time.monotonic()))
        more = connection.recv(length - len(said))
        if not more:
            break
        said += more
    return said
