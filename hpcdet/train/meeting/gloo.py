"""gloo's groups, each of whose pairs proves the attempt's secret before anything else is sent.

gloo knows TCP only and asks nobody for anything: who connects to its port first and names a small
number is taken for a rank. So every gloo group of this process is made here (``torch.distributed``
looks its class up by name, in one place for the default group, ``new_group`` and all else that
makes one). Its port is on the address that the others reach, and opens only when all its ranks
are about to connect; nobody gets through to it afterwards (``shutter``). Then each pair exchanges
proofs over the connection that it will use, in both directions, bound to the two ranks and to
nonces from the store.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hpcdet.errors import Unavailable
from hpcdet.process.ranks import PEER_LOST
from hpcdet.train.meeting import port_filter, proof
from hpcdet.train.meeting.liveness import NEVER, Lifeline

PROOF_S = 30.0
"""Seconds for connecting and for the proofs of a group, from when all its ranks are there."""
_PAIRS_A_SECOND = 5000
"""So many pairs the store helps to connect; large groups get as much time on top."""
INTERFACES = "GLOO_SOCKET_IFNAME"
"""Names the interfaces between hosts that gloo is to use, where a site says so."""
LOOPBACK = "127.0.0.1"
_NEWS_S = 2.0
"""Seconds within which the lifeline tells that a rank is gone."""
_Gloo = dist.ProcessGroupGloo


class Unproven(Unavailable):
    """Over gloo, other ranks could not prove that they belong to this attempt."""

    def __init__(self, rank: int, others: Collection[int], size: int) -> None:
        named = ", ".join(map(str, sorted(others)))
        super().__init__(
            f"rank {rank} could not make sure over gloo that it speaks to rank {named} of {size} "
            "of its own attempt",
            where="distributed.backend",
            hint="another process connects to gloo's ports, or they cannot be reached between the "
            "nodes; docs/explanation/security.md",
        )


@dataclass(frozen=True)
class Attempt:
    """The attempt, as this rank knows it.

    Attributes:
        address: this host's, which the other ranks reach.
        tell: called before ``Unproven`` is raised: the user's code may catch it.
    """

    secret: bytes
    address: str
    lifeline: Lifeline
    tell: Callable[[BaseException], None]


_attempt: Attempt | None = None
_broken: list[object] = []
"""Groups without proof. They are kept: gloo may end the process when one goes away."""


def guard(attempt: Attempt) -> None:
    """From now on gloo's groups prove the attempt's secret."""
    global _attempt
    _attempt = attempt
    dist.distributed_c10d.ProcessGroupGloo = ProvenGloo  # type: ignore[assignment, misc]


def release() -> None:
    """The attempt is over: groups are as torch makes them."""
    global _attempt
    _attempt = None
    dist.distributed_c10d.ProcessGroupGloo = _Gloo  # type: ignore[misc]


def new_group(store: Any, rank: int, size: int, options: Any) -> dist.ProcessGroupGloo:
    """A group as ``torch.distributed`` would make it now."""
    kind: type[dist.ProcessGroupGloo] = dist.distributed_c10d.ProcessGroupGloo
    return kind(store, rank, size, options)


class _Kind(type(_Gloo)):  # type: ignore[misc]
    """torch asks whether a group is one of gloo's by the name that ``ProvenGloo`` has taken."""

    def __instancecheck__(cls, instance: object) -> bool:
        # where no code holds a group, torch makes it a new face, of the class that it knows
        return isinstance(instance, _Gloo)


