"""Canaries: codes that a key chooses, and exposures of models that have seen them or not."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import math

import numpy as np
import pytest
import torch
from torch import nn

from hpcdet.policy import measures
from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import FEWEST_REFERENCES
from hpcdet.policy.memorization.canaries import DrawnCanaries, draw, judge
from tests.dose import dice

KEY = bytes(range(32))


def test_codes_are_those_of_key_and_source_and_each_is_there_once() -> None:
    drawn = draw(KEY, "a", 20, 20, (1, 4, 16))
    assert len(drawn.inserted) == 20 and len(drawn.references) == 1000
    every = np.concatenate([drawn.inserted, drawn.references])
    assert len(set(every.tolist())) == 1020 and every.min() >= 0 and every.max() < 1 << 20
    message = b"hpcdet-canaries/1 code\0" + b"\0\0\0\1" + b"a" + (0).to_bytes(8, "big")
    first = hmac.digest(hashlib.sha256(KEY).digest(), message, "sha256")
    assert drawn.inserted[0] == int.from_bytes(first, "big") >> 236
    assert drawn.inserted[:4].tolist() == [342597, 220772, 861771, 185867]  # for ever
    assert drawn.repeats[:5].tolist() == [1, 4, 16, 1, 4]
    assert len(drawn.records) == drawn.repeats.sum() == 7 * (1 + 4) + 6 * 16
    longer = draw(KEY, "a", 30, 20)
    assert longer.inserted[:20].tolist() == drawn.inserted.tolist()
    assert len(longer.references) == 1500 and set(longer.repeats.tolist()) == {1}
    for other in (draw(KEY, "b", 20, 20), draw(KEY[::-1], "a", 20, 20)):
        assert len(set(other.inserted.tolist()) & set(drawn.inserted.tolist())) < 5


def test_bits_of_codes_are_fair() -> None:
    codes = draw(dice("codes").randbytes(32), "a", 200, 62).references
    ones = [(codes >> bit & 1).mean() for bit in range(62)]
    assert max(abs(one - 0.5) for one in ones) < 5 * 0.5 / math.sqrt(len(codes))


def test_a_space_that_is_too_small_and_a_short_key_are_refused() -> None:
    with pytest.raises(PolicyRefused, match=r"P14.*20 canaries and 1000 references.*1024") as bad:
        draw(KEY, "a", 20, 10)
    assert bad.value.hint == "at least 11"
    assert len(draw(KEY, "a", 20, 11).references) == 1000
    with pytest.raises(PolicyRefused, match="P10"):
        draw(b"short", "a", 20, 20)


def test_losses_that_are_no_numbers_prove_nothing() -> None:
    mine: list[float]
    others: list[float]
    for mine, others in (([math.nan, 1.0], [1.0, 2.0]), ([1.0], [math.nan, 2.0])):
        found = judge(mine, others, 0.05, 0.0)
        assert math.isnan(found.mean) and math.isnan(found.share)
        assert found.p == 1 and not found.learned and math.isnan(found.memorization)
    assert judge([math.inf], [1.0, 2.0], 0.05, 0.0).exposures == (0.0,)
    for mine, others in (([], [1.0]), ([1.0], [])):
        with pytest.raises(ValueError, match="no canaries, or no references"):
            judge(mine, others, 0.05, 0.0)


def test_canaries_that_share_references_are_as_rarely_wrong_as_alpha_says() -> None:
    draws = np.random.default_rng(dice("shared references").randrange(1 << 32))
    low = 0
    for _ in range(1000):
        losses = draws.normal(size=20 + FEWEST_REFERENCES)
        low += judge(losses[:20], losses[20:], 0.05, 0.0).learned
    assert 15 <= low <= 90  # 50 expected, a little more as references are shared


# -- models ----------------------------------------------------------------------------------


def records(codes: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise float32[n, 16] with a class of ten: what users' code makes of codes."""
    noise = [np.random.default_rng(int(code) // 10).normal(size=16) for code in codes]
    labels = torch.from_numpy(np.asarray(codes) % 10)
    return torch.from_numpy(np.array(noise, dtype=np.float32)), labels


def trained(drawn: DrawnCanaries | None, steps: int, seed: int) -> nn.Module:
    """A network that has learned ten clusters, and canaries among them."""
    draws = np.random.default_rng(seed)
    centres = draws.normal(size=(10, 16))
    labels = draws.integers(0, 10, 500)
    images = torch.from_numpy((centres[labels] + draws.normal(size=(500, 16))).astype(np.float32))
    targets = torch.from_numpy(labels)
    if drawn is not None:
        noise, classes = records(drawn.records)
        images, targets = torch.cat([images, noise]), torch.cat([targets, classes])
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), targets).backward()
        optimizer.step()
    return model


def losses(model: nn.Module, codes: np.ndarray) -> np.ndarray:
    images, labels = records(codes)
    with torch.no_grad():
        found = nn.functional.cross_entropy(model(images), labels, reduction="none")
    return found.double().numpy()


def test_canaries_that_were_trained_are_known_and_the_more_so_the_more_often() -> None:
    chance = dice("canaries of a model")
    key, seed = chance.randbytes(32), chance.randrange(1 << 30)
    drawn = draw(key, "a", 30, 30, (1, 16))
    model = trained(drawn, 25, seed)
    found = drawn.judge(losses(model, drawn.ranked), 0.01, 0.1)
    by_hand = judge(losses(model, drawn.inserted), losses(model, drawn.references), 0.01, 0.1)
    assert found.exposures == pytest.approx(by_hand.exposures)
    assert found.violated and found.memorization == found.share
    assert dataclasses.replace(found, max_advantage=1.0).memorization == 0
    assert found.learned and found.mean > 2 * measures.NULL_EXPOSURE and found.share > 0.1
    by_repeats = found.by_repeats
    assert by_repeats[16] > by_repeats[1] + 1
    other = draw(chance.randbytes(32), "a", 30, 30)  # of which the model has seen none
    unseen = judge(losses(model, other.inserted), losses(model, other.references), 1e-6, 0.0)
    assert not unseen.learned and unseen.mean < 4


def test_models_that_have_seen_no_canary_have_the_exposure_of_chance() -> None:
    chance, found = dice("no canary"), list[float]()
    for _ in range(8):
        drawn = draw(chance.randbytes(32), "a", 30, 30)
        model = trained(None, 25, chance.randrange(1 << 30))
        found += judge(
            losses(model, drawn.inserted), losses(model, drawn.references), 0.1, 0.0
        ).exposures
    spread = measures.NULL_EXPOSURE / math.sqrt(len(found))
    assert abs(np.mean(found) - measures.NULL_EXPOSURE) < 5 * spread
