"""Which samples a global batch holds: a function of (seed, epoch) and a count, of nothing else.

The position of a trial in its data is one number, the samples it has seen. So going on is
immediate, at any number of ranks, and no sample comes twice or never.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def subseed(*parts: int | str) -> int:
    """A 64-bit seed made of several numbers or words; equal parts give equal seeds for ever."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def shuffled(size: int, seed: int, epoch: int) -> Indices:
    """A permutation of ``range(size)``, int64[size].

    Raw Philox words are sorted, since numpy promises the words for ever but not its shuffle.
    """
    words = np.random.Philox(key=subseed("order", seed, epoch)).random_raw(size)
    return np.argsort(words, kind="stable").astype(np.int64)


def interleaved(samples: Indices, more: Indices, seed: int, epoch: int) -> Indices:
    """More samples at random places among others, which keep their order.

    Where the others are shuffled, all are, each order being as likely as any other. Raw Philox
    words are sorted, as by ``shuffled``.
    """
    size = len(samples) + len(more)
    words = np.random.Philox(key=subseed("interleaved", seed, epoch)).random_raw(size)
    places = np.argsort(words, kind="stable")[: len(more)]
    found = np.empty(size, np.int64)
    others = np.ones(size, np.bool_)
    others[places] = False
    found[places], found[others] = more, samples
    return found


class CountedOrder(Protocol):
    """The samples of each epoch, or their sources: what was trained can be counted again.

    Attributes:
        epoch_records: samples in an epoch, the same in all of them.
        whole: each epoch is known to have the same samples, or as many of each source.
    """

    @property
    def epoch_records(self) -> int: ...

    @property
    def whole(self) -> bool: ...

    def indices(self, epoch: int) -> Indices:
        """Those of an epoch, in order, int64[epoch_records]."""


class Slice(NamedTuple):
    """One rank's share of one global batch.

    Attributes:
        epoch: from 0.
        records: samples in the global batch.
        indices: int64[n], this rank's share; never empty while training. Of streams with sources
            (``sourced.StreamOrder``) the place of each sample's source, here and in ``whole``.
        weight: samples of the share that count: ``len(indices)``, or 0 where the global batch
            has fewer samples than there are ranks and this rank repeats one to keep step.
        last: it ends its epoch.
        whole: int64[records], all samples of the global batch; empty of data without indices.
    """

    epoch: int
    records: int
    indices: Indices
    weight: int
    last: bool
    whole: Indices = np.empty(0, np.int64)


def share(indices: Indices, rank: int, world: int) -> Indices:
    """The contiguous part of a global batch for one rank; earlier ranks take the remainder."""
    each, more = divmod(len(indices), world)
    start = rank * each + min(rank, more)
    return indices[start : start + each + (rank < more)]


@dataclass(frozen=True)
class Order:
    """The global batches of a data set, epoch after epoch.

    Attributes:
        size: samples in the data set.
        batch: samples in a global batch; the last of an epoch may be smaller.
        epoch_order: the order in an epoch, int64[size].
        drop_last: leave a smaller last batch out.
        permutes: each epoch has each sample once.
        rule: how anyone computes the order: ``shuffled SEED`` as ``shuffled`` does it, ``in turn``;
            "": only the code that trains can.
    """

    size: int
    batch: int
    epoch_order: Callable[[int], Sequence[int] | Indices]
    drop_last: bool = False
    permutes: bool = False
    rule: str = ""

    def __post_init__(self) -> None:
        if self.epoch_records == 0:
            raise ValueError(
                f"a data set of {self.size} samples has no full batch of {self.batch}"
                if self.size
                else "the data set is empty"
            )

    @property
    def epoch_batches(self) -> int:
        return self.size // self.batch if self.drop_last else -(-self.size // self.batch)

    @property
    def epoch_records(self) -> int:
        return min(self.size, self.epoch_batches * self.batch)

    @property
    def whole(self) -> bool:
        """True if each epoch is known to train each sample once."""
        return self.permutes and self.epoch_records == self.size

    def drawn(self, epoch: int) -> Indices:
        """The samples of an epoch, in order, those that ``drop_last`` leaves out, too."""
        return np.asarray(self.epoch_order(epoch), dtype=np.int64)

    def indices(self, epoch: int) -> Indices:
        """The samples that an epoch trains, in order, int64[epoch_records]."""
        return self.drawn(epoch)[: self.epoch_records]

    def without(self, out: Indices) -> Order:
        """The order of the other samples: those of ``out`` are in no batch.

        Raises:
            ValueError: none are left; later, an epoch has more or fewer than the first.
        """
        size = int((~np.isin(self.drawn(0), out)).sum())

        def others(epoch: int) -> Indices:
            found = self.drawn(epoch)
            found = found[~np.isin(found, out)]
            if len(found) != size:
                raise ValueError(f"epoch {epoch} has {len(found)} samples, the first one {size}")
            return found

        return replace(self, size=size, epoch_order=others, rule="")

    def with_more(self, more: Indices, seed: int) -> Order:
        """The order of these samples among those that it has, at places of (seed, epoch).

        Args:
            more: indices that are in no batch yet, int64[n]; each is in every epoch.
        """

        def together(epoch: int) -> Indices:
            return interleaved(self.drawn(epoch), more, seed, epoch)

        return replace(self, size=self.size + len(more), epoch_order=together, rule="")

    def epoch_of(self, records: int) -> int:
        """The epoch that a trial is in after ``records`` samples."""
        return records // self.epoch_records

    def slices(self, records: int, rank: int, world: int) -> Iterator[Slice]:
        """This rank's shares of the global batches behind ``records`` samples, without end."""
        return self.shares(records, (rank,), world)

    def shares(self, records: int, ranks: Sequence[int], world: int) -> Iterator[Slice]:
        """The shares of several ranks, one after the other for each global batch, without end."""
        length = self.epoch_records
        epoch, start = divmod(records, length)
        while True:
            order = np.asarray(self.epoch_order(epoch), dtype=np.int64)
            while start < length:
                stop = min(start + self.batch, length)
                whole = order[start:stop]
                for rank in ranks:
                    mine = share(whole, rank, world)
                    yield Slice(
                        epoch=epoch,
                        records=len(whole),
                        indices=mine if len(mine) else whole[:1],
                        weight=len(mine),
                        last=stop == length,
                        whole=whole,
                    )
                start = stop
            epoch, start = epoch + 1, 0
