"""What ``make bench-overhead`` says of two methods whose processes differ by chance."""

from __future__ import annotations

import math
import random
import sys

import pytest

from tests import TOP

sys.path.insert(0, str(TOP / "benchmarks"))

import processes  # type: ignore[import-not-found]

ROUNDS = 12


def groups(true: float, chance: random.Random, count: int = 8) -> list[float]:
    """Ratios of groups in each of which two processes have luck of their own, for all rounds."""

    def blocks(mean: float) -> list[float]:
        lucky = mean * math.exp(chance.gauss(0, 0.03))
        return [lucky * math.exp(chance.gauss(0, 0.01)) for _ in range(ROUNDS)]

    return [processes.within(blocks(true), blocks(1.0)) for _ in range(count)]


def test_equal_methods_are_told_apart_as_rarely_as_the_bounds_say() -> None:
    chance = random.Random(3)
    found = [processes.ratio(groups(1.0, chance)) for _ in range(100)]
    assert 90 <= sum(one.rank() == "not decided" for one in found) < 100
    assert sum(one.high / one.low for one in found) / 100 < 1.12


def test_a_difference_is_seen_and_judged() -> None:
    chance = random.Random(4)
    less, more = (processes.ratio(groups(true, chance)) for true in (0.85, 1.15))
    assert (less.rank(), less.against(1.02)) == ("ahead", "met")
    assert (more.rank(), more.against(1.02)) == ("behind", "missed")
    assert less.low < 0.85 < less.high
    assert processes.ratio([1.01] * 4).against(1.02) == "met"
    with pytest.raises(ValueError, match="3 groups"):
        processes.ratio([1.0] * 3)


def test_a_round_that_was_disturbed_does_not_count() -> None:
    assert processes.within([1.1] * 9 + [50.0], [1.0] * 10) == pytest.approx(1.1)
