"""Samplers for loaders that a trial makes itself (``disable_dataset_reproducibility_checks``).

``pytorch.DataLoader`` needs none of them. Order them so: shuffle, repeat, distribute, skip.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import Sampler


class _Around(Sampler[Any]):
    """A sampler around another one, as long as that."""

    def __init__(self, inner: Iterable[Any]) -> None:
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._inner)


class RepeatSampler(_Around):
    """Again and again, without end; its length is that of once."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        super().__init__(sampler)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self._inner


class DistributedSampler(_Around):
    """Every ``num_workers``-th item, from the ``rank``-th on."""

    def __init__(self, sampler: Iterable[Any], num_workers: int, rank: int) -> None:
        if not 0 <= rank < num_workers:
            raise ValueError(f"rank {rank} of {num_workers} cannot be")
        super().__init__(sampler)
        self._world, self._rank = num_workers, rank

    def __len__(self) -> int:
        return len(range(self._rank, super().__len__(), self._world))

    def __iter__(self) -> Iterator[Any]:
        return islice(self._inner, self._rank, None, self._world)


class SkipSampler(_Around):
    """Without the first ``skip`` items: to go on, of a sampler that repeats."""

    def __init__(self, sampler: Iterable[Any], skip: int) -> None:
        super().__init__(sampler)
        self._skip = skip

    def __iter__(self) -> Iterator[Any]:
        return islice(self._inner, self._skip, None)


class ReproducibleShuffleSampler(_Around):
    """In an order that is drawn anew each time, the same ones for the same seed."""

    def __init__(self, sampler: Iterable[Any], seed: int) -> None:
        super().__init__(sampler)
        self._draw = np.random.RandomState(seed)

    def __iter__(self) -> Iterator[Any]:
        items = list(self._inner)
        self._draw.shuffle(items)
        return iter(items)


class RepeatBatchSampler(RepeatSampler):
    """The same with batches for items."""

    def __init__(self, batch_sampler: Iterable[Any]) -> None:
        super().__init__(batch_sampler)


class DistributedBatchSampler(DistributedSampler):
    """The same with batches for items."""

    def __init__(self, batch_sampler: Iterable[Any], num_workers: int, rank: int) -> None:
        super().__init__(batch_sampler, num_workers, rank)


class SkipBatchSampler(SkipSampler):
    """The same with batches for items."""

    def __init__(self, batch_sampler: Iterable[Any], skip: int) -> None:
        super().__init__(batch_sampler, skip)


class ReproducibleShuffleBatchSampler(ReproducibleShuffleSampler):
    """The same with batches for items."""

    def __init__(self, batch_sampler: Iterable[Any], seed: int) -> None:
        super().__init__(batch_sampler, seed)
