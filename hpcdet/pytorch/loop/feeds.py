"""The sources of the trainer's batches, and its position in them.

Data with indices need no state: their position is the number of samples seen. Streams and
foreign loaders that know their own position have a state on each rank.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from hpcdet.core.training import Peers
from hpcdet.data import rng
from hpcdet.data.batch_order import BatchOrder
from hpcdet.data.canary_rows import WithCanaries
from hpcdet.data.sample_order import CountedOrder, Indices, Order, Slice, subseed
from hpcdet.data.sourced import SourceTable, StreamShare
from hpcdet.data.stream_readers import NO_SOURCES, State, Stateful
from hpcdet.data.streams import Stream
from hpcdet.errors import ConfigError, HpcdetError, IntegrityError
from hpcdet.pytorch.api.context import PyTorchTrialContext
from hpcdet.pytorch.api.data_loader import DataLoader, TorchData, data_length

Batch = tuple[Slice, TorchData]
"""What this rank takes of a step, and its samples."""


class Feed(Protocol):
    """Batches of training, without end.

    Attributes:
        epoch_records: samples in an epoch, over all ranks.
        batch: samples in a global batch; None where that varies.
        order: of samples with indices, or of the sources of streams; None of others.
        data: what the batches are made of, canaries among it.
        sources: of each sample by its index, or of each place in the order of streams; None:
            nothing says them.
        records: of the user's own samples; behind them are canaries.
    """

    order: CountedOrder | None
    data: Any
    sources: SourceTable | None
    records: SourceTable | None

    @property
    def batch(self) -> int | None: ...

    @property
    def epoch_records(self) -> int: ...

    def batches(self, records: int) -> Iterator[Batch]:
        """This rank's shares behind so many samples."""

    def state(self) -> State | None:
        """This rank's position behind the last batch; None where ``records`` is enough."""

    def load(self, state: State | None) -> None:
        """Go on from a position; None: this rank has none in the checkpoint."""


def feed_of(data: Any, context: PyTorchTrialContext, batch: int) -> Feed:
    """The feed of what ``build_training_data_loader`` returned.

    Args:
        batch: samples in a global batch.

    Raises:
        ConfigError: it is something that cannot be resumed.
    """
    seed, ranks = context.core.seed, context.core.session.ranks
    if isinstance(data, DataLoader) and not data.streams:
        return _Indexed(data, data.order(seed, batch), context)
    context.core.governance.test_memorization(None, None)
    context.division.check_indexed(data)
    if isinstance(data, DataLoader):
        data.check_resumable()
        stream, length = data.stream(seed, ranks.rank, ranks.world), _length(data, context)
        share = data.stream_share(seed, ranks.rank, ranks.world)
        if share is None:
            return _Streamed(data, stream, length, ranks.world)
        return _SourcedStreams(data, stream, length, share)
    _accept(data, context, "build_training_data_loader")
    size = getattr(data, "batch_size", None) or 1
    return _Foreign(data, context, _length(data, context), size)


def passes(data: Any, context: PyTorchTrialContext) -> Iterator[Batch]:
    """One pass through what ``build_validation_data_loader`` returned.

    Where the ranks' parts are not equally long, the batches of those that have none left have
    weight 0, so that all have the same number.
    """
    session = context.core.session
    if isinstance(data, DataLoader) and not data.streams:
        seed = context.core.seed
        return told(data.validation(seed, context.mine, context.shares), data, seed)
    context.division.check_indexed(data)
    if isinstance(data, DataLoader):
        stream = data.stream(context.core.seed, session.ranks.rank, session.ranks.world)
        return _in_step(stream.once(), session.peers)
    _accept(data, context, "build_validation_data_loader")
    return _in_step(((_samples(batch), batch, NO_SOURCES) for batch in data), session.peers)


def whole(data: Any, context: PyTorchTrialContext) -> Any:
    """All validation data as a torch loader, for one rank."""
    if isinstance(data, DataLoader):
        return data.whole(context.core.seed)
    _accept(data, context, "build_validation_data_loader")
    return data


