"""A population that explores by a model: places, determinism, and whether the model helps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from hpcdet.search import searcher_factory
from hpcdet.search.api.events import (
    Continue,
    Create,
    Pause,
    Report,
    SegmentEnd,
    Shutdown,
    Start,
    Stop,
)
from hpcdet.space.domains import Double, Int, Log, LogInt, LogUniform
from hpcdet.space.unit_scale import at, place_of
from hpcdet.store.config.resolved_config import resolve
from hpcdet.store.trials.parents import Parent
from hpcdet.units import Length
from tests import experiments as x
from tests.json_states import plain, tell

SPACE: dict[str, Any] = {
    "rate": {"type": "loguniform", "low": 1e-5, "high": 1e-1},
    "decay": {"type": "double", "minval": 0.0, "maxval": 1.0},
    "kind": {"type": "categorical", "vals": ["a", "b"]},
}
LENGTH, INTERVAL, MEMBERS = 200, 10, 4


def config(name: str, seed: int) -> dict[str, Any]:
    return x.config(
        LENGTH,
        MEMBERS,
        hyperparameters=SPACE,
        reproducibility={"experiment_seed": seed},
        searcher={
            "name": name,
            "population_size": MEMBERS,
            "perturbation_interval": {"batches": INTERVAL},
            "quantile": 0.25,
            "synchronous": True,
        },
    )


def gain(params: Mapping[str, Any], at: int) -> float:
    """Of one interval: the best rate falls, the best decay rises while a model trains."""
    done = at / LENGTH
    rate = (math.log10(params["rate"]) + 5) / 4
    off = (rate - (0.9 - 0.7 * done)) ** 2 + (params["decay"] - (0.1 + 0.7 * done)) ** 2
    return math.exp(-off / (2 * 0.25**2))


class Members:
    """Trains a population on paper: what a trial has is its loss, which its heirs begin with."""

    def __init__(self, method: Any) -> None:
        self.method, self.state = method, plain(method.initial())
        self.trials: dict[int, dict[str, Any]] = {}
        self.history: dict[tuple[int, int], float] = {}
        self.made: dict[int, Mapping[str, Any]] = {}
        self.over = False
        self.best = math.inf

    def tell(self, event: Any) -> None:
        self.state, actions = tell(self.method, self.state, event, nan=True)
        for action in actions:
            match action:
                case Create(number, params, _, until, parent):
                    begun, loss = 0, 20.0
                    if parent and (found := Parent.parse(parent)) and found.length:
                        begun = found.length.value
                        loss = self.history[found.trial, begun]
                    self.made[number] = params
                    self.trials[number] = {"at": begun, "loss": loss, "until": until, "runs": True}
                case Continue(number, until):
                    self.trials[number].update(until=until, runs=True)
                case Pause(number) | Stop(number):
                    self.trials[number]["runs"] = False
                case Shutdown():
                    self.over = True

    def train(self) -> None:
        """To the end."""
        self.tell(Start())
        while not self.over:
            number, trial = min(
                ((n, t) for n, t in self.trials.items() if t["runs"]),
                key=lambda each: (each[1]["at"], each[0]),
            )
            trial["loss"] -= gain(self.made[number], trial["at"])
            trial["at"] += INTERVAL
            self.history[number, trial["at"]] = trial["loss"]
            length = Length("batches", trial["at"])
            self.tell(Report(number, length, {"validation_loss": trial["loss"]}))
            if trial["at"] >= trial["until"].value and trial["runs"]:
                trial["runs"] = False
                self.tell(SegmentEnd(number, "target"))
        self.best = min(trial["loss"] for trial in self.trials.values())


def trained(name: str, seed: int, known: dict[int, Mapping[str, Any]] | None = None) -> Members:
    members = Members(searcher_factory.searcher(resolve(config(name, seed)), known=known))
    members.train()
    return members


def test_the_model_finds_a_better_schedule_than_random_moves_while_the_best_one_drifts() -> None:
    def best(name: str, seed: int) -> float:
        return trained(name, seed).best

    by_model = [best("pb2", seed) for seed in range(4)]
    at_random = [best("pbt", seed) for seed in range(4)]
    assert sum(by_model) < 0.7 * sum(at_random)
    assert sum(one < other for one, other in zip(by_model, at_random, strict=True)) >= 3


def test_it_decides_the_same_again_and_what_is_recorded_stands() -> None:
    first = trained("pb2", 1)
    assert trained("pb2", 1).made == first.made
    other = {**first.made, 6: {**first.made[6], "rate": 0.02}}
    assert trained("pb2", 1, dict(other)).made[6]["rate"] == 0.02
    for number, params in first.made.items():
        assert set(params) >= set(SPACE), number
        assert 1e-5 <= params["rate"] <= 1e-1 and 0 <= params["decay"] < 1


@pytest.mark.parametrize(
    "domain",
    [
        Double(-1.0, 3.0),
        Int(2, 11, step=3),
        Log(-4, -1),
        Log(1, 2, base=0.1),
        LogUniform(1e-4, 10.0),
        LogInt(3, 700),
    ],
)
def test_places_are_numbers_and_numbers_are_places(domain: Any) -> None:
    for n in range(11):
        value = at(domain, n / 10)
        assert domain.holds(value)
        assert at(domain, place_of(domain, value)) == pytest.approx(value, rel=1e-9)
    assert domain.holds(at(domain, 0.0)) and domain.holds(at(domain, 1.0))
