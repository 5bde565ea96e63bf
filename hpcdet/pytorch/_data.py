"""``DataLoader``: what torch's takes, but sharded, repeated and resumed by hpcdet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, Sampler

from hpcdet.errors import ConfigError
from hpcdet.train import rng
from hpcdet.train.loading import Seeded, loader
from hpcdet.train.order import Order, Slice, shuffled, subseed

TorchData = Any
"""A batch: tensors in any nest of dicts, lists and tuples."""


def to_device(data: TorchData, device: torch.device) -> TorchData:
    """A batch with all its tensors on a device; arrays and the rest stay as they are."""
    return tree_map_only(torch.Tensor, lambda one: one.to(device, non_blocking=True), data)


class DataLoader:
    """Describes how samples become batches; the trainer makes the loaders of each rank from it.

    Takes the arguments of ``torch.utils.data.DataLoader``. The order of samples depends on the
    trial's seed and the epoch only, their augmentation on seed, epoch and sample only: not on
    the number of ranks or workers.

    Args:
        dataset: with ``__len__`` and ``__getitem__``.
        batch_size: samples of one slot, usually ``context.get_per_slot_batch_size()``.
        shuffle: a new order in each epoch.
        sampler: an order of its own, asked for once per epoch with seeded generators; its
            ``set_epoch`` is called if it has one.
        options: ``num_workers``, ``collate_fn``, ``pin_memory``, ``prefetch_factor``, …

    Raises:
        ConfigError: an iterable data set, a batch sampler, or a generator, which cannot be
            sharded and resumed without loss.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        sampler: Sampler[int] | Sequence[int] | None = None,
        batch_sampler: None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise ConfigError(
                "a data set without indices cannot be sharded and resumed",
                where=type(dataset).__name__,
                hint="give it __len__ and __getitem__, or write the loop with the Core API",
            )
        for name, value in (("batch_sampler", batch_sampler), *options.items()):
            if name in ("batch_sampler", "generator") and value is not None:
                raise ConfigError(
                    f"{name} is not supported: the order of samples is the trainer's",
                    where="DataLoader",
                    hint="use shuffle, or sampler",
                )
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}", where="DataLoader")
        options.pop("persistent_workers", None)  # workers live as long as they are needed
        self.dataset = dataset
        self.batch_size = batch_size
        self._shuffle = shuffle
        self._sampler = sampler
        self._drop_last = drop_last
        self._options = {
            "num_workers": num_workers,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory and torch.cuda.is_available(),
            **options,
        }

    def __len__(self) -> int:
        """Batches of one slot in an epoch, if there is one slot."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole + (rest > 0 and not self._drop_last)

    def order(self, seed: int, batch: int) -> Order:
        """The global batches of ``batch`` samples.

        Raises:
            ConfigError: the data set is empty or smaller than one full batch.
        """
        try:
            size = len(self.dataset) if self._sampler is None else len(self._epoch(seed, 0))
            return Order(size, batch, lambda epoch: self._epoch(seed, epoch), self._drop_last)
        except ValueError as error:
            raise ConfigError(str(error), where="DataLoader") from error

    def _epoch(self, seed: int, epoch: int) -> Any:
        if self._sampler is not None:
            return self._sampled(seed, epoch)
        if self._shuffle:
            return shuffled(len(self.dataset), seed, epoch)
        return np.arange(len(self.dataset))

    def _sampled(self, seed: int, epoch: int) -> list[int]:
        before = rng.capture_cpu()
        try:
            rng.seed_all(subseed("sampler", seed, epoch))
            if hasattr(self._sampler, "set_epoch"):
                cast("Any", self._sampler).set_epoch(epoch)
            return [int(index) for index in cast("Sequence[int]", self._sampler)]
        finally:
            rng.restore_cpu(before)

    def training(
        self, order: Order, seed: int, records: int, mine: range, shares: int
    ) -> Iterator[tuple[Slice, TorchData]]:
        """This rank's batches behind ``records`` samples, without end.

        Args:
            mine: which of the ``shares`` of each global batch are this rank's.
        """
        return loader(
            self.dataset, lambda: order.shares(records, mine, shares), (seed,), **self._options
        )

    def validation(self, seed: int, mine: range, shares: int) -> Iterator[tuple[Slice, TorchData]]:
        """This rank's batches of one pass in order; arguments as of ``training``.

        Where the last global batch has fewer samples than there are shares, some are one sample
        with weight 0, so that all ranks have the same number of batches.
        """
        order = self.order(seed, self.batch_size * shares)

        def once() -> Iterator[Slice]:
            one_pass = order.epoch_batches * len(mine)
            yield from itertools.islice(order.shares(0, mine, shares), one_pass)

        return loader(self.dataset, once, ("validation", seed), **self._options)

    def whole(self, seed: int) -> TorchDataLoader[Any]:
        """A torch loader over all of the data, for one rank that does it alone."""
        return TorchDataLoader(
            _Plain(self.dataset, seed),
            batch_size=self.batch_size,
            generator=torch.Generator(),
            **self._options,
        )


class _Plain(Seeded):
    """Seeded samples by index alone."""

    def __init__(self, dataset: Any, seed: int) -> None:
        super().__init__(dataset, "validation", seed)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, keys: Sequence[Any]) -> list[Any]:
        return super().__getitems__([(0, index) for index in keys])
