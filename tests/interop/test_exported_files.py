"""Exports into files, made twice and read back by the programs that they are for."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from rocrate.rocrate import ROCrate
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.util import tensor_util

from hpcdet.errors import UsageError
from hpcdet.interop import tensorboard
from hpcdet.interop.formats import csv_files, json_lines, parquet, prometheus, ro_crate
from hpcdet.interop.formats.exported import ExperimentExport, epoch
from hpcdet.read.experiment.gather import gather
from hpcdet.read.usage import usage_table
from hpcdet.read.views import views
from tests.builders import Builder, sweep
from tests.interop.conftest import HOSTILE, exported, numbers, plain, structured


def contents(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def time_of(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("module", "inside"),
    [
        *((module, "digits-7f3a") for module in (csv_files, json_lines, tensorboard, ro_crate)),
        (parquet, ""),
    ],
)
def test_an_export_made_again_is_the_same(
    module: Any, inside: str, built: Builder, tmp_path: Path
) -> None:
    module.export(exported(built.paths), str(tmp_path))
    once = contents(tmp_path / inside)
    module.export(exported(built.paths), str(tmp_path))
    assert once == contents(tmp_path / inside)
    written = [path for path in tmp_path.rglob("*") if path.is_file() and "code" not in path.parts]
    assert not [path for path in written if path.stat().st_mode & 0o077]


def test_csv_has_the_metrics_units_in_its_titles_and_no_formulas(
    built: Builder, tmp_path: Path
) -> None:
    folder = csv_files.export(exported(built.paths), str(tmp_path))
    text = (folder / "metrics.csv").read_bytes()
    assert text.startswith(b"experiment,trial,attempt,group,step_batches,epochs,name,value,")
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = {"'" + HOSTILE: HOSTILE}
    told = Counter(
        (
            int(row["trial"]),
            row["group"],
            names.get(row["name"], row["name"]),
            int(row["step_batches"]),
            plain(row["value"] if row["value"] in ("NaN", "Infinity") else float(row["value"])),
            row["time_utc"],
        )
        for row in rows
        if row["value"]
    )
    assert told == numbers(built.paths)
    others = {
        (int(row["trial"]), row["name"]): row["structured"] for row in rows if not row["value"]
    }
    assert {key: json.loads(one) for key, one in others.items()} == structured(built.paths)
    cells = [
        cell for path in folder.glob("*.csv") for row in csv.reader(path.open()) for cell in row
    ]
    assert not [one for one in cells if one[:1] in ("=", "+", "@", "\t") or one[:2] == "-="]
    with (folder / "trials.csv").open(newline="") as file:
        trials = list(csv.DictReader(file))
    assert [row["hyperparameters.hidden"] for row in trials] == ["16", "32", "64", "8"]
    with (folder / "attempts.csv").open(newline="") as file:
        attempts = [
            (row["trial"], row["attempt"], row["duration_s"]) for row in csv.DictReader(file)
        ]
    assert attempts == [
        (str(one.trial), str(one.attempt), str(one.duration_s))
        for one in views.attempts(built.paths)
    ]


def test_json_lines_have_the_metrics(built: Builder, tmp_path: Path) -> None:
    folder = json_lines.export(exported(built.paths), str(tmp_path))
    lines = (folder / "metrics.jsonl").read_text().split("\n")[:-1]
    rows = [json.loads(line) for line in lines]
    told = Counter(
        (
            *(row["trial"], row["group"], row["name"], row["step_batches"]),
            *(plain(row["value"]), row["time_utc"]),
        )
        for row in rows
        if row["value"] is not None
    )
    assert told == numbers(built.paths)
    others = {(r["trial"], r["name"]): r["structured"] for r in rows if r["value"] is None}
    assert others == structured(built.paths)
    trials = [json.loads(line) for line in (folder / "trials.jsonl").open()]
    assert trials[1]["hyperparameters"] == {"hidden": 32} and trials[1]["best"] == 0.1


def test_parquet_is_one_dataset_of_all_experiments(built: Builder, tmp_path: Path) -> None:
    other = sweep(tmp_path / "a b=%2F-0c12")
    for paths in (built.paths, other.paths, built.paths):
        parquet.export(exported(paths), str(tmp_path / "data"))
    read = pyarrow.dataset.dataset(tmp_path / "data" / "metrics", partitioning="hive").to_table()
    rows = read.to_pylist()
    assert {row["experiment"] for row in rows} == {"digits-7f3a", "a b=%2F-0c12"}
    own = [row for row in rows if row["experiment"] == "digits-7f3a"]
    told = Counter(
        (
            *(row["trial"], row["group"], row["name"], row["step_batches"]),
            *(plain_number(row["value"]), time_of(row["time_utc"])),
        )
        for row in own
        if row["value"] is not None
    )
    assert told == numbers(built.paths)
    others = {(r["trial"], r["name"]): json.loads(r["structured"]) for r in own if r["structured"]}
    assert others == structured(built.paths)
    trials = pyarrow.dataset.dataset(tmp_path / "data" / "trials", partitioning="hive").to_table()
    assert json.loads(trials.to_pylist()[0]["hyperparameters"])
    assert trials.num_rows == 7


def test_tensorboard_reads_every_bit_and_structured_metrics_as_text(
    built: Builder, tmp_path: Path
) -> None:
    tensorboard.export(exported(built.paths), str(tmp_path))
    read = EventMultiplexer(tensor_size_guidance={"scalars": 0, "text": 0})
    read.AddRunsFromDirectory(str(tmp_path))
    read.Reload()
    told: Counter[tuple[Any, ...]] = Counter()
    texts = {}
    for run in read.Runs():
        trial = int(run.removeprefix("digits-7f3a/"))
        for tag in read.Runs()[run]["tensors"]:
            if tag.startswith("_hparams_"):
                continue
            group, _, name = tag.partition("/")
            for row in read.Tensors(run, tag):
                value = tensor_util.make_ndarray(row.tensor_proto).item()
                if isinstance(value, float):
                    time = time_of(datetime.fromtimestamp(row.wall_time, UTC))
                    told[(trial, group, name, row.step, plain_number(value), time)] += 1
                else:
                    texts[trial, name] = json.loads(value)
    assert told == numbers(built.paths)
    assert texts == structured(built.paths)


def plain_number(value: float) -> float | str:
    return value if value == value else "NaN"


# -- Prometheus ------------------------------------------------------------------------------


def samples(text: str) -> dict[str, float]:
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_prometheus_adds_experiments_up_and_promtool_accepts_it(
    built: Builder, tmp_path: Path
) -> None:
    other = sweep(tmp_path / "other-0c12")
    other.paths.provenance.write_text(
        '{"created_at": "2026-03-01T12:00:00Z", "user": "a\\"\\\\\\nb"}'
    )
    whole = [exported(built.paths), exported(other.paths)]
    for _ in range(2):
        file = prometheus.export(whole, str(tmp_path / "hpcdet.prom"))
    found = samples(file.read_text())
    assert found['hpcdet_trials{state="COMPLETED",user="ada"}'] == 2
    assert found['hpcdet_trials{state="STOPPED",user="ada"}'] == 1
    assert found['hpcdet_trials{state="ERROR",user="ada"}'] == 1
    assert found['hpcdet_attempts_total{reason="preempted",user="ada"}'] == 2
    assert found[r'hpcdet_experiments{state="COMPLETED",user="a\"\\\nb"}'] == 1
    [use] = usage_table.of_experiment(built.paths, ("user", "account", "partition"))
    for kind, hours in vars(use.slot_hours).items():
        name = (
            "hpcdet_slot_seconds_total"
            if kind != "allocated"
            else "hpcdet_allocated_slot_seconds_total"
        )
        label = f'kind="{kind}",' if kind != "allocated" else ""
        key = f'{name}{{account="",{label}partition="",user="ada"}}'
        assert found[key] == pytest.approx(hours * 3600), kind
    assert use.slot_hours.allocated > 0
    newest = max(epoch(one.last_heard) for one in whole[0].attempts)
    assert found['hpcdet_newest_timestamp_seconds{user="ada"}'] == newest
    assert not [name for name in found if "digits" in name or "hidden" in name]
    assert file.stat().st_mode & 0o777 == 0o644  # the collector is another user
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    said = subprocess.run(
        ["promtool", "check", "metrics"], input=file.read_bytes(), capture_output=True, check=False
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, b"", b"")


# -- RO-Crate ----------------------------------------------------------------------------------


def test_the_crate_has_an_action_for_each_attempt_and_all_files_that_it_names(
    built: Builder, tmp_path: Path
) -> None:
    folder = ro_crate.export(exported(built.paths), str(tmp_path))
    crate = ROCrate(folder)
    assert crate.version == "1.3" and crate.root_dataset["identifier"] == "digits-7f3a"
    actions = {one.id: one for one in crate.get_by_type("CreateAction")}
    attempts = {f"#attempt-{one.trial}.{one.attempt}": one for one in views.attempts(built.paths)}
    assert actions.keys() == attempts.keys()
    for name, action in actions.items():
        row = attempts[name]
        assert (action["startTime"], action["endTime"]) == (row.start, row.end)
        status = "Completed" if row.reason in ("completed", "stopped") else "Failed"
        assert str(action["actionStatus"]).endswith(f"{status}ActionStatus>") or str(
            action["actionStatus"]
        ).endswith(f"{status}ActionStatus")
    second = actions["#attempt-1.2"]
    assert "urn:hpcdet:digits-7f3a:1:00000100.g1" in [one.id for one in second["object"]]
    assert "urn:hpcdet:digits-7f3a:1:00000300.g2" in [one.id for one in second["result"]]
    best = next(one for one in second["result"] if one.id == "#best-1")
    assert (best["name"], best["value"]) == ("validation_loss", 0.25)
    inside = [one.id for one in crate.data_entities if not one.id.startswith("urn:")]
    assert all((folder / name).exists() for name in inside)
    assert (folder / "code" / "model_def.py").read_text() == "class Trial: ...\n"
    graph = json.loads((folder / "ro-crate-metadata.json").read_text())["@graph"]
    ids = [one["@id"] for one in graph]
    assert len(ids) == len(set(ids))
    named = {part["@id"] for one in graph for part in references(one)}
    assert {one for one in named if not one.startswith("http")} <= set(ids)


def references(entity: dict[str, Any]) -> list[dict[str, str]]:
    found = []
    for value in entity.values():
        for one in value if isinstance(value, list) else [value]:
            found += [one] if isinstance(one, dict) and one.keys() == {"@id"} else []
    return found


def test_a_folder_that_is_no_crate_is_left_alone(built: Builder, tmp_path: Path) -> None:
    theirs = tmp_path / "digits-7f3a" / "thesis.tex"
    theirs.parent.mkdir()
    theirs.write_text("mine")
    with pytest.raises(UsageError, match="no RO-Crate"):
        ro_crate.export(exported(built.paths), str(tmp_path))
    assert contents(tmp_path / "digits-7f3a") == {"thesis.tex": b"mine"}


def test_progress_is_told(built: Builder, tmp_path: Path) -> None:
    heard: list[float] = []
    csv_files.export(ExperimentExport(gather(built.paths), heard.append), str(tmp_path))
    assert heard == [0.0, 0.25, 0.5, 0.75]
