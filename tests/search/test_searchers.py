"""Searchers: which trials, how many at a time, and that a replay decides the same."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcdet.errors import ConfigError
from hpcdet.search.api import events
from hpcdet.search.api.events import Action, Create, Method, Report, SegmentEnd, Shutdown, Start
from hpcdet.search.samplers import optuna_samplers
from hpcdet.search.searcher_factory import NAMES, searcher
from hpcdet.store.config.resolved_config import resolve
from hpcdet.store.config.sections.searcher_keys import COPYING, WHOLE
from hpcdet.store.folder.records import Trial
from hpcdet.units import Length
from tests.json_states import plain, tell

SPACE = {
    "lr": {"type": "log", "minval": -3, "maxval": -1, "count": 3},
    "n": {"type": "categorical", "vals": [1, 2]},
}


def make(space: dict[str, Any] | None = None, **asked: Any) -> Method[Any]:
    return searcher(
        resolve(
            {
                "hyperparameters": SPACE if space is None else space,
                "searcher": {"max_length": {"batches": 9}, **asked},
                "reproducibility": {"experiment_seed": 1},
            }
        )
    )


class Run:
    """Events given one after the other; the state makes the way through JSON each time."""

    def __init__(self, method: Method[Any]) -> None:
        self.method = method
        self.state = plain(method.initial())
        self.actions: list[Action] = []
        self.give(Start())

    def give(self, event: Any) -> list[Action]:
        self.state, actions = tell(self.method, self.state, event)
        self.actions += actions
        return actions

    def end(self, trial: int, reason: Any = "target") -> list[int | str]:
        """The trials that were made, or the shutdown, as they are named."""
        return [name(action) for action in self.give(SegmentEnd(trial, reason))]


def name(action: Action) -> int | str:
    if isinstance(action, Create):
        return action.trial
    assert isinstance(action, Shutdown)
    return "failed" if action.failed else "done"


def test_random_keeps_the_allowed_number_of_trials_open() -> None:
    run = Run(make(name="random", max_trials=4, max_concurrent_trials=2))
    assert [name(a) for a in run.actions] == [1, 2]
    assert run.give(Report(1, Length("batches", 5), {"loss": "NaN"})) == []
    assert run.end(2) == [3]
    assert run.end(2) == []  # said twice
    assert run.end(1, "failed") == [4]  # counts, and is not replaced
    assert run.end(3) == []
    assert run.end(4) == ["done"]
    assert run.end(4) == []


def test_a_refused_sample_is_replaced_and_does_not_count() -> None:
    run = Run(make(name="random", max_trials=2, max_concurrent_trials=2))
    assert run.end(1, "invalid_hp") == [3]
    assert run.end(3, "invalid_hp") == [4]
    assert [run.end(2), run.end(4)] == [[], ["done"]]
    params = [action.params for action in run.actions if isinstance(action, Create)]
    assert len({json.dumps(p) for p in params}) == 4


def test_a_metric_that_nobody_shows_is_asked_about_once_while_others_are_to_train() -> None:
    asked = {"name": "random", "max_trials": 6, "max_concurrent_trials": 2, "metric": "loss"}
    method = searcher(resolve({"hyperparameters": {"x": 1}, "searcher": asked}))

    def course(metrics: dict[str, float]) -> list[tuple[int, str]]:
        state, _ = method.on_event(method.initial(), events.Start())
        found: list[tuple[int, str]] = []
        for trial in range(1, 7):
            for event in (
                events.Report(trial, Length("batches", 9), metrics),
                events.SegmentEnd(trial, "user_exit"),
            ):
                state, actions = method.on_event(state, event)
                found += [(trial, one.why) for one in actions if isinstance(one, events.Ask)]
        assert state.over
        return found

    wanted = [(3, "no trial of 3 has shown a finite number as 'loss'")]
    assert course({"loss": math.nan}) == course({"other": 1.0}) == wanted
    assert course({"loss": 0.5}) == []


def test_no_limit_of_concurrency_is_zero() -> None:
    run = Run(make(name="random", max_trials=30, max_concurrent_trials=0))
    assert len(run.actions) == 30


@pytest.mark.parametrize("reason", ["failed", "canceled"])
def test_a_search_without_a_single_success_has_failed(reason: str) -> None:
    run = Run(make(name="random", max_trials=2, max_concurrent_trials=1))
    assert run.end(1, reason) == [2]
    assert run.end(2, reason) == ["failed"]


def test_single_is_one_trial_and_ends_with_it() -> None:
    run = Run(make(name="single", max_trials=1))
    [created] = run.actions
    assert isinstance(created, Create)
    assert (created.trial, created.until) == (1, Length("batches", 9))
    assert run.end(1, "user_exit") == ["done"]


def test_code_that_refuses_everything_ends_the_search() -> None:
    constant = Run(make({"lr": 1}, name="single"))
    assert constant.end(1, "invalid_hp") == ["failed"]
    run = Run(make(name="random", max_trials=1))
    for trial in range(1, 100):
        assert run.end(trial, "invalid_hp") == [trial + 1]
    assert run.end(100, "invalid_hp") == ["failed"]


def test_rules_that_leave_no_sample_end_the_search() -> None:
    run = Run(make({**SPACE, "forbid": ["n > 0"]}, name="random", max_trials=2))
    [shutdown] = run.actions
    assert isinstance(shutdown, Shutdown) and shutdown.failed and "forbidden" in shutdown.why


def test_grid_walks_its_points_first_to_last_and_uses_up_refused_ones() -> None:
    run = Run(make(name="grid", max_concurrent_trials=4))
    assert [run.end(1, "invalid_hp"), run.end(3, "failed")] == [[5], [6]]
    assert [run.end(k) for k in (2, 4, 5, 6)] == [[], [], [], ["done"]]
    params = [action.params for action in run.actions if isinstance(action, Create)]
    assert params == [{"lr": lr, "n": n} for lr in (0.001, 0.01, 0.1) for n in (1, 2)]


REASONS = ["target", "stopped", "failed", "invalid_hp", "user_exit", "canceled"]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["single", "random", "grid"]),
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(1, 12), st.sampled_from(REASONS)), max_size=25),
)
def test_a_replay_decides_the_same_and_every_search_comes_to_its_end(
    kind: str, concurrent: int, ends: list[tuple[int, str]]
) -> None:
    method = make(name=kind, max_trials=5, max_concurrent_trials=concurrent)
    first, second = (
        Run(method),
        Run(make(name=kind, max_trials=5, max_concurrent_trials=concurrent)),
    )
    for trial, reason in ends:
        assert first.end(trial, reason) == second.end(trial, reason)
        opened = len(first.state["open"])
        assert opened <= (concurrent or 6)
        assert first.state["over"] == (opened == 0)
    while not first.state["over"]:
        first.end(first.state["open"][0], "target")
    assert sum(isinstance(action, Shutdown) for action in first.actions) == 1
    numbers = [action.trial for action in first.actions if isinstance(action, Create)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_any_hyperparameters_come_back_from_a_trials_record(tmp_path: Path) -> None:
    params = {"size": {"unit": "MB", "value": 3}, "layers": [{"units": 1}], "on": None}
    path = tmp_path / "trial.json"
    Trial(1, params, 7).write_once(path)
    assert Trial.read(path) == Trial(1, params, 7)


def test_what_is_no_searcher_or_no_space_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="no searcher 'tpe'"):
        make(name="tpe")
    with pytest.raises(ConfigError, match=r"hyperparameters.a.type: there is no type"):
        make({"a": {"type": "what"}}, name="random", max_trials=1)


def test_without_optuna_only_models_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("optuna", "scipy", "torch"):
        monkeypatch.setitem(sys.modules, package, None)
    optuna_samplers.library.cache_clear()
    step = {"until": {"batches": 9}, "hyperparameters": {"lr": 0.1, "n": 1}}
    needs: dict[str, dict[str, Any]] = {
        **{method: {"population_size": 2} for method in COPYING},
        "schedule": {"schedule": {"steps": [step]}},
    }
    for method in sorted({*NAMES} - {"custom"}):
        asked: dict[str, Any] = {"name": method, "max_trials": 4, **needs.get(method, {})}
        if method in WHOLE:
            with pytest.raises(ConfigError, match=r"Optuna(.|\n)*hpcdet\[search\]"):
                make(**asked)
            continue
        run = Run(make(**asked))
        for trial in range(1, 100):
            if isinstance(run.actions[-1], Shutdown):
                break
            run.give(Report(trial, Length("batches", 9), {"validation_loss": 1 / trial}))
            run.end(trial)
        assert isinstance(run.actions[-1], Shutdown) and not run.actions[-1].failed, method
