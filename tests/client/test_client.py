"""The Python client gives what the command line prints, and does what its verbs do."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcdet import client, errors
from hpcdet.client.run_verb import run
from hpcdet.read.views.items import encode
from tests.builders import Builder, sweep
from tests.commands import Cli
from tests.experiments import config, write_model


@pytest.fixture
def swept(cli: Cli) -> Builder:
    return sweep(cli.root / "digits-7f3a", ended=True)


def plain(items: Any) -> Any:
    """Items as JSON has them; what is true of a moment only is left out."""
    found = json.loads(json.dumps([encode(item) for item in items]))
    return [{key: value for key, value in item.items() if key != "age_s"} for item in found]


def printed(cli: Cli, *argv: object) -> Any:
    items = json.loads(cli(*argv, "-o", "json").out)["items"]
    return [{key: value for key, value in item.items() if key != "age_s"} for item in items]


def test_items_are_those_of_the_verbs(cli: Cli, swept: Builder) -> None:
    Builder(cli.root / "other-0001", labels=["x"], workspace="lab", project="vision").trial()
    every = client.experiments()
    assert plain(one.brief() for one in every) == printed(cli, "ls")
    one = client.get("digits")
    [status] = printed(cli, "status", "digits-7f3a")
    assert plain([one.status()])[0] | {"last_turn_s": 0} == status | {"last_turn_s": 0}
    assert plain(one.trials()) == status["trials"]
    assert plain([one.best])[0] == status["best"]
    metrics = one.metrics("val*", x="wall", trial=1)
    assert plain(metrics) == printed(
        cli, "metrics", "digits-7f3a/1", "--name", "val*", "--x", "wall"
    )
    assert plain(one.metrics(pick="best")) == printed(
        cli, "metrics", "digits-7f3a", "--best", "--x", "step"
    )
    assert plain(one.checkpoints()) == printed(cli, "ckpt", "ls", "digits-7f3a")
    assert plain(one.logs(trial=1)) == printed(cli, "logs", "digits-7f3a/1")
    with pytest.warns(client.HpcdetWarning, match="no environment"):
        rows = client.compare("digits-7f3a/1", "digits-7f3a/2")
    assert plain(rows) == printed(cli, "compare", "digits-7f3a/1", "digits-7f3a/2")
    [shown] = printed(cli, "show", "digits-7f3a")
    assert (one.config, one.provenance) == (shown["config"], shown["provenance"])
    assert one.labels == shown["labels"]


def test_usage_is_that_of_the_verb(cli: Cli, swept: Builder) -> None:
    for by in ("user,project", "state,month"):
        rows = client.usage(by.split(","), since="2026-01-01")
        assert plain(rows) == printed(cli, "usage", "--by", by, "--since", "2026-01-01")
    assert client.usage("user", since="2026-12-01") == []
    with pytest.raises(errors.UsageError, match="no such key: shoe"):
        client.usage("shoe")


def test_experiments_are_found_by_what_they_have(cli: Cli, swept: Builder) -> None:
    Builder(cli.root / "other-0001", labels=["x"], workspace="lab", project="vision").trial()

    def ids(**filters: Any) -> list[str]:
        return [one.id for one in client.experiments(**filters)]

    assert ids(state="COMPLETED") == ids(tag=["example"]) == ["digits-7f3a"]
    assert ids(project="vision") == ids(project="lab/vision") == ids(tag="x") == ["other-0001"]
    assert ids(user="nobody") == ids(since="2099-01-01") == []
    assert ids(limit=1) == ["other-0001"]
    assert client.get("other").project == "lab/vision"
    with pytest.raises(errors.NotFound):
        client.experiments(cli.root / "nowhere")
    with pytest.raises(errors.NotFound, match="no such experiment"):
        client.get("nothing")
    with pytest.raises(errors.UsageError, match="that is a trial"):
        client.get("digits-7f3a/1")


def test_a_damaged_experiment_costs_a_warning(cli: Cli, swept: Builder) -> None:
    broken = Builder(cli.root / "broken-0001")
    broken.paths.config.write_text("{")
    with pytest.warns(client.HpcdetWarning, match="broken-0001 is left out") as caught:
        assert [one.id for one in client.experiments()] == ["digits-7f3a"]
    assert caught[0].filename == __file__, "the warning is at the line that uses the client"


def test_metrics_are_arrays_and_frames(cli: Cli, swept: Builder) -> None:
    metrics = client.get("digits").metrics("validation_loss", trial=2)
    assert [row.value for row in metrics] == [0.1, "NaN"] and len(metrics[:1]) == 1
    array = metrics.numpy()
    assert array["step"].tolist() == [100, 300] and array["name"][0] == "validation_loss"
    assert array["value"][0] == 0.1 and math.isnan(array["value"][1])
    assert array["time"].dtype == np.dtype("M8[us]") and array["x"].tolist() == [100.0, 300.0]
    assert client.get("digits").metrics("nothing").numpy().shape == (0,)
    pandas = pytest.importorskip("pandas")
    frame = metrics.pandas()
    assert frame["step"].tolist() == [100, 300] and pandas.isna(frame["value"][1])
    assert str(frame["time"].dt.tz) == "UTC"


def test_handles_are_frozen_and_read_anew(cli: Cli) -> None:
    built = sweep(cli.root / "digits-7f3a", ended=False)
    one = client.get("digits-7f3a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.id = "other"
    assert one.state != "COMPLETED"
    with pytest.raises(errors.StillPending):
        one.wait(0.01)
    built.close("COMPLETED")
    assert one.state == one.wait() == "COMPLETED"


def test_verbs_change_what_the_client_reads(cli: Cli, swept: Builder) -> None:
    one = client.get("digits")
    one.tag("paper", remove=["example"])
    one.note("the baseline")
    assert one.labels == ["paper"]
    assert [note.text for note in one.notes] == ["the baseline"]
    [shown] = printed(cli, "show", "digits")
    assert shown["notes"] == plain(one.notes)
    assert "the baseline" in cli("show", "digits", "--section", "notes").out
    with pytest.raises(errors.UsageError, match="it is COMPLETED already") as caught:
        one.pause()
    assert caught.value.where == "digits-7f3a"


def test_factors_are_those_of_the_verb(cli: Cli, swept: Builder) -> None:
    one = client.get("digits")
    found = one.reproduce(trial=1, set={"hyperparameters.hidden": 7})
    assert plain(found) == printed(
        cli, "reproduce", "digits-7f3a/1", "--set", "hyperparameters.hidden=7"
    )
    [changed] = [row for row in found if row.factor == "hyperparameters"]
    assert changed.same is False and "hyperparameters.hidden" in changed.names
    with pytest.raises(errors.IntegrityError, match="no snapshot"):
        one.train_again(trial=1)


def test_an_exit_code_may_be_an_answer(cli: Cli, swept: Builder) -> None:
    words = ("diff", "digits-7f3a/1", "digits-7f3a/2", "--exit-code")
    with pytest.warns(client.HpcdetWarning, match="no environment"):
        assert [item["what"] for item in run(*words, fine=(0, 1))]
    with pytest.raises(errors.HpcdetError):
        run(*words)


def test_a_report_is_written_where_it_is_wanted(cli: Cli, swept: Builder, tmp_path: Path) -> None:
    file = client.get("digits").report(tmp_path / "report.html")
    assert file.read_text().startswith("<!DOCTYPE html>")


def test_nothing_of_torch_or_click_is_imported_and_nothing_printed(
    cli: Cli, swept: Builder
) -> None:
    program = (
        "import sys\n"
        "from hpcdet import client\n"
        "one = client.get('digits')\n"
        "one.best, one.trials(), one.metrics().numpy(), one.checkpoints(), one.config\n"
        "client.experiments(), client.models()\n"
        "assert not {'torch', 'click', 'h5py', 'pandas'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_another_users_root_is_only_read(cli: Cli, swept: Builder) -> None:
    def state() -> list[tuple[str, int]]:
        found = sorted(cli.root.rglob("*"))
        return [(str(path), path.lstat().st_mtime_ns) for path in found]

    before = state()
    one = client.experiments(cli.root)[0]
    one.status(), list(one.logs()), one.metrics(), one.checkpoints()
    for verb in (["ls"], ["hp", "digits"], ["lineage", "digits"], ["status"]):
        cli("-C", cli.root, *verb)
    cli("compare", "digits/1", "digits/2")
    cli("diff", "digits/1", "digits/2")
    assert state() == before


def test_what_is_wrong_with_a_submission_is_an_error_of_its_kind(cli: Cli, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    with pytest.raises(errors.UsageError, match="no folder"):
        client.submit({"name": "tiny"})
    with pytest.raises(errors.ConfigError, match="bogus") as caught:
        client.submit(config(), model, set={"searcher.bogus": 1}, site="local", test=False)
    assert caught.value.where and not list(cli.root.iterdir())
    with pytest.raises(errors.ConfigError):
        client.submit(tmp_path / "nothing.yaml")
