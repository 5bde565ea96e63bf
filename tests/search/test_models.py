"""Suggestions from a model: the same for the same history, and better than chance."""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hpcdet.errors import HpcdetError
from hpcdet.rungs import Bracket
from hpcdet.search import searcher_factory
from hpcdet.search.api.events import Create, Report, SegmentEnd, Start
from hpcdet.search.api.ranking import entry
from hpcdet.search.api.sampling import Observation
from hpcdet.search.halving.bracket_state import DONE, OPEN, Books, HalvingState, StateView, Trials
from hpcdet.search.samplers import optuna_samplers, subprocess_sampler
from hpcdet.search.samplers.optuna_samplers import RECENT, Model, ModelBased
from hpcdet.search.samplers.subprocess_sampler import Elsewhere
from hpcdet.space.space import Space
from hpcdet.store.config.resolved_config import resolve
from hpcdet.units import Length

BOWL = {
    "lr": {"type": "log", "minval": -5, "maxval": 0},
    "width": {"type": "int", "minval": 1, "maxval": 64},
    "drop": {"type": "double", "minval": 0.0, "maxval": 1.0},
    "fixed": 3,
}


@dataclass
class History:
    """What trials have shown: ``rows`` of trial, length, loss."""

    known: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    rows: list[tuple[int, int, float | None]] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)

    def params(self) -> Mapping[int, Mapping[str, Any]]:
        return self.known

    def observations(self, most: int | None = None) -> Iterator[Observation]:
        def key(row: tuple[int, int, float | None]) -> Any:
            return -row[1], math.inf if row[2] is None else row[2], row[0]

        return (Observation(*row) for row in sorted(self.rows, key=key))

    def open(self) -> list[int]:
        return self.busy


def bowl(params: Mapping[str, Any]) -> float:
    """Least at lr 1e-3, width 48, drop 0.2."""
    far = (math.log10(params["lr"]) + 3) / 5, (params["width"] - 48) / 64, params["drop"] - 0.2
    return sum(x * x for x in far)


def search(sampler: ModelBased, trials: int) -> History:
    history = History()
    for number in range(1, trials + 1):
        params = sampler.suggest(history, number)
        history.known[number] = params
        history.rows.append((number, 9, bowl(params)))
    return history


def test_a_gaussian_process_thinks_in_a_process_of_its_own() -> None:
    space = Space({"x": {"type": "double", "minval": 0.0, "maxval": 1.0}})
    history = History()
    for number in range(1, 13):
        history.known[number] = space.sample(5, number)
        history.rows.append((number, 9, (history.known[number]["x"] - 0.3) ** 2))
    here = ModelBased(space, 5, "gp", random_fraction=0.0)
    there = Elsewhere(here, {"x": {"type": "double", "minval": 0.0, "maxval": 1.0}})
    suggested = there.suggest(history, 13)
    assert abs(suggested["x"] - 0.3) < 0.1
    assert there.suggest(History(), 13) == space.sample(5, 13)


def test_who_waits_for_a_suggestion_is_heard_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, question, slow = tmp_path / "go", tmp_path / "question", tmp_path / "slow"
    slow.write_text(
        f"#!/bin/sh\ncat > {question}\n"
        f"until test -e {go}; do sleep 0.05; done\necho '{{\"x\": 0.25}}'\n"
    )
    slow.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(slow))
    monkeypatch.setattr(subprocess_sampler, "STEP_S", 0.05)
    x = {"x": {"type": "double", "minval": 0.0, "maxval": 1.0}}
    asked = {
        "name": "bayesian",
        "metric": "loss",
        "max_length": {"batches": 9},
        "max_trials": 10,
        "max_concurrent_trials": 1,
        "sampler": {"name": "gp", "random_fraction": 0.0},
    }
    resolved = resolve({"hyperparameters": x, "searcher": asked})
    method = searcher_factory.searcher(resolved, beat=go.touch)
    state, actions = method.on_event(method.initial(), Start())
    for number in range(1, 9):
        assert not go.exists()
        report = Report(number, Length("batches", 9), {"loss": 0.5})
        state, actions = method.on_event(state, report)
    assert [a.params for a in actions if isinstance(a, Create)] == [{"x": 0.25}]
    assert json.loads(question.read_text())["number"] == 9
    go.unlink()
    monkeypatch.setattr(subprocess_sampler, "PATIENCE_S", 0.2)
    method = searcher_factory.searcher(resolved)
    with pytest.raises(HpcdetError, match=r"no suggestion in 0\.2 s"):
        method.on_event(state, Report(9, Length("batches", 9), {"loss": 0.5}))


