"""Streams: data sets without indices, which know their own position.

A stream has ``state_dict`` and ``load_state_dict`` beside ``__iter__``; after
``load_state_dict`` its iterator goes on where the state was taken. Each rank has its own, and
each of a rank's loader workers as well. With every batch comes the state behind it, so that
what workers have prefetched is neither lost nor repeated. Random numbers are seeded before
each sample.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from hpcdet.data.loader import Sources, as_is, process_options, started
from hpcdet.errors import ConfigError

State = dict[str, Any]


@runtime_checkable
class Stateful(Protocol):
    """Something that can be saved and put back."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class Stream:
    """A rank's batches of a stream, and the position in it.

    Args:
        batch: samples of a batch; the last one of a pass may be smaller.
        seed: a rank's own.
        drop_last: leave out a smaller last batch.
        options: of ``torch.utils.data.DataLoader``.
    """

    def __init__(
        self, dataset: Any, batch: int, *seed: int | str, drop_last: bool = False, **options: Any
    ) -> None:
        self._dataset = dataset
        self._collate = options.pop("collate_fn", None) or default_collate
        self._batch = batch
        self._drop_last = drop_last
        self._seed = seed
        self._options = options
        # with one worker, samples come in the same order as without any
        self._workers: list[State | None] = [None] * max(1, options.get("num_workers", 0))
        self._turn = 0
        self._start = _state(dataset, 0, 0)

    def state(self) -> State:
        """The position behind the last batch that was taken."""
        return {"workers": list(self._workers), "turn": self._turn}

    def load(self, state: State) -> None:
        """Go on from a position.

        Raises:
            ConfigError: it is that of another number of loader workers.
        """
        if len(state["workers"]) != len(self._workers):
            raise ConfigError(
                f"the stream was read by {len(state['workers'])} loader workers, each at a place "
                f"of its own, and now there are {len(self._workers)}",
                where="DataLoader(num_workers=…)",
                hint="use the same number; data with indices leave it free",
            )
        self._workers, self._turn = list(state["workers"]), state["turn"]

    def endless(self) -> Iterator[Any]:
        """Batches from the position on, pass after pass."""
        for found in self._read(self._workers, self._turn, passes=None):
            if found is not None:  # a worker whose turn came before this attempt says None
                _, batch, self._workers[self._turn] = found
                self._turn = (self._turn + 1) % len(self._workers)
                yield batch

    def once(self) -> Iterator[tuple[int, Any]]:
        """One pass from the beginning, whatever was read before: batches with their sizes."""
        for size, batch, _ in self._read([self._start] * len(self._workers), 0, passes=1):
            yield size, batch

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
    """

    dataset: Any
    collate: Callable[[list[Any]], Any]
    batch: int
    drop_last: bool
    seed: tuple[int | str, ...]
    positions: list[State | None]
    turn: int
    passes: int | None

    def __iter__(self) -> Iterator[tuple[int, Any, State | None] | None]:
        worker = get_worker_info()
        number = worker.id if worker else 0
        seed, position = (*self.seed, number), self.positions[number]
        reader = _Reader(self.dataset, self.collate, seed, position)
        if number < self.turn:
            yield None
        while self.passes is None or reader.epoch < self.passes:
            before = None if worker else reader.sources.capture()
            try:
                size, batch = reader.batch(self.batch)
            finally:
                if before is not None:
                    reader.sources.restore(before)
            if size == self.batch or (size and not self.drop_last):
                yield size, batch, reader.state()


class _Reader:
    """One worker's way through its stream.

    Attributes:
        epoch: passes that lie behind.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[list[Any]], Any],
        seed: tuple[int | str, ...],
        position: State | None,
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._seed = seed
        self._samples: Iterator[Any] | None = None
        self.epoch, self._drawn = 0, 0
        self.sources = Sources(dataset, collate)
        if position is not None:
            self.epoch, self._drawn = position["epoch"], position["drawn"]
            dataset.load_state_dict(copy.deepcopy(position["stream"]))

    def batch(self, size: int) -> tuple[int, Any]:
        """The next samples, joined, and how many there are: fewer, or none, at the end of a pass.

        Raises:
            ConfigError: a pass without any sample.
        """
        samples: list[Any] = []
        while len(samples) < size:
            self.sources.plant("stream", *self._seed, self.epoch, self._drawn)
            if self._samples is None:
                self._samples = iter(self._dataset)
            try:
                samples.append(next(self._samples))
            except StopIteration:
                self._end_pass()
                break
            self._drawn += 1
        return len(samples), self._collate(samples) if samples else None

    def state(self) -> State | None:
        """The position; None of a data set that cannot say it."""
        return _state(self._dataset, self.epoch, self._drawn)

    def _end_pass(self) -> None:
        if self._drawn == 0:
            raise ConfigError(
                f"pass {self.epoch} of the stream has no sample",
                where=type(self._dataset).__name__,
                hint="iter() of a stream that has ended must begin it anew",
            )
        self.epoch, self._drawn, self._samples = self.epoch + 1, 0, None


def _state(dataset: Any, epoch: int, drawn: int) -> State | None:
    if not isinstance(dataset, Stateful):
        return None
    stream = copy.deepcopy(dataset.state_dict())  # it may be that of the next sample soon
    return {"epoch": epoch, "drawn": drawn, "stream": stream}
