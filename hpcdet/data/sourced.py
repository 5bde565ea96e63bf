"""The source of each sample: whose data it is.

Sources do not travel with batches, through workers and collate functions: a slice has indices,
and the table here has the source of each. Streams have no indices; the source of each of their
samples is a function of its place in the training.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

from hpcdet.data.sample_order import Indices, shuffled
from hpcdet.errors import ConfigError

Codes = NDArray[np.int64]
Mixture = tuple[str, ...]
"""The sources of one sample, in the order of their names: usually one."""


@dataclass(frozen=True)
class SourceTable:
    """The sources of a data set's samples.

    Attributes:
        mixtures: the different ones, in order.
        codes: int64[samples], each sample's place in ``mixtures``.
    """

    mixtures: tuple[Mixture, ...]
    codes: Codes

    @staticmethod
    def of(names: Sequence[str | Sequence[str]], where: str = "sources") -> SourceTable:
        """The table of the sources by index.

        Args:
            names: a name for each sample, or several of one that was made from several sources.

        Raises:
            ConfigError: a sample has none, or something that is no name.
        """
        if isinstance(names, np.ndarray) and names.ndim == 1 and names.dtype.kind in "US":
            found, codes = np.unique(names.astype(str), return_inverse=True)
            return SourceTable(tuple((str(one),) for one in found), codes.astype(np.int64))
        known: dict[Any, int] = {}
        places = np.fromiter((known.setdefault(_key(one), len(known)) for one in names), np.int64)
        mixtures = [_mixture(one, where) for one in known]
        ordered = sorted(set(mixtures))
        to_ordered = np.array([ordered.index(one) for one in mixtures], dtype=np.int64)
        return SourceTable(tuple(ordered), to_ordered[places] if len(places) else places)

    def __len__(self) -> int:
        return len(self.codes)

    def at(self, indices: Sequence[int] | NDArray[np.int64]) -> SourceTable:
        """The table of a subset."""
        return SourceTable(self.mixtures, self.codes[np.asarray(indices, dtype=np.int64)])

    @staticmethod
    def joined(tables: Sequence[SourceTable]) -> SourceTable:
        """The table of data sets one behind the other."""
        mixtures = tuple(sorted({mixture for one in tables for mixture in one.mixtures}))
        codes = [
            np.array([mixtures.index(one) for one in table.mixtures], dtype=np.int64)[table.codes]
            for table in tables
        ]
        return SourceTable(mixtures, np.concatenate(codes))


@dataclass(frozen=True)
class StreamOrder:
    """The source of each sample that all ranks take from streams, one of each source.

    It is a function of seed and place alone, so that ranks know the sources of all without a
    message, and anyone can count them again. Samples come in cycles: each has as many of each
    source as its share says, in an order of its own.

    Attributes:
        shares: of each source, in the order of their names, samples in a cycle.
    """

    shares: tuple[int, ...]
    seed: int

    @property
    def epoch_records(self) -> int:
        """Samples in a cycle."""
        return sum(self.shares)

    @property
    def whole(self) -> bool:
        """True: each cycle has as many samples of each source."""
        return True

    def indices(self, epoch: int) -> Indices:
        """The places of the sources of a cycle's samples, int64[epoch_records]."""
        places = np.repeat(np.arange(len(self.shares)), self.shares)
        return places[shuffled(len(places), self.seed, epoch)]

    def rows(self, begin: int, end: int) -> Indices:
        """The places of the sources of the samples from ``begin`` on, int64[end - begin]."""
        size = self.epoch_records
        cycles = range(begin // size, -(-end // size))
        found = np.concatenate([self.indices(one) for one in cycles])
        return found[begin - cycles[0] * size : end - cycles[0] * size]


@dataclass(frozen=True)
class StreamShare:
    """The part of each global batch that one rank takes from streams with sources.

    Attributes:
        batch: samples of a rank in each global batch.
    """

    order: StreamOrder
    rank: int
    world: int
    batch: int

    def whole(self, number: int) -> Indices:
        """The places of the sources of all samples of a global batch, int64[world x batch]."""
        size = self.world * self.batch
        return self.order.rows(number * size, (number + 1) * size)

    def own(self, number: int) -> Indices:
        """Those of this rank's samples, int64[batch]."""
        return self.whole(number)[self.rank * self.batch : (self.rank + 1) * self.batch]


class Sourced(Dataset[Any]):
    """Data sets with indices, one behind the other, or streams, each from a source with a name.

    ``pytorch.DataLoader`` knows from it which source each sample has. A ``Subset`` of it, a
    ``random_split``, a ``ConcatDataset`` of several keep the sources; of streams there are none.
    A stream begins anew when it has ended, whatever the others do.

    Args:
        parts: the data sets by the names that the policy gives to their sources. Of one with
            ``record_bytes(index)`` probes compare records with the manifest; one with
            ``canary_record(code)`` makes a sample of a canary's code, as ``__getitem__`` does.
        shares: of streams: out of as many samples as all shares together, how many are of each
            source; as many of each by default.

    Raises:
        ConfigError: there is none, one is empty or has no length, or is of a ``Sourced`` itself,
            some are streams and others are not, two are one object, or the shares are not those
            of the streams.
    """

    def __init__(self, parts: Mapping[str, Any], shares: Mapping[str, int] | None = None) -> None:
        if not parts:
            raise ConfigError("there is no data set", where="Sourced")
        streams = [name for name, part in parts.items() if isinstance(part, IterableDataset)]
        self.streams = bool(streams)
        self.shares: dict[str, int] = {}
        if self.streams:
            _check_streams(parts, streams)
            self.parts = {name: parts[name] for name in sorted(parts)}
            self.shares = _shares(self.parts, shares)
            return
        if shares is not None:
            raise ConfigError(
                "data with indices are all trained in each epoch",
                where="Sourced(shares=…)",
                hint="leave shares out, or give DataLoader a sampler",
            )
        for name, part in parts.items():
            if not hasattr(part, "__len__"):
                raise ConfigError(
                    f"the data set of source {name!r} has no length",
                    where="Sourced",
                    hint="give it __len__ and __getitem__",
                )
            if len(part) == 0:
                raise ConfigError(f"source {name!r} is empty", where="Sourced")
            if _names_its_own(part):
                raise ConfigError(
                    f"the data set of source {name!r} is a Sourced, or a part of one, whose "
                    "samples have their sources already",
                    where="Sourced",
                    hint="join such data sets by torch.utils.data.ConcatDataset, which keeps them",
                )
        self.parts = dict(parts)
        self._datasets = list(parts.values())
        self._ends = list(accumulate(len(part) for part in self._datasets))

    def order(self, seed: int) -> StreamOrder:
        """The sources of the samples that ranks take from streams."""
        return StreamOrder(tuple(self.shares.values()), seed)

    @property
    def sources(self) -> SourceTable:
        """The source of each sample; of streams that of each place in ``order``."""
        if self.streams:
            names = tuple((name,) for name in self.parts)
            return SourceTable(names, np.arange(len(names)))
        return SourceTable.joined(
            [
                SourceTable(((name,),), np.zeros(len(part), dtype=np.int64))
                for name, part in self.parts.items()
            ]
        )

    def __len__(self) -> int:
        return sum(len(one) for one in self.parts.values()) if self.streams else self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        if self.streams:
            raise TypeError("a stream has no indices")
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"index {index} of {len(self)} samples")
        part, within = _within(self._ends, place)
        return self._datasets[part][within]


