"""``Loader``: a torch DataLoader whose order and augmentation do not depend on interruptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler, default_collate

from hpcdet import core
from hpcdet.data.loader import Seeded, as_is
from hpcdet.data.sample_order import Order, shuffled, subseed
from hpcdet.errors import ConfigError

Key = tuple[int, int]
"""Epoch and index of a sample."""


class Loader(DataLoader[Any]):
    """This rank's batches of one epoch, for frameworks that take any torch loader.

    The order is a function of the trial's seed and the epoch, augmentation of seed, epoch and
    sample. It may begin behind any batch of an epoch, without reading what lies before.

    Attributes:
        batch: samples in a global batch.
        position: where the next pass begins; its adapter sets it.
    """

    def __init__(
        self,
        context: core.Context,
        dataset: Any,
        batch: int,
        *,
        shuffle: bool = True,
        drop_last: bool = True,
        **options: Any,
    ) -> None:
        """Share a data set's batches among the ranks.

        Args:
            dataset: with ``__len__`` and ``__getitem__``.
            batch: samples in a global batch, which the ranks share evenly.
            drop_last: leave a smaller last batch of an epoch out; needed with several ranks.
            options: of torch's ``DataLoader``: ``num_workers``, ``collate_fn``, …

        Raises:
            ConfigError: the ranks cannot share a batch evenly, or there is no full one.
        """
        ranks, seed = context.session.ranks, context.seed
        if batch % ranks.world or (ranks.world > 1 and not drop_last):
            raise ConfigError(
                f"{ranks.world} ranks cannot share batches of {batch} evenly"
                + ("" if drop_last else ", and the last of an epoch even less"),
                where="Loader",
                hint="the framework averages gradients over ranks: use a multiple, and drop_last",
            )
        size = len(dataset)

        def epoch_order(epoch: int) -> Any:
            return shuffled(size, seed, epoch) if shuffle else range(size)

        try:
            order = Order(size, batch, epoch_order, drop_last)
        except ValueError as error:
            raise ConfigError(str(error), where="Loader") from error
        self.batch = batch
        self.position = Position(order, ranks.rank, ranks.world)
        generator = torch.Generator()  # its own: making an iterator draws nothing from the global
        generator.manual_seed(subseed("loader", seed) % 2**63)
        collate = options.pop("collate_fn", None) or default_collate
        super().__init__(
            _ByKeys(dataset, collate, seed),
            batch_sampler=self.position,
            collate_fn=as_is,  # the data set gives whole batches
            generator=generator,
            **options,
        )

    def state_dict(self) -> dict[str, int]:
        """The position, for frameworks that save loaders."""
        return {"epoch": self.position.epoch, "skip": self.position.skip}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position.set(state["epoch"], state["skip"])


class _ByKeys(Seeded):
    """Samples by a list, as frameworks expect of a batch; Keras asks for their number."""

    def __getitems__(self, wanted: Any) -> Any:
        return super().__getitems__((wanted[0][0], [index for _, index in wanted]))

    def __len__(self) -> int:
        return len(self._dataset)


class Position(Sampler[list[Key]]):
    """The batches of ``epoch`` behind its first ``skip`` ones."""

    def __init__(self, order: Order, rank: int, world: int) -> None:
        self.epoch = 0
        self.skip = 0
        self._order = order
        self._rank, self._world = rank, world

    def set(self, epoch: int, skip: int) -> None:
        """The next pass begins here; one that is under way goes on."""
        self.epoch, self.skip = epoch, skip

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; frameworks call this before each pass."""
        if epoch != self.epoch:
            self.set(epoch, 0)

    def __len__(self) -> int:
        """Batches of a whole epoch, wherever the next pass begins."""
        return self._order.epoch_batches

    def __iter__(self) -> Iterator[list[Key]]:
        epoch = self.epoch
        records = epoch * self._order.epoch_records + self.skip * self._order.batch
        for one in self._order.slices(records, self._rank, self._world):
            if one.epoch != epoch:
                return
            yield [(one.epoch, int(index)) for index in one.indices]
            if one.last:
                return
