"""Twins of models that were trained: without memorization hardly ever a verdict, with it always.

What is trained here is trained by hand, in the order that twins have left; the data are digits.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from hpcdet.data.sample_order import Order, shuffled
from hpcdet.data.sourced import SourceTable
from hpcdet.guard.withheld import WithheldTwins
from hpcdet.policy.compiled import CompiledPolicy, DataSource, LayerGroup, Memorization, Twins
from hpcdet.policy.memorization.planned_tests import PlannedTests
from hpcdet.policy.memorization.twins import binomial_tail
from tests.dose import NULL_TRAININGS, dice

ALPHA, PAIRS, TRIALS, LOOKS = 0.05, 200, 3, 4
RECORDS, BATCH = 1200, 60


def policy(max_advantage: float) -> CompiledPolicy:
    """The least that asks for twins of one source."""
    rules = Memorization(Twins(PAIRS, alpha=ALPHA), max_advantage=max_advantage)
    layers, sources = (LayerGroup("all", ""),), (DataSource("a"),)
    return CompiledPolicy("t", 1, "sha256:00", layers, sources, ((1.0,),), memorization=rules)


@functools.cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images float32[RECORDS, 64], and labels of which a fifth is wrong."""
    draws = np.random.default_rng(1)
    pixels, labels = load_digits(return_X_y=True)
    wrong = draws.random(RECORDS) < 0.2
    taught = np.where(wrong, draws.integers(0, 10, RECORDS), labels[:RECORDS])
    images = torch.from_numpy((pixels[:RECORDS] / 16).astype(np.float32))
    return images, torch.from_numpy(taught)


def trial(
    key: bytes, seed: int, number: int, *, epochs: int, hidden: int, max_advantage: float
) -> bool:
    """Train one trial of a search, looking ``LOOKS`` times; True if a look was a violation."""
    images, labels = digits()
    whole = Order(RECORDS, BATCH, lambda epoch: shuffled(RECORDS, seed, epoch), permutes=True)
    level = PlannedTests(TRIALS, LOOKS).level
    twins = WithheldTwins.of(
        policy(max_advantage),
        key,
        whole,
        SourceTable.of(["a"] * RECORDS, "data"),
        lambda look, sources: level(ALPHA, number, look, sources),
    )
    assert twins is not None
    order = whole.without(twins.outside)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    steps = epochs * order.epoch_batches
    parts = order.slices(0, 0, 1)
    for step in range(1, steps + 1):
        batch = torch.from_numpy(next(parts).whole)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        if step % (steps // LOOKS) == 0 and twins.looks < LOOKS:
            with torch.no_grad():
                mine = torch.from_numpy(twins.indices)
                losses = nn.functional.cross_entropy(
                    model(images[mine]), labels[mine], reduction="none"
                )
            if any(one.violated for one in twins.judge(losses.double().numpy()).values()):
                return True
    assert twins.looks == LOOKS
    return False


def test_models_that_see_each_record_once_are_pruned_as_rarely_as_alpha_says() -> None:
    """Whatever the advantage: what is permitted is 0, so that the level alone decides."""
    draws = dice("null trainings")
    false = 0
    for _ in range(NULL_TRAININGS):
        key, seed = draws.randbytes(32), draws.randrange(1 << 30)
        false += any(
            trial(key, seed + number, number, epochs=1, hidden=24, max_advantage=0.0)
            for number in range(1, TRIALS + 1)
        )
    print(f"{false} of {NULL_TRAININGS} searches have a false verdict")
    assert binomial_tail(false, NULL_TRAININGS, ALPHA) > 1e-6


def test_a_model_that_learns_its_records_by_heart_is_found_by_the_same_looks() -> None:
    draws = dice("memorizing")
    key, seed = draws.randbytes(32), draws.randrange(1 << 30)
    assert trial(key, seed, 1, epochs=120, hidden=256, max_advantage=0.15)
    # and by the bound that is permitted, a model that has not learned them is spared
    assert not trial(key, seed, 1, epochs=1, hidden=24, max_advantage=0.25)
