"""Readers of streams: one worker's way through its copies of them, and its position there."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from hpcdet.data.loader import Sources
from hpcdet.data.sample_order import Indices
from hpcdet.data.sourced import Sourced, StreamShare
from hpcdet.errors import ConfigError

State = dict[str, Any]
Seed = tuple[int | str, ...]
Collate = Callable[[list[Any]], Any]
NO_SOURCES: Indices = np.empty(0, np.int64)


@runtime_checkable
class Stateful(Protocol):
    """Something that can be saved and put back."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class StreamReader(Protocol):
    """Batches of one worker.

    Attributes:
        epoch: passes that lie behind.
        sources: of random numbers that the streams draw from.
    """

    sources: Sources

    @property
    def epoch(self) -> int: ...

    def batch(self, size: int) -> tuple[int, Any, Indices]:
        """The next samples, joined: how many, the batch, and the places of their sources.

        There are fewer than ``size``, or none, at the end of a pass; no places where the stream
        has no sources.

        Raises:
            ConfigError: a pass without any sample.
        """

    def state(self) -> State | None:
        """The position; None of a data set that cannot say it."""


class PlainReader:
    """A way through one stream."""

    def __init__(
        self, dataset: Any, collate: Collate, seed: Seed, position: State | None = None
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

    def batch(self, size: int) -> tuple[int, Any, Indices]:
        samples: list[Any] = []
        while len(samples) < size and (found := self.take()):
            samples += found
        return len(samples), self._collate(samples) if samples else None, NO_SOURCES

    def take(self) -> list[Any]:
        """The next sample; nothing at the end of a pass.

        Raises:
            ConfigError: a pass without any sample.
        """
        self.sources.plant("stream", *self._seed, self.epoch, self._drawn)
        if self._samples is None:
            self._samples = iter(self._dataset)
        try:
            found = next(self._samples)
        except StopIteration:
            self._end_pass()
            return []
        self._drawn += 1
        return [found]

    def state(self) -> State | None:
        return state_of(self._dataset, self.epoch, self._drawn)

    def _end_pass(self) -> None:
        if self._drawn == 0:
            raise ConfigError(
                f"pass {self.epoch} of the stream has no sample",
                where=type(self._dataset).__name__,
                hint="iter() of a stream that has ended must begin it anew",
            )
        self.epoch, self._drawn, self._samples = self.epoch + 1, 0, None


class SourcedReader:
    """One pass through streams of several sources, in the order of ``StreamOrder``.

    Each stream has random numbers of its own, and begins anew when it has ended.

    Args:
        worker: which of the rank's loader workers this is, and how many there are: they make its
            batches in turn.
        position: as ``state`` has given it; None: the beginning.

    Raises:
        ConfigError: the position is that of other streams.
    """

    epoch = 0

    def __init__(
        self,
        dataset: Sourced,
        collate: Collate,
        seed: Seed,
        share: StreamShare,
        worker: tuple[int, int],
        position: State | None = None,
    ) -> None:
        self._collate, self._share, self._worker = collate, share, worker
        parts: Mapping[str, Any] = {} if position is None else position["parts"]
        if position is not None and parts.keys() != dataset.parts.keys():
            raise ConfigError(
                f"the checkpoint has a position in {', '.join(parts)}, and the data are streams of "
                f"{', '.join(dataset.parts)}",
                where="Sourced",
                hint="go on with the streams that it was trained on",
            )
        self._readers = [
            PlainReader(part, collate, (*seed, name), parts.get(name))
            for name, part in dataset.parts.items()
        ]
        self.sources = Sources(*dataset.parts.values(), collate)
        self._names = list(dataset.parts)
        self._batches = 0 if position is None else int(position["batches"])

    def batch(self, size: int) -> tuple[int, Any, Indices]:
        number, workers = self._worker
        places = self._share.own(self._batches * workers + number)
        samples: list[Any] = []
        for place in places.tolist():
            reader = self._readers[place]
            samples += reader.take() or reader.take()  # it has ended, and begins anew
        self._batches += 1
        return size, self._collate(samples), places

    def state(self) -> State | None:
        parts = {name: one.state() for name, one in zip(self._names, self._readers, strict=True)}
        return {"batches": self._batches, "parts": parts}


class InTurnReader:
    """One pass through streams of several sources, one after the other."""

    def __init__(self, dataset: Sourced, collate: Collate, seed: Seed) -> None:
        readers = [
            PlainReader(part, collate, (*seed, name)) for name, part in dataset.parts.items()
        ]
        self._left = deque(enumerate(readers))
        self.sources = Sources(*dataset.parts.values(), collate)

    @property
    def epoch(self) -> int:
        return 0 if self._left else 1

    def batch(self, size: int) -> tuple[int, Any, Indices]:
        place, reader = self._left[0]
        count, batch, _ = reader.batch(size)
        if reader.epoch:
            self._left.popleft()
        return count, batch, np.full(count, place)

    def state(self) -> State | None:
        return None


def rewind(dataset: Any, begin: Sequence[State | None]) -> None:
    """Put streams back to where they were when ``beginning`` was asked."""
    for stream, state in zip(_streams(dataset), begin, strict=True):
        if state is not None:
            stream.load_state_dict(copy.deepcopy(state["stream"]))


def beginning(dataset: Any) -> list[State | None]:
    """Where streams are now; None for those that cannot say it."""
    return [state_of(one, 0, 0) for one in _streams(dataset)]


def _streams(dataset: Any) -> list[Any]:
    return list(dataset.parts.values()) if isinstance(dataset, Sourced) else [dataset]


def state_of(dataset: Any, epoch: int, drawn: int) -> State | None:
    """A position in a stream; None of one that cannot say it."""
    if not isinstance(dataset, Stateful):
        return None
    stream = copy.deepcopy(dataset.state_dict())  # it may be that of the next sample soon
    return {"epoch": epoch, "drawn": drawn, "stream": stream}


def check_resumable(dataset: Any) -> None:
    """Refuse streams that do not know their position.

    Raises:
        ConfigError: one has no state.
    """
    for one in _streams(dataset):
        if not isinstance(one, Stateful):
            raise ConfigError(
                "a stream without state_dict and load_state_dict cannot be resumed: which samples "
                "were seen is unknown, and they would come twice or never",
                where=type(one).__name__,
                hint="add both to the data set, or give it __len__ and __getitem__",
            )