def _accept(data: Any, context: PyTorchTrialContext, method: str) -> None:
    if isinstance(data, Stateful) or context.experimental.unchecked_data:
        return
    raise ConfigError(
        f"{method} returned a {type(data).__name__}, whose position cannot be saved",
        where=method,
        hint="return hpcdet.pytorch.DataLoader, which takes the same arguments, or torchdata's "
        "StatefulDataLoader; or do sharding and skipping yourself, after "
        "context.experimental.disable_dataset_reproducibility_checks()",
    )


def told(batches: Iterator[Batch], data: DataLoader, seed: int) -> Iterator[Batch]:
    """The batches of data; where none can be made because of a canary, the error says which."""
    samples = data.dataset
    return _told(batches, data, samples, seed) if isinstance(samples, WithCanaries) else batches


def _told(
    batches: Iterator[Batch], data: DataLoader, samples: WithCanaries, seed: int
) -> Iterator[Batch]:
    try:
        yield from batches
    except HpcdetError:
        raise
    except Exception:
        samples.refuse_unlike(lambda indices: data.collated([indices], seed, 0))
        raise


def _length(data: Any, context: PyTorchTrialContext) -> int | None:
    """Batches in an epoch, as rank 0 counts them; None where that is unknown."""
    try:
        length = len(data)
    except TypeError:
        length = None
    return context.distributed.broadcast(length)


def _samples(batch: TorchData) -> int:
    try:
        return data_length(batch)
    except ConfigError:
        return 1


def _in_step(batches: Iterator[tuple[int, TorchData, Indices]], peers: Peers) -> Iterator[Batch]:
    batch, places = None, NO_SOURCES
    while True:  # one that has ended repeats its last batch
        size, batch, places = next(batches, (0, batch, places))
        if not any(peers.allgather(size)):
            return
        yield Slice(0, size, places, size, last=False), batch


class _Indexed:
    def __init__(
        self, data: DataLoader, order: Order | BatchOrder, context: PyTorchTrialContext
    ) -> None:
        self.records = data.sources() if context.learning.guard is not None else None
        tests = context.core.governance.test_memorization(order, self.records)
        if tests is not None and tests.twins is not None:
            order = _without(order, tests.twins.outside)
        self.data, self.sources = data, self.records
        if tests is not None and tests.canaries is not None and self.records is not None:
            canaries = tests.canaries
            samples = WithCanaries.of(data.dataset, self.records, canaries.blocks)
            order = order.with_more(canaries.trained, context.core.seed)
            self.data, self.sources = data.with_samples(samples), samples.sources
        self._order = order
        self.order: CountedOrder | None = order
        self._context = context
        self.epoch_records = self._order.epoch_records

    @property
    def batch(self) -> int | None:
        return self._order.batch if isinstance(self._order, Order) else None

    def batches(self, records: int) -> Iterator[Batch]:
        context = self._context
        seed = context.core.seed
        found = self.data.training(self._order, seed, records, context.mine, context.shares)
        return told(found, self.data, seed)

    def state(self) -> State | None:
        return None

    def load(self, state: State | None) -> None:
        pass


def _without(order: Order | BatchOrder, out: Indices) -> Order | BatchOrder:
    try:
        return order.without(out)
    except ValueError as error:
        raise ConfigError(
            f"without the withheld twins {error}",
            where="memorization.twins",
            hint="take fewer pairs, or a smaller batch",
        ) from error


