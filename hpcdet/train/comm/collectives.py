"""Collectives between ranks beside the training itself, over gloo; none if there is one rank."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from hpcdet.checkpoint.write.sharded_digests import WholesFailed, alone
from hpcdet.process.ranks import Ranks
from hpcdet.train.comm import messages
from hpcdet.train.meeting import gloo
from hpcdet.train.meeting.liveness import NEVER
from hpcdet.train.wire import Garbled

T = TypeVar("T")
_ECHO = re.compile(r"gloo/transport|Connection closed by peer|NCCL|MPI \w+ failed: ")
_BESIDE = "hpcdet_beside"


class Peers:
    """Collectives over values (``wire``) and one over a few integers.

    Every rank must make the same calls in the same order.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        # of its own, so that nothing here is ever queued behind a gradient
        self._group = new_group() if ranks.world > 1 else None
        self._swapping: dist.ProcessGroup | None = None
        self._ready = torch.zeros(1, dtype=torch.int32)  # where there is no memory for it any more

    def barrier(self) -> None:
        """Return once every rank is here."""
        if self._group is not None:
            dist.barrier(group=self._group)

    def broadcast(self, value: T, where: str = "") -> T:
        """Rank 0's value, on every rank; a copy, on rank 0 and where it is alone as well.

        Args:
            where: whose value this is, for an error.

        Raises:
            Unsendable: it holds what ranks do not send each other (``wire``); on all ranks.
        """
        if self._group is None:
            return cast("T", messages.here(value, where))
        return cast("T", messages.broadcast(value, where, self.ranks.rank, self._group))

    def allgather(self, value: T, where: str = "") -> list[T]:
        """A copy of every rank's value, in order of rank, on every rank; as ``broadcast``."""
        if self._group is None:
            return [messages.here(value, where)]
        return messages.allgather(value, where, self.ranks.rank, self._group)

    def gather(self, value: T, where: str = "") -> list[T]:
        """Copies of every rank's value on rank 0; an empty list elsewhere; as ``broadcast``."""
        if self._group is None:
            return [messages.here(value, where)]
        return messages.gather(value, where, self.ranks.rank, self._group)

    def open_swap(self) -> None:
        """See that ``swap`` can be called. Called by the main thread, as whatever makes groups."""
        if self._swapping is None and self.ranks.world > 1:
            self._swapping = new_group()

    def swap(
        self, pieces: Sequence[torch.Tensor] | None, sizes: Sequence[int]
    ) -> Sequence[torch.Tensor]:
        """Exchange pieces of bytes: each rank gives one to every other, and gets theirs.

        In a group of its own: a thread may call it while training goes on. All say first whether
        they are ready, so that none waits for one that has no memory, say, for what it would get.

        Args:
            pieces: None on a rank that has failed.

        Raises:
            WholesFailed: a rank has failed; raised on all.
            RuntimeError: the ranks have lost each other.
        """
        if self._group is None:
            return alone(pieces, sizes)
        self.open_swap()
        failure: Exception | None = None
        try:
            sent = None if pieces is None else torch.cat(tuple(pieces))
            received = torch.empty(sum(sizes), dtype=torch.uint8)
        except Exception as error:
            failure, sent = error, None
        self._ready.fill_(sent is not None)
        dist.all_reduce(self._ready, op=dist.ReduceOp.MIN, group=self._swapping)
        if pieces is None or sent is None or not self._ready.item():
            raise WholesFailed(failure)
        lengths = [len(piece) for piece in pieces]
        dist.all_to_all_single(received, sent, list(sizes), lengths, group=self._swapping)
        return torch.split(received, list(sizes))

    def start_max(self, vector: torch.Tensor) -> dist.Work:
        """Begin an element-wise maximum over several ranks, in place; wait for what it returns."""
        work: dist.Work = dist.all_reduce(
            vector, op=dist.ReduceOp.MAX, group=self._group, async_op=True
        )
        return work


def is_peer_loss(error: BaseException) -> bool:
    """Return True if an error only means that another rank is gone.

    One that sends no messages any more counts as gone: the network, or its memory, fails.
    """
    if isinstance(error, dist.DistError | Garbled):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and bool(_ECHO.search(text))


def new_group() -> dist.ProcessGroup:
    """Make a gloo group over all ranks; all of them call this, in their main threads.

    Each gloo group has a thread of its own that looks for messages 100 times a second whether
    there are any or not. Where all cores train, that costs 2 % of a step for every further group.
    So those beside the training share the thread of the default group where that is gloo, too;
    their messages stay apart.
    """
    kind = "gloo"
    if _devices() is not None:
        kind = _BESIDE
        if kind not in dist.Backend.backend_list:
            # as gloo: a default group that is bound to an accelerator asks each group for its own
            where = list(dist.Backend.backend_capability["gloo"])
            dist.Backend.register_backend(kind, _create, extended_api=True, devices=where)
    made: dist.ProcessGroup = dist.new_group(backend=kind, timeout=NEVER)
    return made


def _devices() -> Any:
    """The gloo devices of the default group; None if it has none or an older torch hides them."""
    group = dist.distributed_c10d._get_default_group()
    try:
        found = group._get_backend(torch.device("cpu"))
    except RuntimeError:  # it is for accelerators only
        return None
    is_gloo = isinstance(found, dist.ProcessGroupGloo)
    return getattr(getattr(found, "options", None), "_devices", None) if is_gloo else None


def _create(options: Any, _: Any) -> dist.ProcessGroupGloo:
    """Called by ``dist.new_group``."""
    own = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    own._devices = _devices()
    own._threads = 1
    own._timeout = options.timeout
    return gloo.new_group(options.store, options.group_rank, options.group_size, own)
