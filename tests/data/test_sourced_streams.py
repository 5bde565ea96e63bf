"""Streams of several sources: whose sample comes when, on each rank, worker and attempt."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, IterableDataset, Subset

from hpcdet.data.sourced import Sourced, StreamOrder, StreamShare, table_of
from hpcdet.errors import ConfigError, IntegrityError
from hpcdet.pytorch import DataLoader


class Words(IterableDataset[Any]):
    """Its name with a number, and a random number; begins anew after ``size``."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size, self.at = name, size, 0

    def __iter__(self) -> Iterator[tuple[str, int, float]]:
        while self.at < self.size:
            self.at += 1
            yield self.name, self.at - 1, random.random()
        self.at = 0

    def __len__(self) -> int:
        return self.size

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


SHARES = {"web": 3, "books": 1, "notes": 1}


def data() -> Sourced:
    return Sourced(
        {"web": Words("web", 7), "notes": Words("notes", 4), "books": Words("books", 50)}, SHARES
    )


def read(count: int, rank: int = 0, workers: int = 0, state: Any = None) -> tuple[list[Any], Any]:
    """So many batches of four of one rank of two, their sources' places, and the position."""
    stream = DataLoader(data(), 4, num_workers=workers, collate_fn=list).stream(7, rank, 2)
    if state is not None:
        stream.load(state)
    found = list(itertools.islice(stream.endless(), count))
    return [(batch, places.tolist()) for batch, places in found], stream.state()


def test_every_cycle_has_each_source_by_its_share_and_all_ranks_know_it() -> None:
    order = StreamOrder((1, 1, 3), 7)
    for cycle in range(20):
        assert np.bincount(order.indices(cycle)).tolist() == [1, 1, 3]
    whole = np.concatenate([order.indices(cycle) for cycle in range(20)])
    for begin, end in ((0, 1), (4, 17), (10, 10 + 5), (93, 100)):
        np.testing.assert_array_equal(order.rows(begin, end), whole[begin:end])
    assert any((order.indices(0) != order.indices(n)).any() for n in range(1, 9))
    shares = [StreamShare(order, rank, 3, 4) for rank in range(3)]
    for number in range(8):
        np.testing.assert_array_equal(
            np.concatenate([one.own(number) for one in shares]), shares[0].whole(number)
        )
        np.testing.assert_array_equal(
            shares[2].whole(number), whole[12 * number : 12 * number + 12]
        )


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_each_sample_is_of_the_source_that_its_place_says(workers: int) -> None:
    found = [read(20, rank, workers)[0] for rank in range(2)]
    share = StreamShare(data().order(7), 0, 2, 4)
    names = ["books", "notes", "web"]
    for number, parts in enumerate(zip(*found, strict=True)):
        samples = [sample for batch, _ in parts for sample in batch]
        assert [one[0] for one in samples] == [names[place] for place in share.whole(number)]
    # of each stream nothing twice and nothing never, pass after pass, in each worker
    web = [
        at
        for number, (batch, _) in enumerate(found[0])
        if number % max(workers, 1) == 0
        for name, at, _ in batch
        if name == "web"
    ]
    assert web == [place % 7 for place in range(len(web))]
    assert len(web) > 14


@pytest.mark.parametrize("workers", [0, 2])
def test_streams_go_on_where_they_were_left(workers: int) -> None:
    whole, end = read(13, 1, workers)
    first, state = read(6, 1, workers)
    second, same_end = read(7, 1, workers, state)
    assert first + second == whole
    assert same_end == end


def test_one_worker_reads_what_none_reads_and_removing_a_source_leaves_the_others_samples() -> None:
    assert read(9, 0, 1) == read(9, 0, 0)
    alone = DataLoader(Sourced({"web": Words("web", 7)}), 4, collate_fn=list).stream(7, 0, 2)
    mine = [one for batch, _ in itertools.islice(alone.endless(), 5) for one in batch]
    mixed = [one for batch, _ in read(20)[0] for one in batch if one[0] == "web"]
    assert mine == mixed[:20]


def test_a_position_that_is_not_behind_what_was_trained_is_found() -> None:
    _, state = read(6, 0, 2)
    stream = DataLoader(data(), 4, num_workers=2, collate_fn=list).stream(7, 0, 2)
    stream.load(state)
    stream.check_read(6)
    with pytest.raises(IntegrityError, match="behind 6 batches, and it has trained 7"):
        stream.check_read(7)