def test_a_model_is_better_than_chance_and_forgets_nothing_that_counts() -> None:
    model: Model = "tpe"
    space = Space(BOWL)
    late = []
    for fraction in (0.0, 1.0):
        sampler = ModelBased(space, 5, model, random_fraction=fraction)
        history = search(sampler, 40)
        late.append(statistics.median(loss for *_, loss in history.rows[-10:] if loss is not None))
    assert late[0] < late[1] / 3
    # a new object, as after a crash, suggests the same from the same history
    again = ModelBased(space, 5, model, random_fraction=0.0)
    whole = search(again, 12)
    short = History(dict(list(whole.known.items())[:11]), whole.rows[:11])
    assert ModelBased(space, 5, model, random_fraction=0.0).suggest(short, 12) == whole.known[12]


def test_before_there_is_enough_and_now_and_then_it_draws_at_random() -> None:
    space = Space(BOWL)
    sampler = ModelBased(space, 5)
    history = search(sampler, 60)
    drawn = [space.sample(5, number) == history.known[number] for number in range(1, 61)]
    assert all(drawn[:8])
    assert 0.15 < statistics.mean(drawn[8:]) < 0.55


def test_the_highest_rung_with_enough_results_is_modelled() -> None:
    space = Space({"x": {"type": "double", "minval": 0.0, "maxval": 1.0}})
    history = History()
    for number in range(1, 21):
        x = space.sample(5, number)["x"]
        history.known[number] = {"x": x}
        # a short training speaks for small x, a long one for large
        history.rows += [(number, 1, x), (number, 9, -x)]
    suggestions = [
        ModelBased(space, 5, random_fraction=0.0).suggest(history, number)["x"]
        for number in range(21, 31)
    ]
    assert statistics.median(suggestions) > 0.7


def test_open_trials_push_others_away() -> None:
    space = Space({"x": {"type": "double", "minval": 0.0, "maxval": 1.0}})
    history = History()
    for number in range(1, 21):
        x = number / 20
        history.known[number] = {"x": x}
        history.rows.append((number, 1, (x - 0.5) ** 2))
    for number in range(21, 61):
        history.known[number] = {"x": 0.5}
        history.busy.append(number)
    suggestions = [
        ModelBased(space, 5, random_fraction=0.0).suggest(history, number)["x"]
        for number in range(61, 81)
    ]
    assert statistics.median(abs(x - 0.5) for x in suggestions) > 0.04


def test_any_space_can_be_modelled() -> None:
    space = Space(
        {
            "opt": {
                "choice": {
                    "sgd": {"lr": {"type": "loguniform", "low": 1e-3, "high": 1}},
                    "adam": {"lr": {"type": "log", "minval": -5, "maxval": -2, "base": 10}},
                }
            },
            "flag": {"type": "categorical", "vals": [True, 1, None, [1, 2]]},
            "size": {"type": "categorical", "vals": ["s", "m", "l"], "ordered": True},
            "depth": {"type": "int", "minval": 2, "maxval": 9, "step": 3},
            "batch": {"type": "log_int", "low": 1, "high": 512},
            "layers": [{"type": "double", "minval": 0, "maxval": 1}, 7],
            "twice": {"derived": "depth * 2"},
            "forbid": ["depth > 5 and batch > 256"],
        }
    )
    sampler = ModelBased(space, 1, random_fraction=0.0, startup=4)
    history = History()
    for number in range(1, 41):
        params = sampler.suggest(history, number)
        history.known[number] = params
        loss = None if number % 7 == 0 else params["batch"] / 512 + params["opt"]["lr"]
        history.rows.append((number, 3, loss))
        assert params["twice"] == 2 * params["depth"] and params["depth"] in (2, 5, 8)
        assert not (params["depth"] > 5 and params["batch"] > 256)
        low, high = (1e-3, 1) if params["opt"]["name"] == "sgd" else (1e-5, 1e-2)
        assert low <= params["opt"]["lr"] <= high and params["layers"][1] == 7
    values = [loss for *_, loss in history.rows if loss is not None]
    assert statistics.mean(values[-12:]) < statistics.mean(values[:12])


