"""Order of samples: a function of seed and epoch, cut at any place, for any number of ranks."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdet.data.sample_order import Order, share, shuffled, subseed


def test_a_seed_means_the_same_order_for_ever() -> None:
    assert shuffled(12, 1234, 0).tolist() == [2, 8, 7, 11, 3, 5, 0, 6, 9, 1, 4, 10]
    assert shuffled(12, 1234, 1).tolist() == [3, 11, 0, 9, 6, 10, 5, 8, 1, 2, 7, 4]
    assert subseed("order", 1234, 0) == 3332541470072176054


@settings(deadline=None, max_examples=150)
@given(
    size=st.integers(1, 60),
    batch=st.integers(1, 20),
    worlds=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    cuts=st.lists(st.integers(0, 12), min_size=2, max_size=2),
    drop_last=st.booleans(),
)
def test_every_sample_once_per_epoch_at_any_world_size(
    size: int, batch: int, worlds: list[int], cuts: list[int], drop_last: bool
) -> None:
    """Three attempts with their own numbers of ranks see what one rank would have seen."""
    if drop_last and batch > size:
        return
    order = Order(size, batch, lambda epoch: shuffled(size, 7, epoch), drop_last)
    total = 2 * order.epoch_batches
    alone = [part.indices for part in islice(order.slices(0, 0, 1), total)]
    ends = [*sorted(min(cut, total) for cut in cuts), total]
    records, done, seen = 0, 0, []
    for world, end in zip(worlds, ends, strict=True):
        ranks = [islice(order.slices(records, rank, world), end - done) for rank in range(world)]
        for parts in zip(*ranks, strict=True):
            seen.append(np.concatenate([part.indices[: part.weight] for part in parts]))
            assert all(len(part.indices) for part in parts)
            records += parts[0].records
        done = end
    assert [one.tolist() for one in seen] == [one.tolist() for one in alone]
    for epoch in range(2):
        own = np.concatenate(alone[epoch * order.epoch_batches :][: order.epoch_batches])
        assert len(own) == len(set(own.tolist())) == order.epoch_records


def test_shares_are_contiguous_and_even() -> None:
    shares = [share(np.arange(10), rank, 4).tolist() for rank in range(4)]
    assert shares == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]


def test_a_data_set_without_a_full_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="no full batch of 8"):
        Order(5, 8, range, drop_last=True)
    with pytest.raises(ValueError, match="empty"):
        Order(0, 8, range)
