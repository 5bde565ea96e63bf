"""Experiments of Determined as ended ones of ours, from JSON that its own bindings have written."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from hpcdet.cli import main
from hpcdet.errors import ConfigError, Unavailable
from hpcdet.interop.imported import determined_json
from hpcdet.interop.imported.ended_experiment import EndedExperiment
from hpcdet.read.experiment.gather import gather
from hpcdet.read.lookup import find
from hpcdet.read.usage import usage_table
from hpcdet.read.views import views
from hpcdet.store.folder.layout import ExperimentPaths
from tests import TOP
from tests.commands import Cli

RECORDED = TOP / "tests" / "recorded" / "determined-describe"
FILES = sorted(RECORDED.glob("*.json"))
STORED = "0a1b2c3d-0000-4000-8000-000000000001"
"""The first of the checkpoints there."""


def imported(cli: Cli, *more: object) -> ExperimentPaths:
    [row] = cli("import", "determined", *FILES, *more, "-o", "json").items
    return find.experiment(row["id"], cli.root)


def said() -> dict[int, list[Any]]:
    """By id, the workloads of each trial as Determined has them."""
    found = {}
    for path in RECORDED.glob("trial-*.json"):
        value = json.loads(path.read_text())
        found[value["trial"]["id"]] = value["workloads"]
    return found


def test_metrics_have_determineds_values_times_and_steps(cli: Cli) -> None:
    paths = imported(cli)
    told = {
        (row["trial"], row["group"], row["step"], row["name"]): (row["value"], row["time"])
        for row in views.metrics(paths)
    }
    want = {}
    for number, (_, workloads) in enumerate(sorted(said().items()), 1):
        for work in workloads:
            for group in ("training", "validation"):
                one = work.get(group)
                if not one:
                    continue
                step, time = one["totalBatches"], one["endTime"]
                for name, value in one["metrics"]["avgMetrics"].items():
                    want[number, group, step, name] = (value, time)
                each = one["metrics"]["batchMetrics"] or []
                for place, values in enumerate(each, step - len(each) + 1):
                    for name, value in values.items():
                        want[number, f"{group}_batch", place, name] = (value, time)
    assert told == want and want[1, "validation", 937, "confusion"][0] == [[6, 0], [0, 4]]
    assert {row["value"] for row in views.metrics(paths, trial=2)} >= {"NaN", "Infinity"}


def test_it_has_ended_and_says_where_it_is_from(cli: Cli) -> None:
    paths = imported(cli)
    status = views.status(paths)
    assert status.state == "COMPLETED" and status.why == "imported from Determined, experiment 12"
    assert [one.state for one in status.trials] == ["COMPLETED", "COMPLETED", "ERROR", "CANCELED"]
    assert [one.steps for one in status.trials] == [937, 234, 50, 0]
    assert status.best and (status.best.trial, status.best.value) == (1, 0.07)
    assert status.labels == ["mnist", "determined"] and status.created.startswith(
        "2025-03-01T10:00"
    )
    assert all(one.seed is None for one in status.trials)  # Determined does not tell it
    assert str(status.max_length) == "937 batches" and status.searcher == "adaptive_asha"
    [use] = usage_table.of_experiment(paths, ())
    hours = use.slot_hours  # two slots; of the one that was canceled before its first step
    assert hours.training > 0 and hours.starting == pytest.approx(2 * 60 / 3600, abs=1e-6)
    mark = gather(paths).imported
    assert (mark["from"], mark["id"], mark["trials"]["1"]["id"]) == ("Determined", 12, 101)
    assert mark["trials"]["3"]["restarts"] == 5 and mark["notes"] == "looks good"
    first = views.attempts(paths, 1)[0]
    assert (first.start, first.end) == (
        "2025-03-01T10:01:00.123456Z",
        "2025-03-01T10:20:00.123456Z",
    )


def test_no_secret_of_the_config_is_kept(cli: Cli) -> None:
    paths = imported(cli)
    whole = b"".join(path.read_bytes() for path in paths.root.rglob("*") if path.is_file())
    there = (RECORDED / "experiment.json").read_bytes()
    for secret in (b"AKIASECRET", b"TOPSECRET", b"HUNTER2", b"HUNTER3"):
        assert secret in there and secret not in whole
    assert b"example.org/mnist.tgz" in whole


def test_imported_twice_it_is_there_once_and_later_files_complete_it(cli: Cli) -> None:
    row: Any
    [row] = cli("import", "determined", RECORDED / "experiment.json", FILES[1], "-o", "json").items
    assert (row["what"], row["trials"], row["missing_trials"]) == ("imported", 1, [102, 103, 104])
    paths = find.experiment(row["id"], cli.root)
    cli("tag", row["id"], "--add", "kept")
    before = views.metrics(paths, trial=1)
    [again] = cli("import", "determined", *FILES, "-n", "-o", "json").items
    assert again["what"] == "would be imported again" and len(paths.trials()) == 1
    [again] = cli("import", "determined", *FILES, "-o", "json").items
    assert (again["id"], again["what"], again["trials"]) == (row["id"], "imported again", 4)
    [last] = cli("import", "determined", *FILES, "-o", "json").items
    assert last["what"] == "was there"
    assert "3 trials" in cli("import", "determined", FILES[0], FILES[1], code=2).err
    assert [one.name for one in cli.root.iterdir()] == [row["id"]]
    assert views.metrics(paths, trial=1) == before and "kept" in views.status(paths).labels


def test_several_at_once_make_one(cli: Cli) -> None:
    [foreign] = determined_json.read(FILES)
    several = [EndedExperiment(foreign, cli.root, ()) for _ in range(3)]
    for one in several:
        one.begin()
    paths = several[1].finish({})
    with (
        pytest.raises(Unavailable, match="another process has just imported it"),
        mock.patch.object(Path, "exists", return_value=False),  # as it looked a moment ago
    ):
        several[0].finish({})
    assert several[2].finish({}) == paths  # which replaces it
    for one in several:
        one.abandon()
    assert [path.name for path in cli.root.iterdir()] == [paths.id]
    assert len(views.status(paths).trials) == len(foreign.trials)


def test_every_reading_verb_works_on_it_and_no_other_goes_on_with_it(cli: Cli) -> None:
    id = imported(cli).id
    for verb in ("status", "show", "events", "metrics", "best", "explain", "eff", "schedule"):
        assert cli(verb, id, "-o", "json").items is not None
    assert cli("ls", "-o", "json").items[0]["why"] == "imported from Determined, experiment 12"
    for words in (("logs", id), ("report", id), ("wait", id), ("index", "update", id)):
        cli(*words)
    cli("export", id, "csv", "--to", cli.root.parent / "csv")
    assert "ERROR" in (cli.root.parent / "csv" / id / "trials.csv").read_text()
    for words in (("retry", f"{id}/3"), ("resume", id), ("fork", id)):
        assert "imported from Determined" in cli(*words, code=2).err


def test_checkpoints_are_copied_verified_and_stay(cli: Cli, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    (storage / STORED / "code").mkdir(parents=True)
    for name, data in (("state_dict.pth", b"weights"), ("empty", b""), ("code/m.py", b"x = 1\n")):
        (storage / STORED / name).write_bytes(data)
    (storage / STORED / "passwd").symlink_to("/etc/passwd")
    paths = imported(cli, "--checkpoints", storage)
    [row] = views.checkpoints(paths)
    assert (row.trial, row.step, row.state, row.metric) == (1, 234, "complete", 0.2)
    [again] = cli("import", "determined", *FILES, "--checkpoints", storage, "-o", "json").items
    assert again["what"] == "was there"
    other = json.loads(FILES[0].read_text())
    other[0]["experiment"]["notes"] = "changed"
    (tmp_path / "12.json").write_text(json.dumps(other))
    cli("import", "determined", tmp_path / "12.json", *FILES[1:])
    assert gather(paths).imported["notes"] == "changed"
    assert [one.digest for one in views.checkpoints(paths)] == [row.digest]

    from hpcdet.checkpoint.read import load

    assert load.verify(Path(row.path)).digest == row.digest
    files = load.load(Path(row.path), 0, 1).shared["state"]["files"]
    assert {name: bytes(data) for name, data in files.items()} == {
        "state_dict.pth": b"weights",
        "empty": b"",
        "code/m.py": b"x = 1\n",
    }


def test_without_trials_it_says_what_to_type(cli: Cli) -> None:
    alone = cli("import", "determined", RECORDED / "experiment.json", code=4)
    assert "for t in 101 102 103 104; do det trial describe $t --json --metrics" in alone.err
    assert "det experiment describe ID" in cli("import", "determined", FILES[1], code=4).err
    assert not list(cli.root.iterdir())


def test_another_experiment_of_that_id_is_left_alone(cli: Cli) -> None:
    paths = imported(cli)
    record = json.loads(paths.provenance.read_text())
    paths.provenance.write_text(json.dumps({**record, "imported": {"key": "other"}}))
    assert "another experiment" in cli("import", "determined", *FILES, code=2).err
    assert json.loads(paths.provenance.read_text())["imported"] == {"key": "other"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no json", "no JSON"),
        ("[]", "nothing of Determined"),
        ('{"experiment": {"id": "12"}}', "id is"),
        ('{"experiment": {"id": 12, "startTime": "soon"}}', "startTime"),
        ('{"experiment": {"id": 12, "startTime": "2025-01-01T00:00:00Z"}, "trials": [{"trial": '
         '{"id": 1, "experimentId": 12}, "workloads": [{"training": {"totalBatches": -1}}]}]}',
         "totalBatches is -1"),
        ('{"experiment": {"id": 12, "startTime": "2025-01-01T00:00:00Z"}, "trials": [{"trial": '
         '{"id": 1, "experimentId": 12}, "workloads": [{"checkpoint": {"uuid": "../x"}}]}]}',
         "called"),
        ('{"experiment": {"id": 12, "startTime": "2025-01-01T00:00:00Z"}, "trials": [{"trial": '
         '{"id": 1, "experimentId": 12}, "workloads": [{"checkpoint": {"uuid": "%s"}}]}]}'
         % ("x" * 300), "called"),
        ('{"experiment": {"id": 12}, "config": "name: x"}', "the config is no object"),
    ],
)  # fmt: skip
def test_what_determined_does_not_write_is_refused(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "12.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        determined_json.read([file])


def test_values_that_no_record_can_have_become_others(cli: Cli, tmp_path: Path) -> None:
    experiment, trial = (json.loads(FILES[n].read_text()) for n in (0, 1))
    [whole] = experiment
    whole["experiment"] |= {"name": "half \ud800", "forkedFrom": math.inf}
    whole["config"] |= {
        "description": "\udfff", "weight": math.nan, "resources": {"slots_per_trial": [8]},
    }  # fmt: skip
    trial["trial"]["hparams"] |= {"odd \ud800": math.nan}
    work = next(one for one in trial["workloads"] if one.get("training"))
    work["training"]["metrics"] |= {"batchMetrics": 5, "avgMetrics": {"epochs": 1e300}}
    for name, value in (("12.json", [whole]), ("101.json", trial)):
        (tmp_path / name).write_text(json.dumps(value))
    [row] = cli(
        "import", "determined", tmp_path / "12.json", tmp_path / "101.json", "-o", "json"
    ).items
    [shown] = cli("status", row["id"], "-o", "json").items
    assert shown["name"] == "half ?"
    assert shown["trials"][0]["hyperparameters"]["odd ?"] == "NaN"
    cli("report", row["id"], "-o", tmp_path / "page.html")


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of each value below; of lists, the first item's alone."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value[:1])
    for key, inner in pairs:
        yield (*at, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*at, key))


def test_any_value_of_another_type_is_taken_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    whole = [json.loads(path.read_text()) for path in FILES[:2]]
    for at in places(whole):
        for junk in ("x", -1.5):
            changed = copy.deepcopy(whole)
            inner = changed
            for key in at[:-1]:
                inner = inner[key]
            inner[at[-1]] = junk
            file.write_text(json.dumps(changed))
            with contextlib.suppress(ConfigError):
                determined_json.read([file])


def test_an_experiment_that_still_ran_there_is_canceled_here(cli: Cli, tmp_path: Path) -> None:
    value = json.loads((RECORDED / "experiment.json").read_text())
    value[0]["experiment"] |= {"state": "STATE_PAUSED", "endTime": None}
    (tmp_path / "12.json").write_text(json.dumps(value))
    [row] = cli("import", "determined", tmp_path / "12.json", *FILES[1:], "-o", "json").items
    status = views.status(find.experiment(row["id"], cli.root))
    assert (status.state, status.why) == (
        "CANCELED",
        "imported from Determined, experiment 12, where it was PAUSED",
    )


def test_a_number_that_is_not_finite_is_one_in_whatever_spelling() -> None:
    values = determined_json._values({"a": math.nan, "b": "Nan", "c": [math.inf], "d": {"e": 1}})
    assert values == {"a": "NaN", "b": "NaN", "c": ["Infinity"], "d": {"e": 1}}


# -- configs -----------------------------------------------------------------------------------

CONFIG = """\
name: mnist
hyperparameters:
  learning_rate: {type: log, base: 10, minval: -4, maxval: -1}
  dropout: 0.25
