"""One value of a config file is changed, and nothing else of what a person wrote."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from hpcdet.config import api as config
from hpcdet.errors import ConfigError, UsageError
from hpcdet.store.fs import yaml12
from tests.commands import Cli

TEXT = """\
# a study
name: digits   # short
labels:
- one
- two          # the second

searcher: {name: random, metric: loss, max_trials: 4}  # flow
empty:
hyperparameters:
  # rates
  rate: {type: log, minval: -4}

  sizes:
    - 8
    - 16
notes: |
  keep
    this
resources:
    nodes: 1
"""


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("name", "mnist", "name: digits   # short", "name: mnist   # short"),
        ("name", "a: it", "name: digits ", "name: {a: it} "),
        ("labels", "[a]", "labels:\n- one\n- two          # the", "labels: [a]          # the"),
        ("labels.1", "2nd", "- two  ", "- 2nd  "),
        ("searcher.max_trials", "8", "max_trials: 4}", "max_trials: 8}"),
        ("searcher.seed", "1e3", "max_trials: 4}", "max_trials: 4, seed: 1e3}"),
        ("empty", "true", "empty:\n", "empty: true\n"),
        ("empty.deep.er", "1", "empty:\n", "empty: {deep: {er: 1}}\n"),
        ("hyperparameters.rate.minval", "-5", "minval: -4", "minval: -5"),
        ("hyperparameters.sizes.0", "9", "    - 8\n", "    - 9\n"),
        ("hyperparameters.x", "'y'", "    - 16\n", "    - 16\n  x: 'y'\n"),
        ("notes", "none", "notes: |\n  keep\n    this\n", "notes: none\n"),
        ("notes", "a\nb", "notes: |\n  keep\n    this\n", "notes: a b\n"),
        ("resources.nodes", "2", "    nodes: 1\n", "    nodes: 2\n"),
        ("resources.walltime_s", "60", "nodes: 1\n", "nodes: 1\n    walltime_s: 60\n"),
        ("worker.idle_s", "5", "nodes: 1\n", "nodes: 1\nworker:\n  idle_s: 5\n"),
        ("resources", "null", "resources:\n    nodes: 1\n", "resources: null\n"),
    ],
)
def test_only_the_value_changes(key: str, value: str, old: str, new: str) -> None:
    assert TEXT.count(old) == 1
    assert config.assign(TEXT, key, value, "x.yaml") == TEXT.replace(old, new)


def test_odd_files_are_understood_or_left_alone() -> None:
    assert config.assign("", "a.b", "1", "x") == "a:\n  b: 1\n"
    assert config.assign("a: 1", "b", "2", "x") == "a: 1\nb: 2\n"
    assert config.assign("{}", "b", "2", "x") == "{b: 2}"
    assert config.assign("a: 1\r\nb: 2\r\n", "a", "3", "x") == "a: 3\r\nb: 2\r\n"
    assert yaml12.parse(config.assign("a: 'é'\nb: 1\n", "b", "2", "x"), "x").values["b"] == 2
    with pytest.raises(ConfigError, match="alias"):
        config.assign("a: &it {x: 1}\nb: *it\n", "b.x", "2", "x")
    for key in ("a.b", "c.7", "c.x", ""):
        with pytest.raises(UsageError):
            config.assign("a: 1\nc: [1]\n", key, "2", "x")
    with pytest.raises(UsageError, match="is not YAML"):
        config.assign("a: 1\n", "a", "[", "x")


def test_a_value_is_set_checked_and_shown_and_the_file_stays_its_owners(
    cli: Cli, tmp_path: Path
) -> None:
    cli("init", tmp_path / "new")
    file = tmp_path / "new" / "random.yaml"
    before = file.read_text()
    shown = cli("config", "set", file, "searcher.max_trials", "7", "-n", "--site", "local").out
    assert "+  max_trials: 7" in shown and "(not written)" in shown
    assert file.read_text() == before
    refused = cli("config", "set", file, "searcher.max_trail", "7", code=4).err
    assert "did you mean 'max_trials'" in refused and file.read_text() == before
    file.chmod(0o640)
    [item] = cli("config", "set", file, "searcher.max_trials", "7", "-o", "json").items
    assert (item["value"], item["dry_run"]) == (7, False)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    changed = [a for a, b in zip(file.read_text().split(), before.split(), strict=True) if a != b]
    assert changed == ["7"]
    assert cli("config", "get", file, "searcher.max_trials").out == "7\n"
    assert "has this value already" in cli("config", "set", file, "searcher.max_trials", "7").out


def test_a_config_is_read_once_and_may_be_a_pipe(cli: Cli, tmp_path: Path) -> None:
    pipe = tmp_path / "run.yaml"
    os.mkfifo(pipe, 0o600)
    writer = threading.Thread(target=pipe.write_text, args=("entrypoint: 'true'\n",), daemon=True)
    writer.start()
    assert cli("config", "get", pipe, "name", "--site", "local").out == "run\n"
    writer.join()


def test_a_profile_is_the_site_of_every_verb(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = tmp_path / "places"
    (places / "sites").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HPCDET_SITE_DIR", str(places))
    for name in ("alpha", "beta"):
        site = f"extends: local\npaths: {{root: {tmp_path / name}}}\n"
        (places / "sites" / f"{name}.yaml").write_text(site)
    cli("init", tmp_path / "new", "--minimal", "--profile", "beta")
    file = tmp_path / "new" / "single.yaml"
    assert "site: beta" in file.read_text()
    assert cli("config", "get", file, "site").out == "beta\n"
    assert cli("--profile", "alpha", "config", "get", file, "site").out == "alpha\n"
    assert cli("config", "get", file, "site", "--profile", "alpha").out == "alpha\n"
    words = ("--profile", "alpha", "--site", "beta")  # what stands nearer counts
    assert cli("config", "get", file, "site", *words).out == "beta\n"
    assert cli("site", "detect", "--profile", "alpha", "-o", "id").out == "alpha\n"
    assert "no site" in cli("doctor", "--profile", "gamma", code=1).out
    monkeypatch.delenv("HPCDET_ROOT")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hpcdet-experiments").mkdir()
    (tmp_path / "alpha").mkdir()
    assert cli("ls", "--profile", "alpha", "-v", "-o", "id").out == ""
