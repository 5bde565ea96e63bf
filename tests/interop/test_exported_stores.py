"""Exports into stores of MLflow, Optuna and Weights & Biases, made twice and read back by them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import optuna
import pytest

from hpcdet.errors import Unavailable, UsageError
from hpcdet.interop.formats import mlflow_runs, optuna_study, wandb_runs
from hpcdet.interop.formats.exported import epoch
from hpcdet.read.experiment import series
from hpcdet.read.views import views
from hpcdet.store.folder.layout import ExperimentPaths
from tests.builders import Builder, TrialBuilder
from tests.interop.conftest import HOSTILE, exported, numbers, plain, rich, structured

# -- MLflow ------------------------------------------------------------------------------------


def recorded(store: Path) -> tuple[list[Any], Counter[tuple[Any, ...]]]:
    """The runs of a store, and their numbers as ``numbers`` has them, times in milliseconds."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{store}")
    experiment = client.get_experiment_by_name("digits-7f3a")
    assert experiment is not None
    runs = sorted(
        client.search_runs([experiment.experiment_id]),
        key=lambda run: str(run.data.tags["hpcdet.id"]),
    )
    found: Counter[tuple[Any, ...]] = Counter()
    for run in runs:
        trial = int(run.data.tags["hpcdet.id"].rpartition("/")[2])
        for key in run.data.metrics:
            group, _, name = key.partition("/")
            for point in client.get_metric_history(run.info.run_id, key):
                value = plain(point.value if point.value == point.value else "NaN")
                found[trial, group, name, point.step, value, point.timestamp] += 1
    return runs, found


def as_mlflow(paths: ExperimentPaths) -> Counter[tuple[Any, ...]]:
    """What ``metrics`` prints, as MLflow has it: no infinity, its names, milliseconds."""
    largest, key = 1.7976931348623157e308, mlflow_runs._key
    return Counter(
        (
            *(trial, group, key(name), step, largest if value == float("inf") else value),
            round(1000 * epoch(time)),
        )
        for trial, group, name, step, value, time in numbers(paths).elements()
    )


def test_mlflow_has_a_run_for_each_trial_whatever_happens_in_between(tmp_path: Path) -> None:
    built = rich(tmp_path / "digits-7f3a")
    store = tmp_path / "mlflow.db"
    for _ in range(2):
        assert mlflow_runs.export(exported(built.paths), str(store)) == f"sqlite:///{store}"
    runs, found = recorded(store)
    assert [run.data.tags["hpcdet.id"] for run in runs] == [
        f"digits-7f3a/{number}" for number in (1, 2, 3, 4)
    ]
    assert found == as_mlflow(built.paths)
    assert [run.info.status for run in runs] == ["FINISHED", "FINISHED", "FAILED", "FINISHED"]
    first = views.trials(built.paths)[0]
    times = (runs[0].info.start_time, runs[0].info.end_time)
    assert times == (round(1000 * epoch(first.start)), round(1000 * epoch(first.end)))
    assert runs[1].data.params == {"hidden": "32"}
    [lines] = (tmp_path / "mlflow-artifacts").rglob("confusion.jsonl")
    row = json.loads(lines.read_text())
    assert row["value"] == structured(built.paths)[4, "confusion"] and row["step"] == 100
    assert not list(Path.cwd().glob("mlruns*"))

    # a user rewinds a trial after it was exported: its later points count no more
    late = TrialBuilder(built, built.paths.trial(1))
    late.control("run", rewinds=[["00000100.g1", 3]])
    late.attempt(start=100, checkpoint="00000100.g1").metrics("training", 110, loss=0.5)
    mlflow_runs.export(exported(built.paths), str(store))
    again, found = recorded(store)
    assert found == as_mlflow(built.paths)
    kept = [one.info.run_id == other.info.run_id for one, other in zip(runs, again, strict=True)]
    assert kept == [False, True, True, True]
    assert again[0].info.status == "RUNNING"