searcher: {name: adaptive_asha, metric: validation_loss, max_trials: 16, max_time: 937,
           time_metric: batches}
resources: {slots_per_trial: 0, shm_size: 4096}
entrypoint: model_def:MNistTrial
data: {url: x, secrets: {api-token: HUNTER2}}
debug: true
"""


def test_a_config_is_rewritten_with_our_keys_and_means_the_same(cli: Cli, tmp_path: Path) -> None:
    theirs, ours = tmp_path / "adaptive.yaml", tmp_path / "experiment.yaml"
    theirs.write_text(CONFIG)
    text = cli("import", "determined-config", theirs).out
    assert cli("import", "determined-config", theirs, "--to", ours).out.strip() == str(ours)
    assert ours.read_text() == text and "HUNTER2" not in text and "max_time" not in text
    assert "# resources.shm_size: has no effect" in text
    assert "# data.secrets.api-token: set API_TOKEN where you submit" in text

    from hpcdet.config.load.load_config import load

    before, after = load(theirs).resolved(), load(ours).resolved()
    for one in (before, after):
        del one["reproducibility"], one["data"]
    assert {**before, "debug": False} == after
    assert "exists" in cli("import", "determined-config", theirs, "--to", ours, code=2).err


def test_a_config_that_would_change_the_result_is_refused(cli: Cli, tmp_path: Path) -> None:
    theirs = tmp_path / "old.yaml"
    theirs.write_text(CONFIG.replace("adaptive_asha", "adaptive_simple"))
    assert "searcher.name" in cli("import", "determined-config", theirs, code=4).err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["export"], ["import", "determined"], ["import", "determined-config"]):
        assert main.run([*verb, "--help"]) == 0
        assert "Example" in capsys.readouterr().out
