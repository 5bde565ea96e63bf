"""``DataLoader``: what torch's takes, but sharded, repeated and resumed by hpcdet."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_map_only
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    default_collate,
)
from torch.utils.data import DataLoader as TorchDataLoader

import hpcdet.pytorch.samplers as samplers  # noqa: PLR0402 - the package itself is above
from hpcdet.data.batch_order import BatchOrder
from hpcdet.data.loader import Seeded, ShardedLoader, Sources, as_is
from hpcdet.data.sample_order import Order, Slice, shuffled
from hpcdet.data.sourced import Sourced, SourceTable, StreamShare, table_of
from hpcdet.data.stream_readers import check_resumable
from hpcdet.data.streams import Stream
from hpcdet.errors import ConfigError

TorchData = Any
"""A batch: tensors in any nest of dicts, lists and tuples."""


def to_device(data: TorchData, device: torch.device, warned_types: object = None) -> TorchData:
    """A batch with all its tensors on a device; arrays and the rest stay as they are.

    ``warned_types`` is Determined's; nothing is warned of.
    """
    if device.type == "cpu":  # where data sets and loaders leave them
        return data
    return tree_map_only(torch.Tensor, lambda one: one.to(device, non_blocking=True), data)


def data_length(data: TorchData) -> int:
    """Samples in a batch: the length of its first tensor or array.

    Raises:
        ConfigError: there is none.
    """
    if isinstance(data, torch.Tensor | np.ndarray):
        return len(data)
    items = list(data.values()) if isinstance(data, Mapping) else data
    if isinstance(items, Sequence) and items and not isinstance(items, str):
        return data_length(items[0])
    raise ConfigError(
        f"the number of samples is unknown for a batch of type {type(data).__name__} has",
        hint="define the trial's get_batch_length",
    )


class DataLoader:
    """Describes how samples become batches; the trainer makes the loaders of each rank from it.

    Takes the arguments of ``torch.utils.data.DataLoader``. The order of samples depends on the
    trial's seed and the epoch only, their augmentation on seed, epoch and sample only: not on
    the number of ranks or workers.

    Args:
        dataset: with ``__len__`` and ``__getitem__``; or a stream, an ``IterableDataset``, of
            which each rank reads its own and which for training has ``state_dict`` and
            ``load_state_dict``; or ``Sourced`` of either.
        batch_size: samples of one slot, usually ``context.get_per_slot_batch_size()``.
        shuffle: a new order in each epoch.
        sampler: an order of its own, asked for once per epoch with seeded generators, those of
            its own included; its ``set_epoch`` is called if it has one.
        batch_sampler: likewise, but of whole batches, of which each rank takes one per step.
        generator: its initial seed is the order's, in place of the trial's.
        persistent_workers: validation keeps its workers, too (training always does).
        sources: the source of each sample by its index, a name or several, for training under a
            policy; by default the data set's own ``sources``, as ``Sourced`` has them. Not of
            streams, which have no indices.

    Raises:
        ConfigError: arguments that exclude each other, or data that cannot be resumed without
            loss.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Sampler[int] | Sequence[int] | None = None,
        batch_sampler: Sampler[list[int]] | Sequence[Sequence[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        sources: Sequence[str | Sequence[str]] | None = None,
    ) -> None:
        self.streams = isinstance(dataset, IterableDataset) or (
            isinstance(dataset, Sourced) and dataset.streams
        )
        if not (self.streams or hasattr(dataset, "__len__")):
            raise ConfigError(
                "a data set without indices and without a position cannot be resumed",
                where=type(dataset).__name__,
                hint="give it __len__ and __getitem__, or make it an IterableDataset with "
                "state_dict and load_state_dict",
            )
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler or drop_last):
            _refuse("batch_sampler excludes batch_size, shuffle, sampler and drop_last")
        if shuffle and sampler is not None:
            _refuse("sampler excludes shuffle")
        if self.streams and (shuffle or sampler is not None or batch_sampler is not None):
            _refuse("a stream has its own order: no shuffle, no sampler")
        if self.streams and sources is not None:
            _refuse(
                "a stream has no indices that sources could be of",
                'give pytorch.Sourced({"name": stream, ...})',
            )
        inner = getattr(batch_sampler, "sampler", sampler)
        if isinstance(inner, DistributedSampler) and inner.num_replicas > 1:
            _refuse("a DistributedSampler would cut the data twice: leave it out")
        if batch_size is None or batch_size < 1:
            _refuse(f"batch_size is {batch_size}")
        if num_workers == 0 and (persistent_workers or prefetch_factor is not None):
            _refuse("persistent_workers and prefetch_factor need num_workers")
        self.dataset = dataset
        self.batch_size = cast("int", batch_size)
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.drop_last = drop_last
        self._shuffle = shuffle
        self._generator = generator
        self._sources = sources
        self._options = {
            "num_workers": num_workers,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory and torch.cuda.is_available(),
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
        }
        self._validation: ShardedLoader | None = None

    def __len__(self) -> int:
        """Batches of one slot in an epoch, if there is one slot."""
        if self.batch_sampler is not None:
            return len(cast("Any", self.batch_sampler))
        samples = self.dataset if self.sampler is None else self.sampler
        whole, rest = divmod(len(cast("Any", samples)), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[TorchData]:
        """The batches of a first epoch, for code that runs without a trainer."""
        if self.streams:
            yield from (batch for _, batch, _ in self.stream(0, 0, 1).once())
            return
        for part, batch in self.training(self.order(0, self.batch_size), 0, 0, range(1), 1):
            yield batch
            if part.last:
                return

    def get_data_loader(
        self, repeat: bool = False, skip: int = 0, num_replicas: int = 1, rank: int = 0
    ) -> TorchDataLoader[Any]:
        """Determined's: a torch loader of one rank's batches, for a loop of the trial's own.

        Shuffled data come in a new order at each pass, the same on all ranks. No checkpoint
        knows how far such a loop is.

        Args:
            repeat: without end.
            skip: leave out so many of this rank's batches.
            num_replicas: ranks that share the data; ``rank``: which of them this is.

        Raises:
            ConfigError: it is a stream.
        """
        if self.streams:
            _refuse("the batches of a stream cannot be divided")
        batches: Any = self.batch_sampler
        if batches is None:
            items: Any = range(len(self.dataset)) if self.sampler is None else self.sampler
            if self._shuffle:
                seed = 0 if self._generator is None else self._generator.initial_seed()
                items = samplers.ReproducibleShuffleSampler(items, seed % 2**32)
            batches = BatchSampler(items, self.batch_size, self.drop_last)
        if repeat:
            batches = samplers.RepeatSampler(batches)
        if num_replicas > 1:
            batches = samplers.DistributedSampler(batches, num_replicas, rank)
        if skip:
            batches = samplers.SkipSampler(batches, skip)
        return TorchDataLoader(self.dataset, batch_sampler=batches, **self._options)

    # -- data with indices -------------------------------------------------------------------

    def order(self, seed: int, batch: int) -> Order | BatchOrder:
        """The global batches of ``batch`` samples.

        Raises:
            ConfigError: the data set is empty or smaller than one full batch.
        """
        seed = seed if self._generator is None else self._generator.initial_seed()
        if self.batch_sampler is not None:
            sampled = cast("Any", self.batch_sampler)
            return BatchOrder.of(lambda epoch: _sampled(sampled, seed, epoch))
        try:
            size = len(self.dataset) if self.sampler is None else len(self._epoch(seed, 0))
            plain = self.sampler is None
            rule = "" if not plain else f"shuffled {seed}" if self._shuffle else "in turn"
            return Order(
                size, batch, lambda epoch: self._epoch(seed, epoch), self.drop_last, plain, rule
            )
        except ValueError as error:
            raise ConfigError(str(error), where="DataLoader") from error

    def _epoch(self, seed: int, epoch: int) -> Any:
        if self.sampler is not None:
            return [int(index) for index in _sampled(self.sampler, seed, epoch)]
        if self._shuffle:
            return shuffled(len(self.dataset), seed, epoch)
        return np.arange(len(self.dataset))

    def with_samples(self, dataset: Any) -> DataLoader:
        """Return the same loader over a data set with further samples; ``sources`` names theirs.

        Args:
            dataset: with indices, and ``sources``.
        """
        found = copy.copy(self)
        found.dataset, found._sources, found._validation = dataset, None, None
        return found

    def over(self, indices: Sequence[int] | NDArray[np.int64], batch: int | None) -> DataLoader:
        """A loader of some samples, in this order, for validation.

        Args:
            batch: samples of one slot; None: as many as this loader has.
        """
        options = {**self._options, "persistent_workers": bool(self._options["num_workers"])}
        size = self.batch_size if self.batch_sampler is None else self._sampled_batch()
        return DataLoader(
            self.dataset, batch or size, sampler=[int(one) for one in indices], **options
        )

    def _sampled_batch(self) -> int:
        """The samples of a batch sampler's first batch."""
        return len(_sampled(cast("Any", self.batch_sampler), 0, 0)[0])

    def training(
        self, order: Order | BatchOrder, seed: int, records: int, mine: range, shares: int
    ) -> Iterator[tuple[Slice, TorchData]]:
        """This rank's batches behind ``records`` samples, without end.

        Args:
            mine: which of the ``shares`` of each global batch are this rank's.
        """
        return iter(
            ShardedLoader(
                self.dataset,
                lambda: order.shares(records, mine, shares),
                (seed,),
                **self._options,
            )
        )

    def collated(
        self, wanted: Sequence[NDArray[np.int64]], seed: int, epoch: int
    ) -> list[TorchData]:
        """Batches of samples by index, made in this process as ``training`` makes them."""
        collate = self._options["collate_fn"] or default_collate
        made = Seeded(self.dataset, cast("Any", collate), seed)
        return [made.__getitems__((epoch, one.tolist())) for one in wanted]

    def validation(self, seed: int, mine: range, shares: int) -> Iterator[tuple[Slice, TorchData]]:
        """This rank's batches of one pass in order; arguments as of ``training``.

        Where the last global batch has fewer samples than there are shares, some are one sample
        with weight 0, so that all ranks have the same number of batches.
        """
        if self._validation is not None:
            return iter(self._validation)
        order = self.order(seed, self.batch_size * shares)

        def once() -> Iterator[Slice]:
            for number, one in enumerate(order.shares(0, mine, shares), 1):
                yield one
                if one.last and number % len(mine) == 0:
                    return

        made = ShardedLoader(self.dataset, once, ("validation", seed), **self._options)
        if self._options["persistent_workers"]:
            self._validation = made
        return iter(made)

    def sources(self) -> SourceTable | None:
        """The source of each sample; None if the data have no sources.

        Raises:
            ConfigError: there are more or fewer than samples.
        """
        if not self.streams:
            return table_of(self.dataset, self._sources)
        return self.dataset.sources if isinstance(self.dataset, Sourced) else None

    # -- streams -----------------------------------------------------------------------------

    def stream_share(self, seed: int, rank: int, world: int) -> StreamShare | None:
        """This rank's part of streams with sources; None of others."""
        if not isinstance(self.dataset, Sourced):
            return None
        return StreamShare(self.dataset.order(seed), rank, world, self.batch_size)

    def stream(self, seed: int, rank: int, world: int) -> Stream:
        """This rank's stream."""
        return Stream(
            self.dataset,
            self.batch_size,
            seed,
            rank,
            drop_last=self.drop_last,
            share=self.stream_share(seed, rank, world),
            **self._options,
        )

    def check_resumable(self) -> None:
        """Whether training can go on with it after a restart.

        Raises:
            ConfigError: it is a stream that does not know its position.
        """
        if self.streams:
            check_resumable(self.dataset)

    # -- one rank alone ----------------------------------------------------------------------

    def whole(self, seed: int) -> TorchDataLoader[Any]:
        """A torch loader over all of the data, for one rank that does it alone."""
        options = {**self._options, "generator": torch.Generator()}
        if self.streams:
            sourced = isinstance(self.dataset, Sourced)
            samples = ChainDataset(self.dataset.parts.values()) if sourced else self.dataset
            return TorchDataLoader(samples, batch_size=self.batch_size, **options)
        collate = options.pop("collate_fn") or default_collate
        plain = _Plain(self.dataset, collate, "validation", seed)
        return TorchDataLoader(plain, self.batch_size, collate_fn=as_is, **options)


class _Plain(Seeded):
    """Seeded samples by index alone."""

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, wanted: Sequence[Any]) -> Any:
        return super().__getitems__((0, list(wanted)))


def _sampled(sampler: Any, seed: int, epoch: int) -> list[Any]:
    """Draw a sampler's samples of an epoch from seeded generators."""
    sources = Sources(sampler)  # with generators of its own, which no checkpoint has
    before = sources.capture()
    try:
        sources.plant("sampler", seed, epoch)
        for one in (sampler, getattr(sampler, "sampler", sampler)):
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)
        return list(sampler)
    finally:
        sources.restore(before)


def _refuse(text: str, hint: str = "") -> None:
    raise ConfigError(text, where="DataLoader", hint=hint)
