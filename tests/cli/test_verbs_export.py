"""The verb ``export``: formats, errors, and what it prints."""

from __future__ import annotations

import csv
import sys
import tomllib
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from hpcdet.cli.main import cli as group
from hpcdet.interop.formats.export_formats import FORMATS
from tests import TOP
from tests.builders import Builder, sweep
from tests.commands import Cli


def test_each_format_is_one_that_the_extras_and_help_name(cli: Cli) -> None:
    extras = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {one.extra for one in FORMATS.values() if one.extra} <= extras.keys()
    said = " ".join(cli("export", "--help").out.split())
    assert "Examples" in said and all(name in said for name in FORMATS)


def test_several_experiments_go_beside_each_other(cli: Cli, swept: Builder, tmp_path: Path) -> None:
    sweep(cli.root / "other-0c12")
    for _ in range(2):
        ran = cli("export", "digits", "other", "csv", "--to", tmp_path / "out", "-o", "json")
    assert [(row["id"], row["trials"], row["to"]) for row in ran.items] == [
        (name, 3, str(tmp_path / "out" / name)) for name in ("digits-7f3a", "other-0c12")
    ]
    for name in ("digits-7f3a", "other-0c12"):
        with (tmp_path / "out" / name / "trials.csv").open() as file:
            assert [row["trial"] for row in csv.DictReader(file)] == ["1", "2", "3"]


def test_prometheus_has_the_sum_of_all_that_are_named(
    cli: Cli, swept: Builder, tmp_path: Path
) -> None:
    sweep(cli.root / "other-0c12")
    file = tmp_path / "hpcdet.prom"
    cli("export", "digits", "other", "digits", "prometheus", "--to", file)
    assert 'hpcdet_experiments{state="COMPLETED",user="ada"} 2.0\n' in file.read_text()
    cli("export", "digits", "prometheus", "--to", tmp_path)  # a folder: the same name in it
    assert 'hpcdet_experiments{state="COMPLETED",user="ada"} 1.0\n' in file.read_text()


def test_what_cannot_be_exported_is_said(cli: Cli, swept: Builder, tmp_path: Path) -> None:
    assert "no such experiment" in cli("export", "nope", "csv", "--to", tmp_path, code=3).err
    assert "whole experiments" in cli("export", "digits/1", "csv", "--to", tmp_path, code=2).err
    assert "xml" in cli("export", "digits", "xml", "--to", tmp_path, code=2).err
    cli("export", "digits", "csv", code=2)
    (tmp_path / "file").write_text("mine")
    for form in ("csv", "jsonl", "parquet", "tensorboard", "wandb", "ro-crate"):
        said = cli("export", "digits", form, "--to", tmp_path / "file", code=5).err
        assert "file" in said
    assert (tmp_path / "file").read_text() == "mine"
    cli("export", "digits", "prometheus", "--to", tmp_path / "file" / "x.prom", code=5)
    for form in ("mlflow", "optuna"):
        cli("export", "digits", form, "--to", tmp_path / "none" / "x.db", code=2)


@pytest.mark.parametrize(
    ("form", "library"),
    [("mlflow", "mlflow"), ("parquet", "pyarrow"), ("wandb", "wandb"), ("optuna", "optuna")],
)
def test_a_missing_library_is_named_with_the_line_to_type(
    form: str,
    library: str,
    cli: Cli,
    swept: Builder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = [name for name in sys.modules if name.partition(".")[0] == library]
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    said = cli("export", "digits", form, "--to", tmp_path / "out", code=4).err
    assert f"pip install 'hpcdet[{FORMATS[form].extra}]'" in said and library in said
    assert not (tmp_path / "out").exists()


def test_ids_and_formats_are_completed(cli: Cli, swept: Builder) -> None:
    complete = ShellComplete(group, {}, "hpcdet", "_HPCDET_COMPLETE")
    for typed, words in (("dig", ["digits-7f3a"]), ("par", ["parquet"])):
        assert [one.value for one in complete.get_completions(["export"], typed)] == words