def test_a_position_in_other_streams_is_refused() -> None:
    _, state = read(2)
    other = Sourced({"web": Words("web", 7), "mail": Words("mail", 3)})
    stream = DataLoader(other, 4).stream(7, 0, 2)
    stream.load(state)
    with pytest.raises(ConfigError, match=r"a position in books, notes, web.*mail, web"):
        next(stream.endless())


def test_a_position_in_a_stream_without_sources_is_none_in_streams_with_some() -> None:
    kinds: list[Any] = [data(), Words("web", 9)]
    with_sources, without = (DataLoader(one, 4).stream(7, 0, 2) for one in kinds)
    for stream, other, said in (
        (with_sources, without, "position in one stream, and the data are streams with sources"),
        (without, with_sources, "position in streams with sources, and the data are one stream"),
    ):
        next(other.endless())
        with pytest.raises(ConfigError, match=said):
            stream.load(other.state())


def test_a_validation_passes_through_each_source_once() -> None:
    loader = DataLoader(data(), 4, collate_fn=list)
    stream = loader.stream(7, 0, 2)
    next(stream.endless())
    passed = list(stream.once())
    assert [size for size, _, _ in passed] == [4] * 12 + [2] + [4] + [4, 3]
    assert all(len({sample[0] for sample in batch}) == 1 for _, batch, _ in passed)
    assert Counter(place for _, _, places in passed for place in places.tolist()) == {
        0: 50, 1: 4, 2: 7,
    }  # fmt: skip
    assert len(loader) == 16
    assert sum(len(batch) for batch in loader) == 61
    assert len(list(loader.whole(7))) == 16
    assert loader.sources() is not None


class Forgetful(Words):
    state_dict = None  # type: ignore[assignment]


def test_what_cannot_be_one_is_refused() -> None:
    web, numbers = Words("web", 7), list(range(3))
    for shares, said in (
        ({"web": 1, "mail": 2}, "shares of mail, web, and streams of web"),
        ({"web": 0}, "share of source 'web' is 0"),
        ({"web": True}, "share of source 'web' is True"),
        ({"web": 0.5}, "share of source 'web' is 0.5"),
    ):
        with pytest.raises(ConfigError, match=said):
            Sourced({"web": web}, shares)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="more than 1048576"):
        Sourced({"web": web, "mail": Words("mail", 1)}, {"web": 1 << 30, "mail": 1})
    parted = Sourced({"web": web, "mail": Words("mail", 1)}, {"web": 6, "mail": 4})
    assert parted.shares == {"mail": 2, "web": 3}
    with pytest.raises(ConfigError, match="'web' and 'mail' are one stream"):
        Sourced({"web": web, "mail": web})
    with pytest.raises(ConfigError, match="'web' is a stream, and 'numbers' is not"):
        Sourced({"numbers": numbers, "web": web})
    with pytest.raises(ConfigError, match="all trained in each epoch"):
        Sourced({"numbers": numbers}, {"numbers": 1})
    with pytest.raises(ConfigError, match="no indices that sources could be of"):
        DataLoader(web, sources=["a"] * 7)
    with pytest.raises(ConfigError, match="its own order: no shuffle"):
        DataLoader(Sourced({"web": web}), shuffle=True)
    with pytest.raises(TypeError, match="a stream has no indices"):
        Sourced({"web": web})[0]
    whole = Sourced({"web": web})
    parts: list[Any] = [Subset(whole, [0]), ConcatDataset([whole])]
    for part in parts:
        with pytest.raises(ConfigError, match="streams have no indices"):
            table_of(part, None)
    with pytest.raises(
        ConfigError, match="without state_dict and load_state_dict cannot be resumed"
    ):
        DataLoader(Sourced({"web": web, "new": Forgetful("new", 2)})).check_resumable()
    with pytest.raises(ConfigError, match="pass 0 of the stream has no sample"):
        next(DataLoader(Sourced({"none": Words("none", 0)})).stream(7, 0, 1).endless())


def test_random_numbers_of_the_training_stay_as_they_are() -> None:
    random.seed(3)
    before = random.getstate(), torch.get_rng_state()
    read(5)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
