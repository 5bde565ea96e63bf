"""Rows of a batch, whatever it is made of."""

from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any

import numpy as np
import torch

from hpcdet.guard.routing.oracle import take

Pair = namedtuple("Pair", "x y")
ROWS = np.array([2, 0])


def test_rows_are_taken_of_all_that_has_one_entry_per_row() -> None:
    x = torch.arange(6).reshape(3, 2)
    batch: dict[str, Any] = {
        "x": x,
        "pair": Pair(x[:, 0], ["a", "b", "c"]),
        "array": np.array([1.0, 2.0, 3.0]),
        "tokens": UserDict(ids=x, mask=None),
        "scale": torch.tensor(2.0),
        "mask": torch.ones(2, 2),
        "views": [x, x + 1],
        "name": "train",
    }
    found = take(batch, ROWS, 3)
    assert found["x"].tolist() == [[4, 5], [0, 1]]
    assert isinstance(found["pair"], Pair)
    assert found["pair"].x.tolist() == [4, 0] and found["pair"].y == ["c", "a"]
    assert found["array"].tolist() == [3.0, 1.0]
    assert found["tokens"]["ids"].tolist() == [[4, 5], [0, 1]]
    assert batch["tokens"]["ids"] is x
    assert found["scale"] == 2 and found["mask"].shape == (2, 2) and found["name"] == "train"
    assert [one.tolist() for one in found["views"]] == [[[4, 5], [0, 1]], [[5, 6], [1, 2]]]


def test_a_list_of_as_many_tensors_as_there_are_rows_is_no_list_of_rows() -> None:
    x, y = torch.arange(2), torch.arange(2, 4)
    found = take([x, y], np.array([1]), 2)
    assert [one.tolist() for one in found] == [[1], [3]]
