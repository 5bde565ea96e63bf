"""Rows that code names: each pass is probed with the rows that it was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hpcdet.errors import UsageError
from hpcdet.guard.audit import audit
from hpcdet.policy.codes import PolicyRefused
from tests.guard.test_stepping import Loop

Loss = Callable[[Loop, torch.Tensor], torch.Tensor]


def mean(y: torch.Tensor) -> torch.Tensor:
    return y.square().mean()


def views(loop: Loop, x: torch.Tensor) -> torch.Tensor:
    rows = [row for row in range(len(x)) for _ in range(2)]
    with loop.guard.rows(rows):
        return mean(loop.model(x[rows]))


def views_behind_the_batch(loop: Loop, x: torch.Tensor) -> torch.Tensor:
    """The batch, and in another pass two views, one behind the other."""
    rows = [*range(len(x)), *range(len(x))]
    with loop.guard.rows(rows):
        found = mean(loop.model(x[rows]))
    return found + mean(loop.model(x))


def mixed(loop: Loop, x: torch.Tensor) -> torch.Tensor:
    other = list(range(len(x)))[::-1]
    with loop.guard.rows([[row, other[row]] for row in range(len(x))]):
        return mean(loop.model(0.5 * x + 0.5 * x[other]))


def by_sources(loop: Loop, x: torch.Tensor) -> torch.Tensor:
    assert loop.guard.codes is not None
    with loop.guard.rows(sources=["abc"[code] for code in loop.guard.codes]):
        return mean(loop.model(x))


def unfolded(loop: Loop, x: torch.Tensor) -> torch.Tensor:
    with loop.guard.rows(range(len(x)), unfolded=True):
        return mean(loop.model(x.repeat_interleave(3, 0)))


def flipped_behind_named(loop: Loop, x: torch.Tensor) -> torch.Tensor:
    with loop.guard.rows(range(len(x))):
        found = mean(loop.model(x))
    return found + mean(loop.model(x.flip(0)))


def half_of_them_named(loop: Loop, x: torch.Tensor) -> torch.Tensor:
    with loop.guard.rows(range(len(x)), unfolded=True):
        return mean(loop.model(torch.cat([x, x.flip(0)])))


def mixed_and_not_said(loop: Loop, x: torch.Tensor) -> torch.Tensor:
    with loop.guard.rows(range(len(x))):
        return mean(loop.model(0.5 * x + 0.5 * x.flip(0)))


def under_another_name(loop: Loop, x: torch.Tensor) -> torch.Tensor:
    with loop.guard.rows(sources=["a"] * len(x)):
        return mean(loop.model(x))


def contrasted(loop: Loop, x: torch.Tensor) -> torch.Tensor:
    with loop.guard.rows(range(len(x))):
        return loop.model(x)[:, 0].logsumexp(0)


def probe(loss: Loss) -> None:
    loop = Loop()
    x, codes = loop.rows(4, 4, 4)
    with loop.guard.batch(codes, np.bincount(codes)):
        audit(loop.guard, x, lambda part: loss(loop, part))


@pytest.mark.parametrize("loss", [views, views_behind_the_batch, mixed, by_sources, unfolded])
def test_rows_that_are_named_rightly_are_spared(loss: Loss) -> None:
    probe(loss)


@pytest.mark.parametrize(
    ("loss", "code"),
    [
        (flipped_behind_named, "P07"),
        (half_of_them_named, "P07"),
        (mixed_and_not_said, "P07"),
        (under_another_name, "P07"),
        (contrasted, "P13"),
    ],
)
def test_rows_that_are_others_than_named_are_found(loss: Loss, code: str) -> None:
    with pytest.raises(PolicyRefused, match=code):
        probe(loss)


@pytest.mark.parametrize(
    "indices", [[True, False, True], torch.tensor([True, False]), [0.5, 1.0], [[0, 1], [2]], "ab"]
)
def test_what_is_no_place_of_a_row_is_refused(indices: Any) -> None:
    """A mask would name rows 0 and 1, again and again."""
    loop = Loop()
    _, codes = loop.rows(4, 4, 4)
    refused = pytest.raises(UsageError, match="not places of rows")
    with loop.guard.batch(codes, np.bincount(codes)), refused, loop.guard.rows(indices):
        pass


def test_each_row_that_a_module_is_given_must_be_named() -> None:
    """Twice as many would count as two of each."""
    loop = Loop()
    x, codes = loop.rows(4, 4, 4)
    with loop.guard.batch(codes, np.bincount(codes)):
        with (
            loop.guard.rows(range(12)),
            pytest.raises(PolicyRefused, match=r"is given 24 rows, and context\.rows names 12"),
        ):
            loop.model(torch.cat([x, x.flip(0)]))
        with loop.guard.rows(range(12), unfolded=True), loop.guard.passing():
            mean(loop.model(x.repeat_interleave(2, 0))).backward()
