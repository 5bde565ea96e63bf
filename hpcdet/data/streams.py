"""Streams: data sets without indices, which know their own position.

A stream has ``state_dict`` and ``load_state_dict`` beside ``__iter__``; after
``load_state_dict`` its iterator goes on where the state was taken. Each rank has its own, and
each of a rank's loader workers as well. With every batch comes the state behind it, so that
what workers have prefetched is neither lost nor repeated, and the sources of its samples, where
``Sourced`` says them. Random numbers are seeded before each sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from hpcdet.data.loader import as_is, process_options, started
from hpcdet.data.sample_order import Indices
from hpcdet.data.sourced import StreamShare
from hpcdet.data.stream_readers import (
    Collate,
    InTurnReader,
    PlainReader,
    SourcedReader,
    State,
    StreamReader,
    beginning,
    rewind,
)
from hpcdet.errors import ConfigError, IntegrityError


class Stream:
    """A rank's batches of a stream, and the position in it.

    Args:
        batch: samples of a batch; the last one of a pass may be smaller.
        seed: a rank's own.
        drop_last: leave out a smaller last batch.
        share: of streams with sources, which of their samples this rank takes.
        options: of ``torch.utils.data.DataLoader``.
    """

    def __init__(
        self,
        dataset: Any,
        batch: int,
        *seed: int | str,
        drop_last: bool = False,
        share: StreamShare | None = None,
        **options: Any,
    ) -> None:
        self._dataset = dataset
        self._collate = options.pop("collate_fn", None) or default_collate
        self._batch = batch
        self._drop_last = drop_last
        self._share = share
        self._seed = seed
        self._options = options
        # with one worker, samples come in the same order as without any
        self._workers: list[State | None] = [None] * max(1, options.get("num_workers", 0))
        self._turn = 0
        self._begin = beginning(dataset)

    def state(self) -> State:
        """The position behind the last batch that was taken."""
        return {"workers": list(self._workers), "turn": self._turn}

    def load(self, state: State) -> None:
        """Go on from a position.

        Raises:
            ConfigError: it is that of another number of loader workers, or of streams without
                sources where these have some, or the other way round.
        """
        if len(state["workers"]) != len(self._workers):
            raise ConfigError(
                f"the stream was read by {len(state['workers'])} loader workers, each at a place "
                f"of its own, and now there are {len(self._workers)}",
                where="DataLoader(num_workers=…)",
                hint="use the same number; data with indices leave it free",
            )
        sourced = self._share is not None
        if any(one is not None and ("parts" in one) != sourced for one in state["workers"]):
            had, has = ("one stream", "streams with sources")[:: 1 if sourced else -1]
            raise ConfigError(
                f"the checkpoint has a position in {had}, and the data are {has}",
                where="DataLoader",
                hint="go on with the streams that it was trained on",
            )
        self._workers, self._turn = list(state["workers"]), state["turn"]

    def check_read(self, batches: int) -> None:
        """See that a position in streams with sources is that behind so many batches.

        Raises:
            IntegrityError: it is another one.
        """
        read = sum(one["batches"] for one in self._workers if one is not None)
        if read != batches:
            raise IntegrityError(
                f"its position in the streams is behind {read} batches, and it has trained "
                f"{batches}",
                where="checkpoint",
                hint="it is not of these data, or was changed",
            )

    def endless(self) -> Iterator[tuple[Any, Indices]]:
        """Batches from the position on, pass after pass, with the places of their sources."""
        for found in self._read(self._workers, self._turn, passes=None):
            if found is not None:  # a worker whose turn came before this attempt says None
                _, batch, places, self._workers[self._turn] = found
                self._turn = (self._turn + 1) % len(self._workers)
                yield batch, places

    def once(self) -> Iterator[tuple[int, Any, Indices]]:
        """One pass from the beginning, whatever was read before: batches with their sizes.

        Streams with sources come one after the other.
        """
        rewind(self._dataset, self._begin)
        for size, batch, places, _ in self._read([None] * len(self._workers), 0, passes=1):
            yield size, batch, places

    def _read(self, positions: list[State | None], turn: int, passes: int | None) -> Iterator[Any]:
        readers = _Readers(
            self._dataset,
            self._collate,
            self._batch,
            self._drop_last,
            self._seed,
            list(positions),
            turn,
            passes,
            self._share,
        )
        options = process_options(self._options, *self._seed)
        return started(DataLoader(readers, batch_size=None, collate_fn=as_is, **options))


@dataclass(eq=False)
class _Readers(IterableDataset[Any]):
    """The batches that a loader's workers read, with their sizes and the state behind them.

    Attributes:
        positions: of each worker; None: at the beginning.
        turn: the worker whose batch comes next; those before it say None first.
        passes: through the stream; None: without end.
        share: of streams with sources.
    """

    dataset: Any
    collate: Collate
    batch: int
    drop_last: bool
    seed: tuple[int | str, ...]
    positions: list[State | None]
    turn: int
    passes: int | None
    share: StreamShare | None

    def __iter__(self) -> Iterator[tuple[int, Any, Indices, State | None] | None]:
        worker = get_worker_info()
        number = worker.id if worker else 0
        reader = self._reader(number)
        if number < self.turn:
            yield None
        while self.passes is None or reader.epoch < self.passes:
            before = None if worker else reader.sources.capture()
            try:
                size, batch, places = reader.batch(self.batch)
            finally:
                if before is not None:
                    reader.sources.restore(before)
            if size == self.batch or (size and not self.drop_last):
                yield size, batch, places, reader.state()

    def _reader(self, number: int) -> StreamReader:
        seed, position = (*self.seed, number), self.positions[number]
        if self.share is None:
            return PlainReader(self.dataset, self.collate, seed, position)
        if self.passes is not None:
            return InTurnReader(self.dataset, self.collate, seed)
        worker = number, len(self.positions)
        return SourcedReader(self.dataset, self.collate, seed, self.share, worker, position)
