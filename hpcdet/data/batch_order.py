"""The order of samples where a batch sampler decides which of them belong together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from hpcdet.data.sample_order import Indices, Slice, subseed
from hpcdet.errors import ConfigError


@dataclass(frozen=True)
class BatchOrder:
    """Global batches of which each rank takes one whole batch of the sampler's.

    As in ``order.Order``, the position is the number of samples seen, so that going on is
    possible at any number of ranks: between two global batches lie whole batches only.

    Attributes:
        batches: the batches of an epoch: a function of its number; each a sequence of indices.
        epoch_records: samples in an epoch, the same in all of them.
    """

    batches: Callable[[int], Sequence[Sequence[int]]]
    epoch_records: int
    whole = False

    def drawn(self, epoch: int) -> Indices:
        """The samples of an epoch, in order, int64[epoch_records]."""
        return self.indices(epoch)

    def without(self, out: Indices) -> BatchOrder:
        """The same batches without the samples of ``out``; those that had no others are left out.

        Raises:
            ConfigError: none are left.
        """
        away = set(out.tolist())

        def others(epoch: int) -> list[list[int]]:
            batches = ([i for i in one if int(i) not in away] for one in self.batches(epoch))
            return [one for one in batches if one]

        return BatchOrder.of(others)

    def with_more(self, more: Indices, seed: int) -> BatchOrder:
        """The same batches with these samples at the end of some, chosen by (seed, epoch).

        Args:
            more: indices that are in no batch yet, int64[n]; each is in every epoch.
        """

        def together(epoch: int) -> list[list[int]]:
            batches = [[int(index) for index in one] for one in self.batches(epoch)]
            words = np.random.Philox(key=subseed("more", seed, epoch)).random_raw(len(more))
            for index, word in zip(more.tolist(), words.tolist(), strict=True):
                batches[word % len(batches)].append(index)
            return batches

        return BatchOrder.of(together)

    def indices(self, epoch: int) -> Indices:
        """The samples of an epoch, in order, int64[epoch_records]."""
        return np.concatenate([np.asarray(one, dtype=np.int64) for one in self.batches(epoch)])

    @staticmethod
    def of(batches: Callable[[int], Sequence[Sequence[int]]]) -> BatchOrder:
        """The order of a sampler.

        Raises:
            ConfigError: its first epoch is empty.
        """
        records = sum(len(batch) for batch in batches(0))
        if records == 0:
            raise ConfigError("the batch sampler gives no sample", where="DataLoader")
        return BatchOrder(batches, records)

    def slices(self, records: int, rank: int, world: int) -> Iterator[Slice]:
        """This rank's batches behind ``records`` samples, without end; as ``shares``."""
        return self.shares(records, (rank,), world)

    def shares(self, records: int, ranks: Sequence[int], world: int) -> Iterator[Slice]:
        """The batches of several ranks, one after the other for each global batch, without end.

        Raises:
            ConfigError: an epoch has another number of samples than the first, or other batches
                than those that were trained before.
        """
        epoch, seen = divmod(records, self.epoch_records)
        while True:
            batches = self.batches(epoch)
            ends = [0, *accumulate(len(batch) for batch in batches)]
            if ends[-1] != self.epoch_records or seen not in ends:
                raise ConfigError(
                    f"epoch {epoch} of the batch sampler has {ends[-1]} samples, the first one "
                    f"{self.epoch_records}; {seen} of it lie behind",
                    where="DataLoader(batch_sampler=…)",
                    hint="a sampler must give all its samples in each epoch, and the same "
                    "batches for the same epoch (set_epoch, or the seeded generators)",
                )
            first = ends.index(seen)
            for start in range(first, len(batches), world):
                together = batches[start : start + world]
                whole = np.concatenate([np.asarray(one, dtype=np.int64) for one in together])
                for rank in ranks:
                    mine = together[rank] if rank < len(together) else ()
                    yield Slice(
                        epoch=epoch,
                        records=len(whole),
                        indices=np.asarray(mine if len(mine) else together[0][:1], dtype=np.int64),
                        weight=len(mine),
                        last=start + world >= len(batches),
                        whole=whole,
                    )
            epoch, seen = epoch + 1, 0