class _Counted:
    """Batches without numbers of their own: each counts as a full one, on every rank.

    Args:
        length: batches in an epoch; None: there are no epochs.
        batch: samples in a rank's batch.
    """

    order: CountedOrder | None = None
    sources: SourceTable | None = None
    records: SourceTable | None = None

    def __init__(self, data: Any, length: int | None, batch: int, world: int) -> None:
        self.data = data
        self._length = length
        self._share = batch
        self.batch = batch * world
        self.epoch_records = length * self.batch if length else sys.maxsize

    def _numbered(self, batches: Iterator[TorchData], records: int) -> Iterator[Batch]:
        for number, batch in enumerate(batches, records // self.batch):
            epoch, place = divmod(number, self._length) if self._length else (0, number)
            last = place + 1 == self._length
            yield Slice(epoch, self.batch, np.empty(0, np.int64), self._share, last), batch


class _Streamed(_Counted):
    def __init__(self, data: DataLoader, stream: Stream, length: int | None, world: int) -> None:
        super().__init__(data, length, data.batch_size, world)
        self._stream = stream

    def batches(self, records: int) -> Iterator[Batch]:
        return self._numbered((batch for batch, _ in self._stream.endless()), records)

    def state(self) -> State | None:
        return self._stream.state()

    def load(self, state: State | None) -> None:
        self._stream.load(_found(state))


class _SourcedStreams(_Streamed):
    """Streams of several sources: each rank knows whose the samples of all ranks are."""

    def __init__(
        self, data: DataLoader, stream: Stream, length: int | None, share: StreamShare
    ) -> None:
        super().__init__(data, stream, length, share.world)
        self._stream_share = share
        self.order, self.sources = share.order, data.sources()
        self.records = self.sources

    def batches(self, records: int) -> Iterator[Batch]:
        first = records // self.batch
        self._stream.check_read(first)
        read = self._numbered(self._stream.endless(), records)
        for number, (part, (batch, places)) in enumerate(read, first):
            if not np.array_equal(places, self._stream_share.own(number)):
                raise IntegrityError(
                    f"batch {number} is of other sources than its place says",
                    where="Sourced",
                    hint="the position in the checkpoint is not of these streams, or was changed",
                )
            yield part._replace(indices=places, whole=self._stream_share.whole(number)), batch


class _Foreign(_Counted):
    """A loader of torch's or torchdata's, or anything that can be iterated.

    It draws from generators that are seeded before each batch, so that what it takes for
    itself changes nothing in training.
    """

    def __init__(
        self, loader: Any, context: PyTorchTrialContext, length: int | None, batch: int
    ) -> None:
        super().__init__(loader, length, batch, context.distributed.size)
        self._loader = loader
        self._seed = (context.core.seed, context.distributed.rank)
        self._epoch = self._place = 0

    def batches(self, records: int) -> Iterator[Batch]:
        if not isinstance(self._loader, Stateful):
            self._epoch = records // self.epoch_records
        return self._numbered(self._endless(), records)

    def _endless(self) -> Iterator[TorchData]:
        while True:
            batches: Iterator[TorchData] | None = None
            while True:
                before = rng.capture_cpu()
                try:
                    # a sampler shuffles at the first call, in an epoch that is resumed, too
                    place = 0 if batches is None else self._place
                    rng.seed_all(subseed("foreign", *self._seed, self._epoch, place))
                    batches = iter(self._loader) if batches is None else batches
                    batch = next(batches)
                except StopIteration:
                    break
                finally:
                    rng.restore_cpu(before)
                self._place += 1
                yield batch
            if not self._place:
                raise ConfigError("the training data loader is empty", where=repr(self._loader))
            self._epoch, self._place = self._epoch + 1, 0

    def state(self) -> State | None:
        if not isinstance(self._loader, Stateful):
            return None
        loader = self._loader.state_dict()
        return {"epoch": self._epoch, "place": self._place, "loader": loader}

    def load(self, state: State | None) -> None:
        if isinstance(self._loader, Stateful):
            found = _found(state)
            self._epoch, self._place = found["epoch"], found["place"]
            self._loader.load_state_dict(found["loader"])


def _found(state: State | None) -> State:
    if state is None:
        raise ConfigError(
            "the checkpoint has no position in the data for this rank",
            where="build_training_data_loader",
            hint="streams continue only with the same number of ranks; data with indices with any",
        )
    return state
