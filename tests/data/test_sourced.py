"""The source of each sample, by its index, whatever has been done to the data set."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Subset

from hpcdet.data.batch_order import BatchOrder
from hpcdet.data.sample_order import Order, shuffled
from hpcdet.data.sourced import Sourced, SourceTable, table_of
from hpcdet.errors import ConfigError
from hpcdet.pytorch import DataLoader


def names(table: SourceTable | None) -> list[str]:
    assert table is not None
    return ["+".join(table.mixtures[code]) for code in table.codes]


def test_data_sets_one_behind_the_other_know_their_sources() -> None:
    data = Sourced({"web": list("abc"), "books": list("xy")})
    assert [data[index] for index in range(5)] == list("abcxy")
    assert data[-1] == "y"
    assert names(data.sources) == ["web", "web", "web", "books", "books"]
    assert data.sources.mixtures == (("books",), ("web",))
    with pytest.raises(IndexError):
        data[5]


def test_subsets_and_joined_data_sets_keep_the_sources() -> None:
    data = Sourced({"web": list("abc"), "books": list("xy")})
    assert names(table_of(Subset(data, [4, 0]), None)) == ["books", "web"]
    other = Sourced({"notes": list("n")})
    joined: Any = ConcatDataset([Subset(data, [3]), other])
    assert names(table_of(joined, None)) == ["books", "notes"]
    plain: Any = list("pq")
    partly: Any = ConcatDataset([data, plain])
    assert table_of(partly, None) is None


def test_names_by_index_are_taken_from_the_loader_first() -> None:
    data = Sourced({"web": list("ab")})
    assert names(DataLoader(data).sources()) == ["web", "web"]
    assert names(DataLoader(data, sources=["x", ("y", "x")]).sources()) == ["x", "x+y"]
    assert names(DataLoader(data, sources=cast("Any", np.array(["q", "p"]))).sources()) == [
        "q",
        "p",
    ]
    assert DataLoader(list("ab")).sources() is None


@pytest.mark.parametrize("given", [["a"], ["a", "b", "c"], ["a", 3], ["a", None], ["a", ()]])
def test_what_does_not_name_each_sample_once_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError):
        DataLoader(list("ab"), sources=given).sources()


def test_no_data_and_empty_sources_are_refused() -> None:
    with pytest.raises(ConfigError, match="no data set"):
        Sourced({})
    with pytest.raises(ConfigError, match="'web' is empty"):
        Sourced({"web": []})
    with pytest.raises(ConfigError, match="'web' has no length"):
        Sourced({"web": iter("abc")})


def test_samples_that_have_sources_get_no_others() -> None:
    """They would be open to what their own source is denied."""
    plain: Any = list("abc")
    inner = Sourced({"secret": plain})
    parts: list[Any] = [inner, Subset(inner, [0]), ConcatDataset([Subset(inner, [0]), inner])]
    for part in parts:
        with pytest.raises(ConfigError, match="'open' is a Sourced, or a part of one"):
            Sourced({"open": part})
    assert len(Sourced({"open": Subset(plain, [0])})) == 1


def test_every_rank_knows_the_whole_batch() -> None:
    order = Order(10, 4, lambda epoch: shuffled(10, 3, epoch))
    for rank in range(3):
        for part, first in zip(order.slices(0, rank, 3), (0, 4, 8, 0), strict=False):
            epoch = 0 if part.epoch == 0 else 1
            wanted = shuffled(10, 3, epoch)[first : first + 4]
            np.testing.assert_array_equal(part.whole, wanted)
            assert set(part.indices) <= set(part.whole)
    batches = BatchOrder.of(lambda _epoch: [[1, 2], [3], [4, 5]])
    part = next(batches.slices(0, 1, 2))
    np.testing.assert_array_equal(part.whole, [1, 2, 3])
    assert part.records == 3