def test_names_for_mlflow_differ_where_names_do() -> None:
    from mlflow.utils.validation import _validate_metric_name

    names = ["a", "a/b", "a//b", "../a", "/a", "a/", ".", "..", "", "a$b", "a:24:b", HOSTILE]
    names += ["x" * 300, "x" * 299 + "y", "é", "a\x00b"]
    keys = [mlflow_runs._key(name) for name in names]
    for key in keys:
        _validate_metric_name(key)
        assert len(key) <= 250
    assert len(set(keys)) == len(names) and keys[1] == "a/b"


# -- Optuna ------------------------------------------------------------------------------------

SPACE = {
    "hidden": {"type": "int", "minval": 8, "maxval": 64},
    "rate": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
    "optimizer": {"type": "categorical", "vals": ["adam", ["sgd", 0.9], None]},
    "fixed": 3,
}


def searched(root: Path) -> Builder:
    """A search over ``SPACE`` with a trial of each kind of end, one out of bounds."""
    built = Builder(root, hyperparameters=SPACE)
    one = built.trial(hidden=16, rate=0.01, optimizer="adam", fixed=3).attempt()
    one.metrics("validation", 100, validation_loss=0.5)
    one.metrics("validation", 200, validation_loss=float("nan"))
    one.metrics("validation", 300, validation_loss=0.25)
    one.end("completed")
    stopped = built.trial(hidden=80, rate=0.0001, optimizer=["sgd", 0.9], fixed=3)
    two = stopped.attempt()
    two.metrics("validation", 100, validation_loss=0.9)
    stopped.control("stop")
    two.end("stopped")
    three = built.trial(hidden=8, rate=0.1, optimizer=None, fixed=3)
    three.attempt().end("user_error", error="ValueError: no")
    three.control("fail")
    built.trial(hidden=9, rate=0.02, optimizer="adam", fixed=3)
    return built


def test_optuna_has_a_study_that_goes_on(tmp_path: Path) -> None:
    built = searched(tmp_path / "digits-7f3a")
    store = str(tmp_path / "optuna.db")
    for _ in range(2):
        address = optuna_study.export(exported(built.paths), store)
    study = optuna.load_study(study_name="digits-7f3a", storage=address)
    trials = study.get_trials()
    assert [one.user_attrs["hpcdet.id"] for one in trials] == [
        f"digits-7f3a/{number}" for number in (1, 2, 3, 4)
    ]
    assert [one.state.name for one in trials] == ["COMPLETE", "PRUNED", "FAIL", "WAITING"]
    assert trials[1].params == {"hidden": 80, "rate": 0.0001, "optimizer": '["sgd", 0.9]'}
    assert study.best_trial.user_attrs["hpcdet.id"] == "digits-7f3a/1"
    assert study.best_value == 0.25 and study.direction.name == "MINIMIZE"
    assert study.metric_names == ["validation_loss"]
    middle = {
        step: plain(value if value == value else "NaN")
        for step, value in trials[0].intermediate_values.items()
    }
    rows = [r for r in views.metrics(built.paths, trial=1) if r["name"] == "validation_loss"]
    assert middle == {row["step"]: plain(row["value"]) for row in rows}
    first = views.trials(built.paths)[0]
    start, end = trials[0].datetime_start, trials[0].datetime_complete
    assert start and end
    assert (start.timestamp(), end.timestamp()) == (epoch(first.start), epoch(first.end))

    built.trial(hidden=10, rate=0.03, optimizer="adam", fixed=3)
    optuna_study.export(exported(built.paths), store)
    assert len(study.get_trials()) == 5
    assert study.get_trials()[0].datetime_start == start


def test_a_study_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    built = searched(tmp_path / "digits-7f3a")
    address = f"sqlite:///{tmp_path}/optuna.db"
    theirs = optuna.create_study(study_name="digits-7f3a", storage=address)
    theirs.add_trial(optuna.create_trial(value=1.0))
    with pytest.raises(UsageError, match="not hpcdet's"):
        optuna_study.export(exported(built.paths), address)
    assert [one.value for one in theirs.get_trials()] == [1.0]


