"""Pieces that the ranks of a node read for each other, in memory that all of them have mapped.

Piece after piece goes into the slots of a small ring. Each is read by one rank, in turn, and taken
from there by all; its slot is used again when all are through with it. The ranks tell each other
by pipes. Memory and pipes have no names: a rank opens those of another in its ``/proc``, which the
kernel grants to processes of the same user only. A rank that is gone or gives up ends the waiting
of the others at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import secrets
import selectors
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcdet.checkpoint.io.read_buffers import Bytes, Scratch, populate

SLOT = 4 << 20
_SLOTS = 8
_BYTES = _SLOTS * SLOT + mmap.PAGESIZE
_MESSAGE = struct.Struct("<IIQ")
_BEGUN, _READ, _TAKEN, _DONE, _FAILED, _WAKE = range(6)

Exchange = Callable[[Any], list[Any]]


@dataclass(frozen=True)
class Readers:
    """The ranks of a node that read the same at the same time.

    Attributes:
        ring: in which they read for each other; None: each reads everything.
    """

    count: int = 1
    ring: Ring | None = None


ALONE = Readers()


class PeerFailed(OSError):
    """Another rank of this node has given up, or is gone; nothing that was read is to be used."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank}, which reads for this one, has failed")


class Slot(NamedTuple):
    """The place of a piece in the ring.

    Attributes:
        private: what this rank reads it into before, of huge pages, as nothing in the ring is;
            None: another rank reads it.
    """

    ring: Ring
    number: int
    memory: Bytes
    private: Bytes | None

    @property
    def mine(self) -> bool:
        """Whether this rank reads it."""
        return self.private is not None

    def fill(self, read: Callable[[Bytes], None]) -> None:
        """Read it, or wait until it has been read.

        Raises:
            PeerFailed: it will not be.
        """
        if self.private is None:
            self.ring.wait(lambda said: self.number in said.read)
            return
        read(self.private)
        self.ring.wait(lambda said: min(said.taken.values()) > self.number - _SLOTS)
        self.memory[:] = self.private
        self.ring.tell(_READ, self.number)

    def give_back(self) -> None:
        """This rank is through with it, and with those before it."""
        if self.private is not None:
            self.ring.scratch.give_back(self.private)
        self.ring.tell(_TAKEN, self.number + 1)


@dataclass
class _Said:
    """The messages of a load, by all ranks.

    Attributes:
        begun: a number for what each reads.
        read: numbers of pieces.
        taken: how many pieces each is through with.
        failed: the first that has failed.
    """

    begun: dict[int, int]
    read: set[int]
    taken: dict[int, int]
    done: set[int]
    failed: int | None = None

    def hear(self, rank: int, kind: int, number: int) -> None:
        if kind == _BEGUN:
            self.begun[rank] = number
        elif kind == _READ:
            self.read.add(number)
        elif kind == _TAKEN:
            self.taken[rank] = number
        elif kind == _DONE:
            self.done.add(rank)
        elif rank not in self.done and self.failed is None:
            self.failed = rank


class Ring:
    """Memory that ranks share for one load, in which each reads some pieces for all.

    Args:
        ranks: those that share it, ascending; all take the same pieces in the same order.
        pipes: by rank, to speak to each of them, this one included.
        inbox: what they write there.
        lives: by rank, descriptors of the others' processes.
    """

    def __init__(
        self,
        rank: int,
        ranks: Sequence[int],
        memory: mmap.mmap,
        pipes: dict[int, int],
        inbox: int,
        lives: dict[int, int],
    ) -> None:
        self.rank, self.ranks = rank, tuple(ranks)
        self._memory = np.frombuffer(memory, np.uint8)
        self.scratch = Scratch(SLOT)
        self._next = 0
        self._pipes, self._inbox, self._lives = pipes, inbox, lives
        self._said = _Said({}, set(), dict.fromkeys(ranks, 0), set())
        self._news = threading.Condition()
        self._heard = selectors.DefaultSelector()  # here, where failing is heard of
        self._heard.register(inbox, selectors.EVENT_READ)
        for other, life in lives.items():
            self._heard.register(life, selectors.EVENT_READ, other)
        self._listener = threading.Thread(target=self._listen, name="hpcdet-ring", daemon=True)
        self._listener.start()

    def begin(self, what: str) -> None:
        """Wait until all have begun; ``what`` is a digest of what they are about to read.

        Raises:
            PeerFailed: one has given up, or reads something else.
        """
        number = int.from_bytes(hashlib.blake2b(what.encode(), digest_size=8).digest())
        self.tell(_BEGUN, number)
        self.wait(lambda said: len(said.begun) == len(self.ranks))
        for rank, other in self._said.begun.items():
            if other != number:
                raise PeerFailed(rank)

    def slot(self, size: int) -> Slot:
        """The place of the next piece, of so many bytes."""
        number, start = self._next, self._next % _SLOTS * SLOT
        self._next += 1
        memory = self._memory[start : start + size]
        if number < _SLOTS:
            populate(memory)
        mine = self.ranks[number % len(self.ranks)] == self.rank
        return Slot(self, number, memory, self.scratch.take(size) if mine else None)

    def finish(self) -> None:
        """All that this rank has read is what was written; wait until all others say so.

        Raises:
            PeerFailed: one does not.
        """
        self.tell(_DONE)
        self.wait(lambda said: len(said.done) == len(self.ranks))

    def give_up(self) -> None:
        """This rank reads no more. If it has not finished it fails, and the others hear of it."""
        self.tell(_FAILED)

    def close(self) -> None:
        """``give_up``, and listen no more."""
        self.give_up()
        self._send(self.rank, _WAKE)
        self._listener.join()
        self._heard.close()

    def wait(self, reached: Callable[[_Said], bool]) -> None:
        """Wait until the messages suffice.

        Raises:
            PeerFailed: it will not be.
        """
        with self._news:
            self._news.wait_for(lambda: self._said.failed is not None or reached(self._said))
            if self._said.failed is not None:
                raise PeerFailed(self._said.failed)

    def tell(self, kind: int, number: int = 0) -> None:
        """Say something to all; this rank knows it at once."""
        self._hear(self.rank, kind, number)
        for rank in self.ranks:
            if rank != self.rank:
                self._send(rank, kind, number)

    def _send(self, rank: int, kind: int, number: int = 0) -> None:
        """Send a message to one rank; a rank that is gone gets none. No signal is raised."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
        try:
            os.write(self._pipes[rank], _MESSAGE.pack(self.rank, kind, number))
        except BrokenPipeError:
            signal.sigtimedwait({signal.SIGPIPE}, 0)
        except OSError:
            pass
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _hear(self, rank: int, kind: int, number: int) -> None:
        with self._news:
            self._said.hear(rank, kind, number)
            self._news.notify_all()

    def _listen(self) -> None:
        """Take messages until this rank wakes itself, then end all waiting."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # for the main thread
        try:
            while self._hear_some():
                pass
        finally:
            with self._news:
                if self._said.failed is None:
                    self._said.failed = self.rank
                self._news.notify_all()

    def _hear_some(self) -> bool:
        """Hear what there is; False: no more will be."""
        found = [key for key, _ in self._heard.select()]
        if any(key.fd == self._inbox for key in found):
            for said in _MESSAGE.iter_unpack(os.read(self._inbox, _MESSAGE.size << 8)):
                if said[1] == _WAKE:
                    return False
                self._hear(*said)
            return True  # what a rank said before it was gone comes first
        for key in found:
            self._heard.unregister(key.fd)
            self._hear(key.data, _FAILED, 0)
        return True


