"""What a data set draws does not depend on which generators are seeded, or on when."""

from __future__ import annotations

import linecache
import random
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from hpcdet.data import rng
from hpcdet.data.sample_order import subseed
from hpcdet.data.sample_rng import Draws, Numpy, Plant

BATCH, BATCHES = 4, 6

Sample = Callable[[int], object]

SAMPLES: dict[str, Sample] = {
    "nothing": lambda index: index,
    "python": lambda index: random.random(),
    "numpy": lambda index: np.random.rand(),
    "one normal of numpy": lambda index: np.random.standard_normal(),
    "torch": lambda index: float(torch.rand(())),
    "one normal of torch": lambda index: float(torch.randn(())),
    "all": lambda index: (random.gauss(0, 1), np.random.standard_normal(), float(torch.randn(()))),
    # long after everybody thought that it draws nothing
    "python, late": lambda index: random.random() if index == 18 else 0,
    "numpy, late": lambda index: np.random.standard_normal() if index >= 13 else 0,
    "torch, late": lambda index: float(torch.rand(())) if index == 23 else 0,
}


@pytest.fixture(autouse=True)
def _own_state() -> Iterator[None]:
    before = rng.capture_cpu()
    yield
    rng.restore_cpu(before)


def plain(sample: Sample) -> list[object]:
    """Every generator is seeded before each sample."""
    drawn = []
    for index in range(BATCH * BATCHES):
        number = subseed("sample", index)
        random.seed(number)
        np.random.seed(number % 2**32)
        torch.default_generator.manual_seed(number % 2**63)
        drawn.append(sample(index))
    return drawn


@pytest.mark.parametrize("name", SAMPLES)
def test_draws_are_those_of_seeding_everything(name: str) -> None:
    sample = SAMPLES[name]
    expected = plain(sample)
    rng.seed_all(3)
    random.gauss(0, 1)  # each generator keeps a number for the next call
    np.random.standard_normal()
    torch.randn(())
    draws = Draws()
    drawn: list[object] = []
    for first in range(0, BATCH * BATCHES, BATCH):
        batch = _fetch(sample, range(first, first + BATCH))
        before = rng.capture_cpu()
        drawn += draws.batch(batch, keep=True)
        after = rng.capture_cpu()
        assert before[0] == after[0]
        assert before[1][2:] == after[1][2:]
        assert np.array_equal(before[1][1], after[1][1])
        assert torch.equal(before[2], after[2])
        # training draws, too, between two batches
        random.gauss(0, 1)
        np.random.standard_normal(first % 3)
        torch.randn(())
    assert drawn == expected


def _fetch(sample: Sample, indices: range) -> Callable[[Plant], list[object]]:
    def fetch(plant: Plant) -> list[object]:
        drawn = []
        for index in indices:
            plant("sample", index)
            drawn.append(sample(index))
        return drawn

    return fetch


def test_a_kept_normal_number_is_no_loophole() -> None:
    """A draw that takes it leaves numpy's words as they are."""
    np.random.seed(1)
    np.random.standard_normal()
    for source in (Numpy(), Numpy()):
        mark = source.mark()
        assert not source.moved(mark)
        np.random.standard_normal()
        assert source.moved(mark)
        source.restore(mark)
        assert not source.moved(mark)


def test_an_error_in_a_data_set_leaves_the_generators() -> None:
    draws = Draws()

    def fails(plant: Plant) -> None:
        plant("sample", 0)
        random.random()
        raise KeyError("no such sample")

    for _ in range(2):
        before = rng.capture_cpu()
        with pytest.raises(KeyError):
            draws.batch(fails, keep=True)
        assert rng.capture_cpu()[0] == before[0]


def test_seeding_looks_for_no_source_of_its_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch takes a stack for each kind of device; its lines would be read from the disk."""
    asked: list[str] = []
    monkeypatch.setattr(linecache, "updatecache", lambda name, _=None: asked.append(name) or [])
    monkeypatch.setattr(linecache, "checkcache", lambda name=None: asked.append(str(name)))
    monkeypatch.setattr(sys, "tracebacklimit", 7, raising=False)
    rng.seed_all(3)
    assert not asked
    assert sys.tracebacklimit == 7