class ProvenGloo(_Gloo, metaclass=_Kind):
    """A gloo group of ranks that have proven to each other that they are of this attempt.

    If that takes too long (``PROOF_S``) this process ends: gloo waits for ever, and cannot be
    interrupted.

    Raises:
        Unproven: one has sent a wrong proof.
        RuntimeError: one is gone.
        ValueError: others are to join later (torch 2.14), who would prove nothing.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        options: Any = None,
        timeout: timedelta = NEVER,
        enable_reconfigure: bool = False,
    ) -> None:
        if enable_reconfigure:
            raise ValueError("a group over gloo keeps its ranks: enable_reconfigure is not for it")
        attempt = _attempt
        assert attempt is not None
        own = _Gloo._Options()  # type: ignore[attr-defined]
        own._threads = 2
        if isinstance(options, timedelta):
            timeout = options
        elif options is not None:
            own, timeout = options, options._timeout
        own._timeout = timeout  # for good: older versions of gloo's transport know no other
        os.environ.pop("TORCH_GLOO_LAZY_INIT", None)  # pairs connect while the ports are open
        nonces = _nonces(store, rank, size)
        _broken.append(self)
        with _bounded(attempt, rank, size), _explained(attempt, rank, size):
            with port_filter.open_until_connected():
                own._devices = own._devices or port_filter.behind(lambda: _devices(attempt.address))
                super().__init__(store, rank, size, own)
            for number in range(len(own._devices)):  # collectives take them in turn
                if strangers := self._prove(attempt.secret, number, nonces):
                    raise _Strangers(strangers)
        _broken.remove(self)

    def _prove(self, secret: bytes, number: int, nonces: Sequence[bytes]) -> list[int]:
        """Exchange proofs with all other ranks at once; returns those whose proof is wrong.

        In gloo's all-to-all each pair speaks over its own connection.
        """
        rank = self.rank()
        others = [other for other in range(self.size()) if other != rank]

        def facts(by: int, to: int) -> tuple[bytes | int, ...]:
            return number, by, to, nonces[by], nonces[to]

        sent, received = (torch.zeros(len(nonces), proof.BYTES, dtype=torch.uint8) for _ in "sr")
        for other in others:
            said = proof.prove(secret, "gloo", *facts(rank, other))
            sent[other] = torch.frombuffer(bytearray(said), dtype=torch.uint8)
        self.alltoall_base(received, sent, [], []).wait()  # type: ignore[attr-defined]
        heard = [row.tobytes() for row in received.numpy()]
        return [
            other
            for other in others
            if not proof.is_proven(secret, heard[other], "gloo", *facts(other, rank))
        ]


def _nonces(store: Any, rank: int, size: int) -> list[bytes]:
    """A nonce of each rank's, by rank; all of them are here once this returns."""
    keys = [f"nonce/{other}" for other in range(size)]
    store.set(keys[rank], proof.draw())
    store.wait(keys, NEVER)
    return [bytes(one) for one in store.multi_get(keys)]


def _devices(address: str) -> list[Any]:
    if address != LOOPBACK and (names := os.environ.get(INTERFACES)):
        return [_Gloo.create_device(interface=name) for name in names.split(",")]
    return [_Gloo.create_device(hostname=address)]


class _Strangers(RuntimeError):
    """Some ranks have sent a wrong proof."""

    def __init__(self, ranks: Collection[int]) -> None:
        super().__init__()
        self.ranks = ranks


@contextlib.contextmanager
def _bounded(attempt: Attempt, rank: int, size: int) -> Iterator[None]:
    """End this process if what is done inside takes too long, and say why."""

    def late() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # for the main thread
        if not attempt.lifeline.lost.wait(_NEWS_S):
            attempt.tell(Unproven(rank, {*range(size)} - {rank}, size))
        leave(PEER_LOST)

    timer = threading.Timer(PROOF_S + size * size / _PAIRS_A_SECOND, late)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


leave = os._exit
"""How a process ends that waits in gloo."""


@contextlib.contextmanager
def _explained(attempt: Attempt, rank: int, size: int) -> Iterator[None]:
    """Tell whether a group did not come about because a rank is gone, or because of strangers.

    For gloo both may look the same; but of a rank that is gone the lifeline hears, too.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, _Strangers):
            others = error.ranks
        elif attempt.lifeline.lost.wait(_NEWS_S):
            raise
        else:
            others = {*range(size)} - {rank}
        unproven = Unproven(rank, others, size)
        attempt.tell(unproven)
        raise unproven from error