@contextlib.contextmanager
def share(rank: int, node: int | None, exchange: Exchange) -> Iterator[Readers]:
    """The readers on this node, for one load; all ranks call together.

    They have no ring where there is one, or where any cannot share memory.

    Args:
        node: its number; ranks with another number do not share memory with this one. None: this
            one reads something else than the others.
        exchange: gives a value to all ranks and returns everyone's, in order of rank.
    """
    with contextlib.ExitStack() as opened:
        here, own = [node], None
        with contextlib.suppress(AttributeError, OSError):  # a system without such memory
            if node is not None:
                here += _namespace()
                own = _Ends.make(opened)
        told = exchange([here, list(own) if own else []])
        count = sum(at[0] == node for at, _ in told) if node is not None else 1
        offers = {n: _Ends(*ends) for n, (at, ends) in enumerate(told) if at == here and ends}
        ring = None
        if own is not None and len(offers) == count > 1:
            with contextlib.suppress(AttributeError, OSError, RuntimeError):  # or without threads
                ring = _join(rank, own, offers, opened)
        joined = exchange(ring is not None) if any(ends for _, ends in told) else ()
        if ring is None or not all(joined[other] for other in offers):
            ring = None
            opened.close()
        yield Readers(count, ring)


class _Ends(NamedTuple):
    """The descriptors that a process offers: memory, and a pipe to speak to it and to listen."""

    process: int
    memory: int
    pipe: int
    inbox: int
    token: str

    @staticmethod
    def make(opened: contextlib.ExitStack) -> _Ends:
        """Make those of this process."""
        memory = os.memfd_create("hpcdet-load")
        opened.callback(os.close, memory)
        inbox, pipe = os.pipe()
        opened.callback(os.close, inbox)
        opened.callback(os.close, pipe)
        token = secrets.token_hex(16)
        os.ftruncate(memory, _BYTES)
        os.pwrite(memory, token.encode(), _SLOTS * SLOT)
        return _Ends(os.getpid(), memory, pipe, inbox, token)

    def open(self, fd: int, opened: contextlib.ExitStack, flags: int) -> int:
        """One of them, of another process of this user."""
        found = os.open(f"/proc/{self.process}/fd/{fd}", flags | os.O_CLOEXEC)
        opened.callback(os.close, found)
        return found


def _join(rank: int, own: _Ends, offers: dict[int, _Ends], opened: contextlib.ExitStack) -> Ring:
    """The ring of these ranks, in the memory of the first.

    Raises:
        OSError: it cannot be had.
    """
    first = offers[min(offers)]
    memory = first.open(first.memory, opened, os.O_RDWR)
    if os.pread(memory, len(first.token), _SLOTS * SLOT) != first.token.encode():
        raise OSError("another process has its number")
    pipes, lives = {rank: own.pipe}, {}
    for other, ends in offers.items():
        if other != rank:
            lives[other] = os.pidfd_open(ends.process)
            opened.callback(os.close, lives[other])
            pipes[other] = ends.open(ends.pipe, opened, os.O_WRONLY)
    ring = Ring(rank, tuple(offers), mmap.mmap(memory, _BYTES), pipes, own.inbox, lives)
    opened.callback(ring.close)
    return ring


def _namespace() -> list[Any]:
    """Equal where numbers of processes mean the same processes."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return [socket.gethostname(), boot, os.stat("/proc/self/ns/pid").st_ino]
