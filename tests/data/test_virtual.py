"""The order of sums over virtual ranks does not depend on who has them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdet.data.virtual_ranks import Fold, Virtual, blocks, total
from hpcdet.errors import ConfigError
from hpcdet.process.ranks import Ranks
from hpcdet.store.config import resolved_config


def paired(left: str, right: str) -> str:
    return f"({left}+{right})"


def summed(count: int, world: int) -> str:
    """The sum of leaves 0, 1, … as its text, with its brackets."""
    parts: dict[tuple[int, int], str] = {}
    for rank in range(world):
        fold = Fold(paired)
        mine = Virtual(count, Ranks(rank, world), 0).mine
        assert len(mine) > 0
        for leaf in mine:
            fold.push(leaf, str(leaf))
        assert [block for block, _ in fold.parts] == blocks(mine)
        parts |= dict(fold.parts)
    return total(parts, count, paired)


def test_the_tree_is_binary() -> None:
    assert summed(4, 2) == "((0+1)+(2+3))"
    assert summed(7, 3) == "(((0+1)+(2+3))+((4+5)+6))"


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_every_number_of_ranks_sums_in_the_same_order(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 70))
    world = data.draw(st.integers(1, count))
    assert summed(count, world) == summed(count, 1)


def test_more_ranks_than_virtual_ones_are_refused() -> None:
    wanted = resolved_config.resolve({"reproducibility": {"elastic": "exact", "virtual_ranks": 2}})
    assert Virtual.of(wanted, Ranks(0, 2), 1) == Virtual(2, Ranks(0, 2), 1)
    with pytest.raises(ConfigError, match="3 ranks cannot share 2 virtual ranks"):
        Virtual.of(wanted, Ranks(0, 3), 1)
    assert Virtual.of(resolved_config.Resolved(), Ranks(0, 3), 1) is None