def _names_its_own(part: Any) -> bool:
    """Whether samples of a data set, or of some that it is made of, have sources by a Sourced."""
    if isinstance(part, Subset):
        return _names_its_own(part.dataset)
    if isinstance(part, ConcatDataset):
        return any(_names_its_own(one) for one in part.datasets)
    return isinstance(part, Sourced)


def record_of(dataset: Any, index: int) -> tuple[str, int, bytes] | None:
    """Return what a sample of a data set with sources was made from.

    Parts of a ``Sourced`` tell it that have a method ``record_bytes(index)``: the bytes of the
    record behind a sample, as the manifest of the source has it; records are counted from 0 in
    the order of the source's files.

    Returns:
        The source, the number of the record, and its bytes; None if the data set does not tell.
    """
    if isinstance(dataset, Subset):
        return record_of(dataset.dataset, int(dataset.indices[index]))
    if isinstance(dataset, ConcatDataset):
        part, place = _within(dataset.cumulative_sizes, index)
        return record_of(dataset.datasets[part], place)
    if not isinstance(dataset, Sourced) or dataset.streams:
        return None
    part, place = _within(dataset._ends, index)
    name = list(dataset.parts)[part]
    data: Any = dataset.parts[name]
    while isinstance(data, Subset):
        data, place = data.dataset, int(data.indices[place])
    told = getattr(data, "record_bytes", None)
    return None if told is None else (name, place, bytes(told(place)))


