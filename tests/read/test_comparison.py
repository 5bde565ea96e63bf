"""What differs between experiments, what a search shows of hyperparameters, what came from what."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from hpcdet.errors import UsageError
from hpcdet.read.comparison import differences, searched, side_by_side
from hpcdet.read.comparison.facts import collect
from hpcdet.read.comparison.side_by_side import ComparedView
from hpcdet.read.experiment.gather import gather
from hpcdet.read.lookup.ancestry import ancestry
from hpcdet.read.lookup.find import Reference
from hpcdet.read.sections import importance
from hpcdet.read.views.trials import trials
from hpcdet.store.folder import records
from hpcdet.store.fs import files
from tests.builders import Builder, at, put

PARTS = {"numpy": "2.0", "processor": "EPYC", "threads": "4", "deterministic": "false"}


def compared(found: list[Reference]) -> tuple[list[ComparedView], list[str]]:
    return side_by_side.table([collect(one) for one in dict.fromkeys(found)])


def built(
    root: Path, *, text: str, seed: str = "aa", numpy: str = "2.0", **config: Any
) -> Reference:
    """An experiment of one trial with code, data, and the environment of its attempt."""
    experiment = Builder(root, data={"paths": "notes", "lines": 7}, **config)
    (experiment.paths.code / "model_def.py").write_text(text)
    manifest = {"files": [{"name": "a.txt", "sha256": seed}, {"name": "b.txt", "sha256": "bb"}]}
    (experiment.paths.root / "data").mkdir()
    (experiment.paths.root / "data" / "1.manifest.json").write_text(json.dumps(manifest))
    record = {
        "created_at": at(0),
        "user": "ada",
        "packages": {"torch": "1"},
        "code": {"model_def.py": hashlib.sha256(text.encode()).hexdigest(), "same.py": "cc"},
        "data": [{"given": "notes", "digest": seed, "manifest": "data/1.manifest.json"}],
    }
    experiment.paths.provenance.write_bytes(files.canonical(record))
    whole = {"parts": {**PARTS, "numpy": numpy}, "threads": {"cores": 8}, "packages": {"six": "1"}}
    experiment.paths.fingerprint(f"f{numpy[0]}").parent.mkdir()
    experiment.paths.fingerprint(f"f{numpy[0]}").write_bytes(files.canonical(whole))
    attempt = experiment.trial(hidden=8, nested={"rate": 0.1}).attempt(fingerprint=f"f{numpy[0]}")
    attempt.metrics("validation", 100, validation_loss=0.5, accuracy=0.9)
    attempt.metrics("validation", 200, validation_loss=0.7, accuracy=0.8)
    attempt.end()
    experiment.close()
    return Reference(experiment.paths)


def test_each_kind_of_value_is_beside_the_other(tmp_path: Path) -> None:
    one = built(tmp_path / "digits-0001", text="a = 1\n")
    two = built(tmp_path / "digits-0002", text="a = 2\n", seed="zz", numpy="1.26", max_restarts=9)
    rows, warnings = compared([one, two])
    found = {(row.what, row.name): (*row.values.values(), row.same) for row in rows}
    assert found["metric", "validation_loss"] == (0.5, 0.5, True)
    assert found["metric", "accuracy"] == (0.9, 0.9, True), "at the best report, not the last"
    assert found["hyperparameters", "nested.rate"] == (0.1, 0.1, True)
    assert found["data", "notes"] == ("aa", "zz", False)
    assert found["data", "data.lines"] == (7, 7, True)
    assert found["code", "same.py"][-1] and not found["code", "model_def.py"][-1]
    assert found["libraries", "numpy"] == ("2.0", "1.26", False)
    assert found["libraries", "six"] == ("1", "1", True)
    assert found["config", "max_restarts"] == (None, 9, False)
    assert found["config", "torch.deterministic"] == ("false", "false", True)
    assert found["resources", "threads.cores"] == (8, 8, True)
    assert found["resources", "processor"] == ("EPYC", "EPYC", True)
    assert ("libraries", "torch") not in found and not warnings, "the attempt's own are known"
    assert set(rows[0].values) == {"digits-0001", "digits-0002"}


def test_what_no_attempt_has_recorded_is_that_of_the_submission_and_said(tmp_path: Path) -> None:
    one = built(tmp_path / "digits-0001", text="a = 1\n")
    one.paths.fingerprint("f2").unlink()
    two = built(tmp_path / "digits-0002", text="a = 1\n")
    rows, [warning] = compared([one, two])
    found = {row.name: row.values for row in rows if row.what == "libraries"}
    assert found["torch"] == {"digits-0001": "1", "digits-0002": None}
    assert warning.startswith("digits-0001: no environment of an attempt")


def test_one_is_no_comparison_and_equal_ids_are_told_apart(tmp_path: Path) -> None:
    one = built(tmp_path / "here" / "digits-0001", text="a = 1\n")
    two = built(tmp_path / "there" / "digits-0001", text="a = 1\n")
    with pytest.raises(UsageError, match="two different"):
        compared([one, one])
    rows, _ = compared([one, two])
    assert set(rows[0].values) == {str(one.paths.root), str(two.paths.root)}
    rows, _ = compared([one, Reference(one.paths, 1)])
    assert set(rows[0].values) == {"digits-0001", "digits-0001/1"}


def test_differences_name_files_and_lines(tmp_path: Path) -> None:
    one = built(tmp_path / "digits-0001", text="a = 1\nb = 2\n")
    two = built(tmp_path / "digits-0002", text="a = 1\nb = 3", seed="zz", max_restarts=9)
    rows, _ = differences.diff(one, two)
    found = {(row.what, row.key): row for row in rows}
    assert set(found) == {
        ("data", "notes/a.txt"),
        ("code", "model_def.py"),
        ("config", "max_restarts"),
    }
    data = found["data", "notes/a.txt"]
    assert (data.change, data.a, data.b, data.diff) == ("changed", "aa", "zz", None)
    assert found["config", "max_restarts"].change == "added"
    assert found["code", "model_def.py"].diff == (
        "--- digits-0001:model_def.py\n+++ digits-0002:model_def.py\n@@ -1,2 +1,2 @@\n"
        " a = 1\n-b = 2\n+b = 3\n\\ No newline at end of file\n"
    )
    rows, _ = differences.diff(two, one, ["config"])
    assert [(row.key, row.change) for row in rows] == [("max_restarts", "removed")]
    assert differences.diff(one, one) == ([], [])


def test_a_hostile_record_shows_no_file_of_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("secret\n")
    one = built(tmp_path / "digits-0001", text="a = 1\n")
    two = built(tmp_path / "digits-0002", text="a = 1\n")
    record = json.loads(files.read(one.paths.provenance))
    names = {"../../private": "dd", str(tmp_path / "private"): "ee", "model_def.py": ["x"]}
    one.paths.provenance.write_bytes(files.canonical({**record, "code": names, "data": "none"}))
    rows, _ = differences.diff(one, two)
    assert rows and all("secret" not in (row.diff or "") for row in rows)


def test_binary_code_is_said_to_be_binary(tmp_path: Path) -> None:
    one = built(tmp_path / "digits-0001", text="a = 1\n")
    two = built(tmp_path / "digits-0002", text="a = 2\n")
    (one.paths.code / "model_def.py").write_bytes(b"\xff\x00")
    assert [row.diff for row in differences.diff(one, two)[0]] == ["binary"]


SPACE = {
    "matters": {"type": "double", "minval": 0.0, "maxval": 1.0},
    "nothing": {"type": "double", "minval": 0.0, "maxval": 1.0},
    "kind": {"type": "categorical", "vals": ["x", "y"]},
    "fixed": 3,
}


def search(root: Path, trials: int, **config: Any) -> Builder:
    """A search in which one hyperparameter decides, and small is good at 0.3."""
    experiment = Builder(root, hyperparameters=SPACE, **config)
    drawn = random.Random(1)
    for _ in range(trials):
        matters, nothing = drawn.random(), drawn.random()
        trial = experiment.trial(matters=matters, nothing=nothing, kind="x", fixed=3)
        attempt = trial.attempt()
        attempt.metrics("validation", 300, validation_loss=abs(matters - 0.3))
        attempt.end()
    experiment.close()
    return experiment


def test_the_hyperparameter_that_decides_is_the_most_important(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    built = search(tmp_path / "digits-0001", 60)
    rows, warnings = searched.hyperparameters(built.paths)
    assert rows[0].name == "matters" and not warnings
    gathered = gather(built.paths)
    reported = importance.for_search(gathered, trials(gathered)).rows
    assert {row.name: (row.importance, row.method) for row in reported} == {
        row.name: (row.importance, row.method) for row in rows
    }
    first = rows[0]
    assert first.importance is not None and first.importance > 0.8
    assert first.reliable and first.n == 60 and first.method.startswith("PED-ANOVA")
    assert first.low is not None and first.high is not None
    assert 0.2 < first.low <= first.best <= first.high < 0.4
    kind = next(row for row in rows if row.name == "kind")
    assert (kind.best, kind.low, kind.high) == ("x", None, None)
    assert "fixed" not in {row.name for row in rows}


def test_few_trials_have_no_importance(tmp_path: Path) -> None:
    rows, [warning] = searched.hyperparameters(search(tmp_path / "digits-0001", 5).paths)
    assert {row.importance for row in rows} == {None} and not any(row.reliable for row in rows)
    assert {row.name: row.low is not None for row in rows}["matters"] and "needs 20" in warning


def test_trials_are_compared_at_one_rung(tmp_path: Path) -> None:
    """A trial that went on to a better value is compared by what it had at the common rung."""
    searcher = {
        "name": "async_halving",
        "metric": "validation_loss",
        "smaller_is_better": True,
        "max_length": {"batches": 900},
        "max_trials": 4,
        "num_rungs": 2,
        "divisor": 3,
    }
    experiment = Builder(tmp_path / "digits-0001", hyperparameters=SPACE, searcher=searcher)
    for value, later in ((0.4, 0.1), (0.3, None), (0.5, None)):
        trial = experiment.trial(matters=value, nothing=0.5, kind="x", fixed=3)
        attempt = trial.attempt()
        attempt.metrics("validation", 300, validation_loss=value)
        if later is not None:
            attempt.metrics("validation", 900, validation_loss=later)
        attempt.end()
    rows, _ = searched.hyperparameters(experiment.paths)
    matters = next(row for row in rows if row.name == "matters")
    assert matters.n == 3 and matters.best == 0.3


def test_ancestors_are_followed_across_experiments(tmp_path: Path) -> None:
    old = Builder(tmp_path / "digits-0001")
    old.trial()
    new = Builder(tmp_path / "digits-0002")
    new.trial()
    origin = {"checkpoint": "00000100.g1", "root": "r" * 8, "units": {"batches": 100}}

    def begins(number: int, parent: str) -> None:
        new.paths.trial(number).root.mkdir(parents=True, exist_ok=True)
        new.paths.trial(number).record.unlink(missing_ok=True)
        record = records.Trial(number, {"hidden": 1}, seed=7, parent=parent, origin=origin)
        put(new.paths.trial(number).record, record)

    begins(1, "../digits-0001/1@100 batches")
    begins(2, "1@300 batches")
    begins(3, "../digits-gone/4")
    rows = ancestry(Reference(new.paths, 2))
    assert [(row.id, row.how, row.parent, row.at) for row in rows] == [
        ("digits-0002/2", "began from", "digits-0002/1", "300 batches"),
        ("digits-0002/1", "began from", "digits-0001/1", "100 batches"),
    ]
    assert rows[0].checkpoint == "00000100.g1" and all(row.there for row in rows)
    [gone] = ancestry(Reference(new.paths, 3))
    assert (gone.parent, gone.there) == ("../digits-gone/4", False)
    new.decide("forked", experiment="digits-0001", events=24, submissions=1, longer=[])
    whole = ancestry(Reference(new.paths))
    assert ("digits-0002", "forked from", "digits-0001", "24 events") in {
        (row.id, row.how, row.parent, row.at) for row in whole
    }
    begins(1, "2@300 batches")  # a record that says both came from each other
    assert len(ancestry(Reference(new.paths, 2))) == 2
