"""``compare diff hp lineage``, and the columns of ``ls``, as they are printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcdet.store.fs import files
from tests.builders import Builder, at
from tests.commands import Cli


def test_compare_shows_what_differs_and_says_what_it_leaves_out(cli: Cli, swept: Builder) -> None:
    record = {"created_at": at(0), "user": "ada", "packages": {"torch": "1"}}
    swept.paths.provenance.write_bytes(files.canonical(record))
    ran = cli("compare", "digits/1", "digits/2")
    lines = [line.split() for line in ran.out.splitlines()]
    assert lines[0] == ["WHAT", "NAME", "digits-7f3a/1", "digits-7f3a/2"]
    assert ["metric", "validation_loss", "0.25", "0.1"] in lines
    assert ["hyperparameters", "hidden", "16", "32"] in lines
    assert "libraries" not in ran.out and "values are the same: -o wide" in ran.err
    assert "torch" in cli("compare", "digits/1", "digits/2", "-o", "wide").out
    rows = cli("compare", "digits/1", "digits/2", "--only-different", "-o", "json").items
    assert rows and not any(row["same"] for row in rows)
    assert cli("compare", "digits/1", code=2).err.startswith("error: a comparison needs")
    cli("compare", "digits/1", "digits/77", code=3)


def test_diff_prints_patches_and_may_exit_with_1(cli: Cli, swept: Builder) -> None:
    other = Builder(cli.root / "other-0001")
    for built, text in ((swept, "a = 1\n"), (other, "a = 2\n")):
        (built.paths.code / "model_def.py").write_text(text)
        record = {"created_at": at(0), "code": {"model_def.py": text}}
        built.paths.provenance.write_bytes(files.canonical(record))
    ran = cli("diff", "digits", "other", "--what", "code", "--exit-code", code=1)
    assert ran.out.splitlines()[-2:] == ["-a = 1", "+a = 2"]
    assert cli("diff", "digits", "other").out.startswith("WHAT")
    [row] = cli("diff", "digits", "other", "--what", "code", "-o", "json").items
    assert row["change"] == "changed" and "+a = 2\n" in row["diff"]
    same = cli("diff", "digits/1", "digits/1", "--exit-code")
    assert "nothing differs" in same.err
    assert "weather is nothing" in cli("diff", "digits", "other", "--what", "weather", code=2).err


def test_hp_names_what_it_lacks(cli: Cli) -> None:
    built = Builder(
        cli.root / "digits-7f3a",
        hyperparameters={"x": {"type": "double", "minval": 0.0, "maxval": 1.0}},
    )
    for value in (0.25, 0.5):
        attempt = built.trial(x=value).attempt()
        attempt.metrics("validation", 300, validation_loss=value)
        attempt.end()
    ran = cli("hp", "digits")
    assert ran.out.splitlines()[1].split()[:6] == ["x", "-", "2", "0.25", "0.25", "0.5"]
    assert "importance needs 20" in ran.err
    assert "a whole experiment" in cli("hp", "digits/1", code=2).err


def test_a_boolean_is_printed_as_set_takes_it(cli: Cli) -> None:
    space = {"bad": {"type": "categorical", "vals": [True, False]}}
    built = Builder(cli.root / "digits-7f3a", hyperparameters=space)
    for value in (True, False):
        attempt = built.trial(bad=value).attempt()
        attempt.metrics("validation", 300, validation_loss=float(value))
        attempt.end()
    assert ["hyperparameters", "bad", "true", "false"] in [
        line.split() for line in cli("compare", "digits/1", "digits/2").out.splitlines()
    ]
    assert cli("diff", "digits/1", "digits/2").out.split()[-2:] == ["true", "false"]
    assert cli("hp", "digits").out.splitlines()[1].split()[3] == "false"


def test_lineage_has_three_forms(cli: Cli, swept: Builder) -> None:
    new = Builder(cli.root / "fork-0001", name='evil"\x1b[31m')
    new.decide("forked", experiment="digits-7f3a", events=24, submissions=1, longer=[])
    tree = cli("lineage", "fork").out
    assert tree == "fork-0001\n  forked from digits-7f3a (24 events)\n"
    dot = cli("lineage", "fork", "--format", "dot").out
    assert '"digits-7f3a" -> "fork-0001" [label="forked from 24 events"];' in dot
    assert json.loads(cli("lineage", "fork", "--format", "json").out)["items"][0]["there"]
    ran = cli("lineage", "digits/1")
    assert (ran.out, ran.err) == ("digits-7f3a/1\n", "it began from nothing\n")


def test_ls_shows_best_value_age_and_progress(cli: Cli, swept: Builder) -> None:
    going = Builder(cli.root / "going-0001", workspace="lab", project="vision", labels=[])
    attempt = going.trial(hidden=8).attempt()
    attempt.metrics("validation", 150, validation_loss=0.05)
    lines = cli("ls").out.splitlines()
    assert lines[0].split() == ["ID", "STATE", "TRIALS", "DONE", "BEST", "METRIC", "AGE", "LABELS"]
    untagged = cli("ls", "--project", "vision").out.splitlines()[0]
    assert untagged.split()[-1] == "AGE", "a column that is empty is left out"
    done = {line.split()[0]: line.split()[3:6] for line in lines[1:]}
    assert done == {"digits-7f3a": ["100", "%", "0.1"], "going-0001": ["12", "%", "0.05"]}
    assert cli("ls", "--sort", "best", "-o", "id").out.split() == ["going-0001", "digits-7f3a"]
    assert cli("ls", "--project", "vision", "-o", "id").out == "going-0001\n"
    assert cli("ls", "--project", "nothing", "-o", "id").out == ""
    [row] = cli("ls", "--project", "lab/vision", "-o", "json").items
    assert (row["best_trial"], row["progress"], row["metric"]) == (1, 0.125, "validation_loss")
    assert row["age_s"] > 0 and row["project"] == "lab/vision"


def test_the_origin_of_a_value_is_the_submission_s(cli: Cli, swept: Builder) -> None:
    origins = {"searcher.max_trials": "--set searcher.max_trials"}
    record = {"created_at": at(0), "origins": origins}
    swept.paths.provenance.write_bytes(files.canonical(record))
    lines = cli("config", "show", "digits-7f3a", "--origin").out.splitlines()
    assert "searcher.max_trials: 4    # --set searcher.max_trials" in lines
    assert "searcher.metric: validation_loss    # experiment.yaml" in lines


def test_status_says_the_seed_and_how_many_trials_are_planned(cli: Cli) -> None:
    built = Builder(cli.root / "digits-7f3a", reproducibility={"experiment_seed": 4711})
    built.trial()
    said = cli("status", "digits").out
    assert "0/1 trials ended of 4 planned" in said and "seed 4711" in said
    built.close("COMPLETED")
    assert "planned" not in cli("status", "digits").out


def test_submit_says_the_seed_and_never_cuts_an_id(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "model"
    code.mkdir(mode=0o700)
    config: dict[str, Any] = {"name": "of-a-long-name", "entrypoint": "true"}
    config["searcher"] = {"name": "single", "metric": "loss", "max_length": {"batches": 3}}
    (code / "c.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("COLUMNS", "40")
    told = cli("submit", code / "c.yaml", "--site", "local", "--no-test", "--hold")
    [status] = cli("status", "@last", "-o", "json").items
    assert f"seed {status['seed']}" in told.err
    assert status["id"] in told.out


def test_a_report_makes_no_folders(cli: Cli, swept: Builder) -> None:
    target = cli.root.parent / "nowhere" / "x.html"
    assert "no such folder" in cli("report", "digits", "-o", target, code=3).err
    assert not target.parent.exists()


def test_verbs_of_other_programs_are_answered_with_ours(cli: Cli) -> None:
    assert "Here: hpcdet show ID" in cli("describe", "x", code=2).err
    assert "Here: hpcdet hp ID" in cli("importance", "x", code=2).err
    assert "..." not in cli("ckpt", "--help").out.partition("Commands:")[2]