@pytest.mark.parametrize("model", ["tpe", "nsga2"])
def test_without_conditions_optuna_is_told_what_it_would_find_in_all_trials(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = {
        "z": {"type": "loguniform", "low": 1e-3, "high": 1},
        "only": {"type": "categorical", "vals": ["x"]},
        "size": {"type": "categorical", "vals": ["s", "m", "l"], "ordered": True},
        "depth": {"type": "int", "minval": 2, "maxval": 9, "step": 3},
        "batch": {"type": "log_int", "low": 1, "high": 512},
        "act": {"a": {"type": "categorical", "vals": ["relu", None]}},
        **BOWL,
    }
    space, history = Space(flat), History()
    for number in range(1, 31):
        history.known[number] = space.sample(5, number)
        history.rows.append((number, 1 + number % 2, bowl(history.known[number])))
    sampler = ModelBased(space, 5, model, random_fraction=0.0, startup=8, population=8)
    found = optuna_samplers.library().search_space.IntersectionSearchSpace(include_pruned=True)
    known = optuna_samplers._study(None, sampler._project(history), 1)
    seen = {name: one for name, one in found.calculate(known).items() if not one.single()}
    assert list((sampler._together or {}).items()) == list(seen.items()) and "only" not in seen
    told = [sampler.suggest(history, number) for number in range(31, 41)]
    monkeypatch.setattr(ModelBased, "_together", None)
    assert [sampler.suggest(history, number) for number in range(31, 41)] == told


def test_what_a_model_sees_is_bounded() -> None:
    space = Space(BOWL)
    history = History()
    for number in range(1, 2001):
        history.known[number] = space.sample(5, number)
        history.rows.append((number, 1, bowl(history.known[number])))
    sampler = ModelBased(space, 5, random_fraction=0.0)
    assert bowl(sampler.suggest(history, 2001)) < 0.2
    assert RECENT < len(sampler._seen) < 600


def test_of_a_long_search_a_model_is_shown_what_it_would_choose_itself() -> None:
    draw, space, trials = random.Random(1), Space(BOWL), 3_000
    books = Books.opened(Bracket((1, 4, 16), trials, trials))
    for number in range(1, trials + 1):
        for ranking in books.scores[: draw.choice((0, 1, 1, 1, 2, 3))]:
            ranking.append(entry(draw.choice((None, draw.random())), number))
    for ranking in books.scores:
        ranking.sort()
    statuses = draw.choices((OPEN, DONE), weights=(1, 30), k=trials)
    params = [space.sample(0, number) for number in range(1, trials + 1)]
    state = HalvingState([books], 0, None, Trials(status=statuses, params=params))
    model, bounded = ModelBased(space, 1, random_fraction=0.0), StateView(state)

    @dataclass(frozen=True)
    class Unbounded(StateView):
        def observations(self, most: int | None = None) -> Iterator[Observation]:
            return super().observations()

    looked_at = len(list(bounded.observations(model.most)))
    assert looked_at < 0.6 * len(list(bounded.observations()))
    seen, all_seen = model._project(bounded), model._project(Unbounded(state))
    assert [(one.number, one.state) for one in seen] == [(o.number, o.state) for o in all_seen]


def test_decided_again_by_its_records_a_search_asks_no_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {
        "hyperparameters": BOWL,
        "searcher": {
            "name": "bayesian",
            "metric": "loss",
            "max_length": {"batches": 9},
            "max_trials": 14,
            "max_concurrent_trials": 2,
        },
        "reproducibility": {"experiment_seed": 5},
    }

    def play(known: dict[int, Mapping[str, Any]]) -> list[Create]:
        method = searcher_factory.searcher(resolve(values), known=known)
        state = method.initial()
        made: list[Create] = []
        events: list[Any] = [Start()]
        while events:
            state, actions = method.on_event(state, events.pop(0))
            for action in actions:
                if isinstance(action, Create):
                    made.append(action)
                    metrics = {"loss": bowl(action.params)}
                    events.append(Report(action.trial, Length("batches", 9), metrics))
                    events.append(SegmentEnd(action.trial, "target"))
        return made

    made = play({})
    assert len(made) == 14
    drawn = Space(BOWL)
    assert any(drawn.sample(5, create.trial) != create.params for create in made)

    def never(*_: Any) -> Any:
        raise AssertionError("a model was asked")

    monkeypatch.setattr(ModelBased, "suggest", never)
    assert play({create.trial: create.params for create in made}) == made
