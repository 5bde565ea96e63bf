"""Suggestions by densities (``sampler: {name: tpe}`` with rungs): the draw that is likeliest."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from hpcdet.errors import ConfigError
from hpcdet.search import searcher_factory
from hpcdet.search.api.events import Create, Report, SegmentEnd, Start
from hpcdet.search.samplers import optuna_samplers
from hpcdet.search.samplers.density_sampler import BEST, RECENT, DensitySampler, log_density
from hpcdet.space.domains import Categorical, Double
from hpcdet.space.space import Space
from hpcdet.store.config.resolved_config import resolve
from hpcdet.units import Length
from tests.search.test_models import BOWL, History, bowl

LINE = {"x": {"type": "double", "minval": 0.0, "maxval": 1.0}}


def search(sampler: DensitySampler, trials: int) -> History:
    history = History()
    for number in range(1, trials + 1):
        history.known[number] = sampler.suggest(history, number)
        history.rows.append((number, 9, bowl(history.known[number])))
    return history


def test_a_suggestion_is_better_than_chance_and_the_same_for_the_same_history() -> None:
    space, late = Space(BOWL), []
    for fraction in (0.0, 1.0):
        history = search(DensitySampler(space, 5, random_fraction=fraction), 60)
        late.append(statistics.median(loss for *_, loss in history.rows[-30:] if loss is not None))
    assert late[0] < late[1] / 2
    whole = search(DensitySampler(space, 5, random_fraction=0.0), 20)
    short = History(dict(list(whole.known.items())[:19]), whole.rows[:19])
    assert DensitySampler(space, 5, random_fraction=0.0).suggest(short, 20) == whole.known[20]


def test_at_first_and_for_a_fraction_it_is_the_draw_of_random_search() -> None:
    space = Space(BOWL)
    history = search(DensitySampler(space, 5), 60)
    drawn = [space.sample(5, number) == history.known[number] for number in range(1, 61)]
    assert all(drawn[:8])
    assert 0.25 < statistics.mean(drawn[8:]) < 0.7  # a third, and where that draw is the likeliest
    patient = search(DensitySampler(space, 5, startup=30, random_fraction=0.0), 31)
    assert all(patient.known[number] == space.sample(5, number) for number in range(1, 31))


def test_the_highest_rung_with_enough_results_is_looked_at_and_no_other() -> None:
    space, history = Space(LINE), History()
    for number in range(1, 41):
        x = space.sample(5, number)["x"]
        history.known[number] = {"x": x}
        history.rows.append((number, 1, x))  # a short training speaks for small x, a long one not
        history.rows += [(number, 9, -x)] if number % 2 else []
    sampler = DensitySampler(space, 5, random_fraction=0.0)
    suggestions = [sampler.suggest(history, number) for number in range(41, 61)]
    assert statistics.median(one["x"] for one in suggestions) > 0.75
    history.rows = [row for row in history.rows if row[1] == 9]
    assert [sampler.suggest(history, number) for number in range(41, 61)] == suggestions
    few = DensitySampler(space, 5, startup=21, random_fraction=0.0)
    history.rows += [(number, 1, x["x"]) for number, x in history.known.items()]
    suggestions = [few.suggest(history, number) for number in range(41, 61)]
    assert statistics.median(one["x"] for one in suggestions) < 0.25


def test_who_was_held_back_below_is_no_unexplored_ground() -> None:
    space, history = Space(LINE), History()
    for number in range(1, 61):
        x = space.sample(5, number)["x"]
        history.known[number] = {"x": x}
        history.rows.append((number, 1, x))
        history.rows += [(number, 3, abs(x - 0.25))] if x < 0.5 else []
    sampler = DensitySampler(space, 5, random_fraction=0.0)
    suggestions = [sampler.suggest(history, number)["x"] for number in range(61, 101)]
    assert statistics.median(abs(x - 0.25) for x in suggestions) < 0.1
    assert sum(x > 0.7 for x in suggestions) < 4


def test_who_has_failed_counts_as_worse_and_who_is_on_the_way_does_not_count() -> None:
    space, history = Space(LINE), History()
    for number in range(1, 41):
        x = space.sample(5, number)["x"]
        history.known[number] = {"x": x}
        history.rows.append((number, 3, min(abs(x - 0.2), abs(x - 0.8))))
    sampler = DensitySampler(space, 5, random_fraction=0.0)

    def suggested() -> list[float]:
        return [sampler.suggest(history, number)["x"] for number in range(200, 240)]

    before = suggested()
    for number in range(41, 61):
        history.known[number] = {"x": 0.75 + number / 1000}
        history.busy.append(number)
        history.rows += [(number, 1, 0.0)] if number % 2 else []
    assert suggested() == before
    history.busy.clear()
    history.rows += [(number, 3, None) for number in range(41, 61)]
    assert sum(x > 0.5 for x in suggested()) < sum(x > 0.5 for x in before) / 2


def test_any_space_is_suggested_from_and_conditions_hold() -> None:
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
    sampler, history = DensitySampler(space, 1, random_fraction=0.0, startup=4), History()
    for number in range(1, 121):
        params = sampler.suggest(history, number)
        space.check(params)
        history.known[number] = params
        loss = (params["opt"]["name"] == "sgd") + abs(math.log10(params["opt"]["lr"]) + 4)
        history.rows.append((number, 3, None if number % 7 == 0 else loss))
    # by chance it would be one in six
    rates = [params["opt"]["lr"] for number, params in history.known.items() if number > 60]
    assert sum(10**-4.5 < rate < 10**-3.5 for rate in rates) > len(rates) / 3


def test_a_density_is_one() -> None:
    """It sums up to 1 over all that may be drawn; what a point lacks makes no difference."""
    choice, number = Categorical(("a", "b", "c")), Double(0.0, 1.0)
    points = np.array([[0.0, 0.4], [0.0, 0.5], [2.0, 0.6], [1.0, math.nan]])
    steps = (np.arange(2000) + 0.5) / 2000
    rows = np.array(list(itertools.product((0.0, 1.0, 2.0), steps)))
    densities = np.exp(log_density(rows, points, [choice, number], 0.2))
    assert densities.mean() == pytest.approx(1.0, abs=0.01)
    by_choice = densities.reshape(3, -1).mean(axis=1)
    assert by_choice[0] > by_choice[2] == pytest.approx(by_choice[1], rel=0.02)
    lacking = np.array([[0.0, math.nan], [2.0, math.nan]])
    alone = log_density(lacking[:, :1], points[:, :1], [choice], 0.2)
    # two values are fewer than three: the kernels of the second are as wide
    assert (log_density(lacking, points, [choice, number], 0.2) > alone).tolist() == [False, True]


def test_what_it_looks_at_is_bounded() -> None:
    space, history = Space(BOWL), History()
    for number in range(1, 2001):
        history.known[number] = space.sample(5, number)
        history.rows.append((number, 1, bowl(history.known[number])))
    sampler = DensitySampler(space, 5, random_fraction=0.0)
    suggested = [bowl(sampler.suggest(history, 2000 + n)) for n in range(1, 21)]
    assert statistics.median(suggested) < 0.15
    assert RECENT < len(sampler._rows) <= BEST + RECENT


def asked(name: str) -> dict[str, Any]:
    limits = {"max_trials": 30, "max_concurrent_trials": 2, "max_length": {"batches": 9}}
    return {
        "hyperparameters": BOWL,
        "searcher": {"name": name, "metric": "loss", "sampler": {"name": "tpe"}, **limits},
        "reproducibility": {"experiment_seed": 5},
    }


def play(known: dict[int, Mapping[str, Any]]) -> list[Create]:
    method = searcher_factory.searcher(resolve(asked("async_halving")), known=known)
    state, made = method.initial(), []
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


def test_with_rungs_no_library_is_needed_and_records_stand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing() -> Any:
        raise ConfigError("this sampler needs Optuna, which is not installed")

    monkeypatch.setattr(optuna_samplers, "library", missing)
    with pytest.raises(ConfigError, match="needs Optuna"):
        searcher_factory.searcher(resolve(asked("bayesian")))
    made = play({})
    assert any(Space(BOWL).sample(5, create.trial) != create.params for create in made)

    def never(*_: Any) -> Any:
        raise AssertionError("a model was asked")

    monkeypatch.setattr(DensitySampler, "suggest", never)
    assert play({create.trial: create.params for create in made}) == made