def canary_maker(dataset: Any, source: str) -> Callable[[int], Any] | None:
    """Return what makes a sample of a canary's code for a source.

    Parts of a ``Sourced`` have it as a method ``canary_record(code)``: the same code gives the same
    sample, as ``__getitem__`` would, transformed alike. Wherever the code decides what the sample
    is, as its label and its noise, or digits of a sentence, canaries can be told from each other.

    Returns:
        The method of the first part of that name; None: there is none.
    """
    if isinstance(dataset, Subset):
        return canary_maker(dataset.dataset, source)
    if isinstance(dataset, ConcatDataset):
        found = (canary_maker(one, source) for one in dataset.datasets)
        return next((one for one in found if one is not None), None)
    part: Any = dataset.parts.get(source) if isinstance(dataset, Sourced) else None
    while isinstance(part, Subset):
        part = part.dataset
    made: Callable[[int], Any] | None = getattr(part, "canary_record", None)
    return made


_LONGEST = 1 << 20
"""Samples in a cycle of streams, at most: each is permuted as a whole."""


def _check_streams(parts: Mapping[str, Any], streams: Sequence[str]) -> None:
    by_object: dict[int, str] = {}
    for name, part in parts.items():
        if (other := by_object.setdefault(id(part), name)) != name:
            raise ConfigError(
                f"sources {other!r} and {name!r} are one stream, whose position both would move",
                where="Sourced",
                hint="make a stream for each source",
            )
    others = [name for name in parts if name not in streams]
    if others:
        raise ConfigError(
            f"source {streams[0]!r} is a stream, and {others[0]!r} is not",
            where="Sourced",
            hint="give either streams or data with indices",
        )


def _shares(parts: Mapping[str, Any], shares: Mapping[str, int] | None) -> dict[str, int]:
    given = dict.fromkeys(parts, 1) if shares is None else dict(shares)
    if given.keys() != parts.keys():
        raise ConfigError(
            f"there are shares of {', '.join(sorted(given)) or 'nothing'}, and streams of "
            f"{', '.join(parts)}",
            where="Sourced(shares=…)",
            hint="give each stream its share",
        )
    for name, share in given.items():
        if isinstance(share, bool) or not isinstance(share, int) or share < 1:
            raise ConfigError(
                f"the share of source {name!r} is {share!r}",
                where="Sourced(shares=…)",
                hint="give a whole number from 1",
            )
    common = gcd(*given.values())
    if sum(given.values()) // common > _LONGEST:
        raise ConfigError(
            f"all shares together are more than {_LONGEST}",
            where="Sourced(shares=…)",
            hint="give smaller numbers in about the same ratio, such as 3 and 1",
        )
    return {name: given[name] // common for name in parts}


def _within(ends: Sequence[int], index: int) -> tuple[int, int]:
    """The part that an index is in, and its place there."""
    part = bisect_right(ends, index)
    return part, index - (ends[part - 1] if part else 0)


def table_of(dataset: Any, sources: Sequence[str | Sequence[str]] | None) -> SourceTable | None:
    """Return the sources of a data set's samples; None if it has none.

    Args:
        sources: names by index; None: the data set's own ``sources``.

    Raises:
        ConfigError: there are more or fewer names than samples.
    """
    found = _found(dataset) if sources is None else SourceTable.of(sources)
    if found is not None and len(found) != len(dataset):
        raise ConfigError(
            f"there are sources for {len(found)} samples, and the data set has {len(dataset)}",
            where="DataLoader(sources=…)",
            hint="give one name for each index",
        )
    return found


def _found(dataset: Any) -> SourceTable | None:
    if isinstance(dataset, Sourced) and dataset.streams:
        raise ConfigError(
            "streams have no indices that a part of them could have",
            where="Sourced",
            hint="give the loader the Sourced itself",
        )
    own = getattr(dataset, "sources", None)
    if isinstance(own, SourceTable):
        return own
    if own is not None:
        return SourceTable.of(own, f"{type(dataset).__name__}.sources")
    if isinstance(dataset, Subset):
        whole = _found(dataset.dataset)
        return None if whole is None else whole.at(dataset.indices)
    if isinstance(dataset, ConcatDataset):
        tables = [_found(one) for one in dataset.datasets]
        known = [one for one in tables if one is not None]
        return SourceTable.joined(known) if len(known) == len(tables) else None
    return None


def _key(name: Any) -> Any:
    return name if isinstance(name, str) else tuple(name) if isinstance(name, Sequence) else name


def _mixture(name: Any, where: str) -> Mixture:
    names = (name,) if isinstance(name, str) else name
    fits = isinstance(names, tuple) and names and all(isinstance(one, str) for one in names)
    if not fits:
        raise ConfigError(
            f"{name!r} is no source", where=where, hint="give a name, or several in a tuple"
        )
    return tuple(sorted(set(names)))
