"""Exchange of values between ranks: plain collectives over bytes, in the form of ``wire``.

Each exchange begins with a *header* of every rank that sends: whether its value could be encoded,
and how many bytes follow. So no rank waits for one whose value is refused: that one sends what was
wrong instead, and all raise it. A length beyond ``wire.MOST_BYTES`` is refused before there is
memory for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from hpcdet.errors import HpcdetError
from hpcdet.train import wire

_SENT, _UNSENDABLE, _FAILED = range(3)
_MOST_WORDS = 1 << 16
"""Bytes of what is said of an error."""


@dataclass(frozen=True)
class _Parcel:
    """The message that one rank sends.

    Attributes:
        state: ``_SENT``; else ``content`` says what is wrong with the value.
        error: what was raised on this rank.
    """

    state: int
    content: torch.Tensor
    error: Exception | None = None

    def header(self) -> torch.Tensor:
        return torch.tensor([self.state, len(self.content)])


_NOTHING = _Parcel(_SENT, torch.empty(0, dtype=torch.uint8))


def _pack(value: Any, rank: int, where: str) -> _Parcel:
    try:
        return _Parcel(_SENT, _bytes(wire.encode(value)))
    except HpcdetError as error:
        error.where = f"{where}, rank {rank}" if where else f"rank {rank}"
        state = _UNSENDABLE if isinstance(error, wire.Unsendable) else _FAILED
        return _Parcel(state, _words(error), error)
    except Exception as error:  # no memory, a device that fails: the others wait for this rank
        what = f"its value could not be sent: {type(error).__name__}: {error}"
        return _Parcel(_FAILED, _words(HpcdetError(what, where=f"rank {rank}")), error)


def _words(error: HpcdetError) -> torch.Tensor:
    said = (error.what, error.where, error.hint)
    return _bytes(wire.encode(tuple(text[:2000] for text in said)))


def _bytes(message: bytearray) -> torch.Tensor:
    return torch.frombuffer(message, dtype=torch.uint8)


def here(value: Any, where: str) -> Any:
    """Return the result of an exchange with one rank: the same as with several."""
    try:
        return wire.copied(value)
    except HpcdetError as error:
        error.where = where
        raise


def broadcast(value: Any, where: str, rank: int, group: dist.ProcessGroup) -> Any:
    """Rank 0's value, on all ranks; those of others do not count.

    Args:
        where: whose value this is, in words for an error.

    Raises:
        wire.Unsendable: rank 0's value holds what cannot be sent; on all ranks.
        wire.Garbled: what came is no message.
    """
    own = _pack(value, rank, where) if rank == 0 else _NOTHING
    header = own.header()
    dist.broadcast(header, src=0, group=group)
    [size] = _sizes(own, [header], rank, group)
    content = own.content if rank == 0 else torch.empty(size, dtype=torch.uint8)
    dist.broadcast(content, src=0, group=group)
    return _value(content, 0)


def allgather(value: Any, where: str, rank: int, group: dist.ProcessGroup) -> list[Any]:
    """Every rank's value, on all ranks.

    Raises:
        wire.Unsendable: that of some rank holds what cannot be sent; on all ranks.
        wire.Garbled: what came is no message.
    """
    own = _pack(value, rank, where)
    sizes = _sizes(own, _all(own.header(), [2] * group.size(), rank, group), rank, group)
    everyone = _all(own.content, sizes, rank, group)
    return [_value(content, source) for source, content in enumerate(everyone)]


def gather(value: Any, where: str, rank: int, group: dist.ProcessGroup) -> list[Any]:
    """Every rank's value on rank 0; an empty list elsewhere. Raises as ``allgather``, on all."""
    own = _pack(value, rank, where)
    sizes = _sizes(own, _all(own.header(), [2] * group.size(), rank, group), rank, group)
    if rank:
        dist.send(own.content, dst=0, group=group)
        return []
    others = [torch.empty(size, dtype=torch.uint8) for size in sizes[1:]]
    coming = [dist.irecv(one, src=at + 1, group=group) for at, one in enumerate(others)]
    for one in coming:
        assert one is not None  # this rank is in the group
        one.wait()
    return [_value(content, source) for source, content in enumerate([own.content, *others])]


def _sizes(
    own: _Parcel, headers: Sequence[torch.Tensor], rank: int, group: dist.ProcessGroup
) -> list[int]:
    """How many bytes each rank sends that has sent a header; all ranks know the same headers.

    Raises:
        wire.Unsendable: a rank has told that its value cannot be sent; other errors likewise.
        wire.Garbled: a header says what none can.
    """
    told = [tuple(header.tolist()) for header in headers]
    for source, (state, size) in enumerate(told):
        most = wire.MOST_BYTES if state == _SENT else _MOST_WORDS
        if state not in (_SENT, _UNSENDABLE, _FAILED) or not 0 < size <= most:
            raise wire.Garbled(f"it announces {size} bytes of kind {state}", where=f"rank {source}")
    failed = next((source for source, (state, _) in enumerate(told) if state != _SENT), None)
    if failed is None:
        return [size for _, size in told]
    state, size = told[failed]
    words = own.content if rank == failed else torch.empty(size, dtype=torch.uint8)
    dist.broadcast(words, src=failed, group=group)
    if own.error is not None:
        raise own.error
    said = _value(words, failed)
    if type(said) is not tuple or list(map(type, said)) != [str] * 3:
        raise wire.Garbled("it does not say what is wrong", where=f"rank {failed}")
    kind = wire.Unsendable if state == _UNSENDABLE else HpcdetError
    raise kind(said[0], where=said[1], hint=said[2])


def _value(content: torch.Tensor, source: int) -> Any:
    try:
        return wire.decode(content.numpy().data)
    except wire.Garbled as error:
        error.where = f"rank {source}"
        raise


def _all(
    mine: torch.Tensor, sizes: Sequence[int], rank: int, group: dist.ProcessGroup
) -> list[torch.Tensor]:
    """Every rank's bytes; by broadcasts, which need no padding to one size, all at once."""
    everyone = [
        mine if source == rank else torch.empty(size, dtype=mine.dtype)
        for source, size in enumerate(sizes)
    ]
    coming = [
        dist.broadcast(one, src=source, group=group, async_op=True)
        for source, one in enumerate(everyone)
    ]
    for one in coming:
        one.wait()
    return everyone
