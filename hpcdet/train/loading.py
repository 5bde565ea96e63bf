"""Loaders that give a rank its shares of the global batches, from any position on.

A sample's augmentation draws from generators seeded by (seed, epoch, sample), whichever
process loads it and however many there are. Drawing it in the training process leaves that
process's own generators as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from hpcdet.train import notice, rng
from hpcdet.train.order import Slice, subseed

Key = tuple[int, int]
"""Epoch and index of a sample."""


class Seeded(Dataset[Any]):
    """A data set whose samples are drawn with generators of their own.

    A data set that fetches whole batches (``__getitems__``) is seeded once per share of a batch.
    """

    def __init__(self, dataset: Any, *seed: int | str) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitems__(self, keys: Sequence[Key]) -> list[Any]:
        before = rng.capture_cpu() if get_worker_info() is None else None
        try:
            if hasattr(self._dataset, "__getitems__"):
                self._plant(keys[0])
                return list(self._dataset.__getitems__([index for _, index in keys]))
            return [self._one(key) for key in keys]
        finally:
            if before is not None:
                rng.restore_cpu(before)

    def _one(self, key: Key) -> Any:
        self._plant(key)
        return self._dataset[key[1]]

    def _plant(self, key: Key) -> None:
        seed = subseed("sample", *self._seed, *key)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed % 2**63)


def loader(
    dataset: Any,
    slices: Callable[[], Iterator[Slice]],
    seed: Sequence[int | str],
    **options: Any,
) -> Iterator[tuple[Slice, Any]]:
    """Each slice with the batch of its samples.

    Args:
        slices: gives the same slices at each call (one copy runs ahead, to prefetch).
        options: of ``torch.utils.data.DataLoader``: ``num_workers``, ``collate_fn``, …
    """
    generator = torch.Generator()  # its own: making an iterator draws nothing from the global one
    generator.manual_seed(subseed("loader", *seed) % 2**63)
    prepare = options.pop("worker_init_fn", None)
    batches: DataLoader[Any] = DataLoader(
        Seeded(dataset, *seed),
        batch_sampler=_Keys(slices),
        generator=generator,
        worker_init_fn=_Prepare(prepare) if options.get("num_workers") else None,
        **options,
    )
    return zip(slices(), batches, strict=False)


class _Keys:
    def __init__(self, slices: Callable[[], Iterator[Slice]]) -> None:
        self._slices = slices

    def __iter__(self) -> Iterator[list[Key]]:
        for one in self._slices():
            yield [(one.epoch, int(index)) for index in one.indices]


class _Prepare:
    """First thing in a loader's worker: signals are its rank's business."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, number: int) -> None:
        notice.ignore()
        if self._then is not None:
            self._then(number)
