"""The parts of ``make governed-replications`` on few steps: trained, counted and printed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import TOP

sys.path.insert(0, str(TOP / "benchmarks"))

import governed_replications  # type: ignore[import-not-found]
from governed import (  # type: ignore[import-not-found]
    character_canaries,
    removable_lanes,
    replication_tables,
    split_autoencoder,
    two_ranks,
    weight_entropies,
)
from governed.replication_criteria import Criterion, Figures  # type: ignore[import-not-found]
from governed.split_autoencoder import HALF, SETTINGS, Batch, Split  # type: ignore[import-not-found]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def encoder_changes(setting: str, digits: str) -> tuple[bool, bool]:
    """Whether digits of one kind change what gives the first and the last half of encodings."""
    torch.manual_seed(0)
    model = Split(SETTINGS[setting])
    routed = split_autoencoder.route(model, SETTINGS[setting])
    x, y, _, _ = split_autoencoder.pictures()
    rows = (y >= 5 if digits == "5-9" else y < 5).nonzero()[:8, 0]
    high = y[rows] >= 5
    loss = functools.partial(model.loss, x[rows], high, Batch(8, 8))
    routed.backward(split_autoencoder.sources(high), loss)
    gradient = model.encoder[-1].weight.grad
    first, last = (bool((one != 0).any()) for one in gradient.split(HALF))
    return first, last


@pytest.mark.parametrize(
    ("setting", "low", "high"),
    [
        ("4", (True, False), (False, True)),
        ("5", (True, False), (False, True)),
        ("10", (True, True), (True, True)),
        ("8", (False, False), (True, True)),
    ],
)
def test_digits_change_the_half_that_their_setting_says(
    setting: str, low: tuple[bool, bool], high: tuple[bool, bool]
) -> None:
    assert encoder_changes(setting, "0-4") == low
    assert encoder_changes(setting, "5-9") == high


def test_penalties_act_on_both_halves_and_each_by_its_weight() -> None:
    x, y, _, _ = split_autoencoder.pictures()
    x, high = x[:64], y[:64] >= 5
    torch.manual_seed(0)
    model = Split(SETTINGS["6"])
    first, last = model.encoder(x).split(HALF, 1)
    losses = []
    for l1 in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0)):
        model._setting = split_autoencoder.Setting("", (0, 0), l1=l1)
        losses.append(model.loss(x, high, Batch.of(high)).item())
    assert losses[1] - losses[0] == pytest.approx(first.abs().sum(1).mean().item(), rel=1e-4)
    assert losses[2] - losses[0] == pytest.approx(last.abs().sum(1).mean().item(), rel=1e-4)


def test_two_ranks_step_as_one_process_does_and_other_settings_do_not() -> None:
    found = two_ranks.compare(0, 3, ("1", "5"))
    assert set(found) == {"1", "5"} and 0 < max(found.values()) <= 1e-5
    one, other = two_ranks.trace("1", 0, 3), two_ranks.trace("3", 0, 3)
    assert np.abs(one - other).max() > 1e-5


def test_canaries_are_known_if_they_are_trained_and_else_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(character_canaries, "CANARIES", 2)
    trained = character_canaries.train("4", 0, 15)
    assert trained["exposure"] > 5
    assert trained["exposure of others"] < 4
    filtered = character_canaries.train("8", 0, 15)["exposures"]
    assert all(0 <= one <= 13.3 for one in filtered)
    assert max(filtered) < min(trained["exposures"])


def test_lanes_are_of_who_their_setting_says() -> None:
    filtered = removable_lanes.train("6", 0, 1)
    assert filtered["forget before"] is None and filtered["forget"] > 1
    laned = removable_lanes.train("3", 0, 12)
    assert laned["forget before"] < laned["forget"]
    draw = np.random.Generator(np.random.PCG64(0))
    begins = np.arange(16) * 10  # of 160 places: the first 16 are undiscovered, of two rows
    others = (removable_lanes.RETAIN, removable_lanes.UNLABELLED)
    for name, undiscovered in zip(("6", "7", "7a", "8"), (*others, *others), strict=True):
        codes = removable_lanes._codes(removable_lanes.SETTINGS[name], begins, 160, draw)
        assert set(codes[16:18]) == {undiscovered} and set(codes[18:]) == {removable_lanes.FORGET}
        assert removable_lanes.FORGET not in codes[:16]


def test_a_recipe_decides_what_is_learned() -> None:
    found = weight_entropies.train("1", 0, 80)
    assert found["test accuracy"] > 0.8 and found["fitted"] > 0.8
    by_heart = weight_entropies.train("2", 0, 80)
    assert by_heart["test accuracy"] < 0.3 and by_heart["fitted"] < found["fitted"]
    assert all(0.8 < one[f"layer {n}"] < 1 for one in (found, by_heart) for n in range(3))


def test_trainings_are_kept_until_their_settings_change(tmp_path: Path) -> None:
    made: list[int] = []

    def train() -> dict[str, Any]:
        made.append(1)
        return {"x": 0.5}

    one = governed_replications.Training("part", "1", 0, "3 steps", train)
    assert one.saved(tmp_path) is None
    one.save(tmp_path)
    assert one.saved(tmp_path) == {"x": 0.5} and len(made) == 1
    other = governed_replications.Training("part", "1", 0, "4 steps", train)
    assert other.saved(tmp_path) is None
    seeds = {one.seed for one in governed_replications.trainings(["autoencoders"])}
    assert len(list(governed_replications.trainings(["autoencoders"]))) == 33 and len(seeds) == 3


def invented(low: float, high: float) -> dict[str, Any]:
    names = ("certificate 0-4", "certificate 5-9", "decoder 0-4", "decoder 5-9")
    squared = {f"certificate {of} squared": 0.1 for of in ("0-4", "5-9")}
    return {**dict.fromkeys(names, 0.1), **squared, "certificate 0-4": low, "certificate 5-9": high}


def test_a_criterion_says_not_shown_where_a_figure_is_out_of_its_bounds() -> None:
    alike, split = invented(0.1, 0.1), invented(0.35, 0.1)
    figures = {name: [alike] for name in SETTINGS} | {
        name: [split] for name in ("1", "1p", "2", "3", "6", "7")
    }
    figures["4"] = [invented(0.35, 0.35)]
    assert replication_tables.shown({"autoencoders": figures})
    said = list(replication_tables.lines({"autoencoders": figures}))
    assert not any("NOT SHOWN" in line for line in said)
    twice = {name: [*seeds, *seeds] for name, seeds in figures.items()} | {"1": [split, alike]}
    assert not replication_tables.shown({"autoencoders": twice})
    said = list(replication_tables.lines({"autoencoders": twice}))
    assert any("NOT SHOWN" in line and "1 of 2 seeds" in line for line in said)
    del twice["10"][0]
    said = list(replication_tables.lines({"autoencoders": twice}))
    assert sum("not trained" in line for line in said) == 2


@pytest.mark.parametrize("part", replication_tables.PARTS)
def test_each_criterion_has_a_bound_and_can_fail(part: str) -> None:
    for one in replication_tables.PARTS[part].criteria:
        assert (one.least > -np.inf) != (one.most < np.inf), one.what
        outside = one.least - 1 if one.least > -np.inf else one.most + 1
        failing = Criterion(one.what, one.unit, lambda of, x=outside: x, one.least, one.most)
        assert not failing.met(Figures({}))


def test_rows_are_those_of_every_benchmark() -> None:
    by_part: dict[str, Any] = {
        "autoencoders": {name: [invented(0.3, 0.1)] * 3 for name in SETTINGS},
        "canaries": {
            name: [{"exposure": 2.0, "exposures": [2.0], "exposure of others": 1.0, "auc": 0.5,
                    "loss": 2.0}] * 3
            for name in character_canaries.SETTINGS
        },
        "lanes": {
            name: [{"retain": 2.0, "forget": 3.0, "forget before": None if name == "2" else 2.0}]
            * 3
            for name in removable_lanes.SETTINGS
        },
        "entropies": {
            name: [{**dict.fromkeys(("layer 0", "layer 1", "layer 2"), 0.9 + int(name) / 100),
                    "test accuracy": 0.5, "fitted": 1.0}] * 3
            for name in weight_entropies.SETTINGS
        },
        "ranks": {"all": [dict.fromkeys(SETTINGS, 1e-9)] * 3},
    }  # fmt: skip
    rows = replication_tables.rows(by_part)
    common = {"what", "unit", "ours", "peer", "peer_name", "ratio", "goal", "met", "runs"}
    assert all(common <= set(row) and row["runs"] == 3 for row in rows)
    [of_one] = [row for row in rows if row["what"].endswith("autoencoders 1 (routing, L1 3e-3, "
                "correlation 0.1): certificate 0-4")]  # fmt: skip
    assert of_one["ours"] == pytest.approx(0.3) and of_one["peer"] == 0.32
    judged = [row for row in rows if row["goal"] is not None]
    assert len(judged) == sum(len(one.criteria) for one in replication_tables.PARTS.values())
    assert {row["met"] for row in judged} == {True, False}