# -- Weights & Biases --------------------------------------------------------------------------


def wandb_file(folder: Path) -> Path:
    [file] = folder.glob("run-*.wandb")
    return file


def history(folder: Path) -> dict[int, dict[str, Any]]:
    """By step, the row of a run's history."""
    found: dict[int, dict[str, Any]] = {}
    for record in wandb_runs.records(wandb_file(folder)):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            row = {(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in items}
            found[record.history.step.num] = row
    return found


def test_wandb_has_an_offline_run_for_each_trial(built: Builder, tmp_path: Path) -> None:
    for _ in range(2):
        folder = wandb_runs.export(exported(built.paths), str(tmp_path))
    runs = sorted((path.name for path in folder.iterdir()), key=lambda name: name[-1])
    assert [name.rpartition("digits-7f3a-")[2] for name in runs] == ["1", "2", "3", "4"]
    assert not [*tmp_path.glob(".hpcdet-*")]
    want: defaultdict[tuple[int, int], dict[str, Any]] = defaultdict(dict)
    for row in views.metrics(built.paths):
        number = series.number(row["value"])
        value = number if number is not None else row["value"]
        if plain(row["value"]) is None:
            value = json.dumps(row["value"])
        key = (row["trial"], row["step"])
        want[key][f"{row['group']}/{row['name']}"] = value
        want[key]["_timestamp"] = max(want[key].get("_timestamp", 0.0), epoch(row["time"]))
    told: dict[tuple[int, int], dict[str, Any]] = {}
    for trial, name in enumerate(runs, 1):
        for step, row in history(folder / name).items():
            kept = {k: v for k, v in row.items() if k not in ("_step", "_runtime", "_wandb")}
            told[trial, step] = {k: v if v == v else "NaN" for k, v in kept.items()}
    assert told == {key: infinite(row) for key, row in want.items()}
    of_run = {name: [*wandb_runs.records(wandb_file(folder / name))] for name in runs}
    run = next(one.run for one in of_run[runs[0]] if one.HasField("run"))
    config = {one.key: json.loads(one.value_json) for one in run.config.update}
    first = views.trials(built.paths)[0]
    assert config["hidden"] == 16 and config["hpcdet"]["start"] == first.start
    assert (run.run_id, run.run_group) == ("digits-7f3a-1", "digits-7f3a")
    ends = [one.exit.exit_code for each in of_run.values() for one in each if one.HasField("exit")]
    assert ends == [0, 0, 1, 0]  # trial 3 failed; the search stopped trial 4, which is no failure


def test_a_run_that_wandb_could_not_write_whole_replaces_none(
    built: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, of which wandb says nothing but in its own log."""
    folder = wandb_runs.export(exported(built.paths), str(tmp_path))
    before = {path: path.read_bytes() for path in folder.glob("*/*.wandb")}
    [first, *_] = sorted(before)
    steps = len(history(first.parent))
    assert wandb_runs._is_whole(first, steps) and not wandb_runs._is_whole(first, steps + 1)
    for size in range(0, len(before[first]), 97):
        cut = tmp_path / "cut.wandb"
        cut.write_bytes(before[first][:size])
        assert not wandb_runs._is_whole(cut, steps), size
    write = wandb_runs._write
    monkeypatch.setattr(wandb_runs, "_write", lambda *words: write(*words) + 1)
    with pytest.raises(Unavailable, match="did not write all of digits-7f3a-1"):
        wandb_runs.export(exported(built.paths), str(tmp_path))
    assert {path: path.read_bytes() for path in folder.glob("*/*.wandb")} == before
    assert not [*tmp_path.glob(".hpcdet-*")]


def infinite(row: dict[str, Any]) -> dict[str, Any]:
    return {key: float("inf") if value == "Infinity" else value for key, value in row.items()}
