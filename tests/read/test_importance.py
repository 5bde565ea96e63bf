"""Importance of hyperparameters: what matters is found, and too little is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hpcdet.errors import ConfigError
from hpcdet.read.sections import importance
from hpcdet.search.samplers import optuna_samplers

SPACE: dict[str, Any] = {
    "lr": {"type": "log", "minval": -4, "maxval": -1},
    "net": {"width": {"type": "int", "minval": 1, "maxval": 64}},
    "act": {"type": "categorical", "vals": ["relu", "tanh"]},
    "fixed": 3,
}


def trials(n: int) -> tuple[dict[int, dict[str, Any]], dict[int, float]]:
    """Trials whose value depends on ``lr`` alone."""
    draw = random.Random(1)
    params: dict[int, dict[str, Any]] = {
        trial: {
            "lr": 10 ** draw.uniform(-4, -1),
            "net": {"width": draw.randint(1, 64)},
            "act": draw.choice(["relu", "tanh"]),
            "fixed": 3,
        }
        for trial in range(1, n + 1)
    }
    return params, {trial: abs(each["lr"] - 0.01) for trial, each in params.items()}


@pytest.mark.parametrize("smaller", [True, False])
def test_what_matters_is_first(smaller: bool) -> None:
    params, values = trials(80)
    signed = values if smaller else {trial: -value for trial, value in values.items()}
    found = importance.importance(params, signed, SPACE, "loss", smaller)
    assert (found.n, found.reliable, found.why_not) == (80, True, "")
    assert found.rows[0].name == "lr"
    assert {row.name for row in found.rows} == {"lr", "net.width", "act"}
    assert found.rows[0].importance > 0.6
    assert sum(row.importance for row in found.rows) == pytest.approx(1, abs=1e-4)
    assert importance.importance(params, signed, SPACE, "loss", smaller) == found


def test_few_trials_are_refused_and_some_are_called_unreliable() -> None:
    few = importance.importance(*trials(19), SPACE, "loss", True)
    assert (few.rows, few.n) == ([], 19)
    assert "20 trials" in few.why_not
    some = importance.importance(*trials(20), SPACE, "loss", True)
    assert some.rows
    assert not some.reliable


def test_without_optuna_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise ConfigError("not installed")

    monkeypatch.setattr(optuna_samplers, "library", absent)
    assert "hpcdet[search]" in importance.importance(*trials(30), SPACE, "loss", True).why_not


def test_trials_of_another_space_are_said() -> None:
    params, values = trials(30)
    params[3] = {"act": "relu"}
    assert "do not fit" in importance.importance(params, values, SPACE, "loss", True).why_not


def test_a_value_outside_its_bounds_is_said() -> None:
    params, values = trials(30)
    space = {**SPACE, "depth": {"type": "int", "minval": 1, "maxval": 9}}
    params = {trial: {**one, "depth": 0 if trial == 3 else 5} for trial, one in params.items()}
    assert "do not fit" in importance.importance(params, values, space, "loss", True).why_not
