"""``determined.experimental.client``: hpcdet's client under Determined's names."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdet import errors
from hpcdet.determined.experimental import Determined, client
from tests.builders import Builder, sweep
from tests.commands import Cli


@pytest.fixture
def swept(cli: Cli) -> Builder:
    return sweep(cli.root / "digits-7f3a")


def test_experiments_trials_and_checkpoints_are_read(cli: Cli, swept: Builder) -> None:
    client.login(master="http://nowhere:8080", user="ada")
    [found] = Determined(master="nowhere").list_experiments(labels=["example"])
    assert (found.id, found.state) == ("digits-7f3a", client.ExperimentState.COMPLETED)
    assert found.wait() is client.ExperimentState.COMPLETED and found.labels == {"example"}
    assert (found.name, found.progress, found.archived) == ("digits", 1.0, False)
    first = found.await_first_trial()
    assert (first.id, first.hparams) == ("digits-7f3a/1", {"hidden": 16})
    assert [trial.state.name for trial in found.get_trials()] == ["COMPLETED", "COMPLETED", "ERROR"]
    by_best = found.list_trials(client.TrialSortBy.BEST_VALIDATION_METRIC)
    assert [trial.id[-1] for trial in by_best] == ["2", "1", "3"]
    rows = list(first.iter_metrics("validation"))
    assert [(row.steps_completed, row.metrics["accuracy"]) for row in rows] == [
        (100, 0.8),
        (300, 0.9),
    ]
    assert first.summary_metrics["validation_metrics"]["validation_loss"] == {"last": 0.25}
    assert list(first.logs(tail=1)) == ["rank 1 speaks\n"]
    newest = first.select_checkpoint(latest=True)
    assert Path(newest.uuid).name == "00000300.g2" and newest.metadata["steps_completed"] == 300
    assert newest.state is client.CheckpointState.COMPLETED
    assert client.get_checkpoint(newest.uuid) == newest
    assert [row.steps_completed for row in newest.get_metrics("validation")] == [100, 300]
    assert client.get_trial("digits-7f3a/2").get_experiment().id == found.id
    streamed = client.stream_trials_validation_metrics(["digits-7f3a/1", "digits-7f3a/2"])
    assert [row.trial_id[-1] for row in streamed] == ["1", "1", "2", "2"]


def test_what_has_no_place_here_says_so(cli: Cli, swept: Builder) -> None:
    with pytest.raises(errors.NotFound):
        client.get_experiment("17")
    with pytest.raises(errors.UsageError, match="named by its experiment"):
        client.get_trial("17")
    with pytest.raises(errors.UsageError, match="template is not known"):
        client.create_experiment({}, ".", template="t")
    with pytest.raises(errors.UsageError, match="exactly one of"):
        client.get_trial("digits-7f3a/1").select_checkpoint()
    with pytest.raises(errors.UsageError, match="searcher's metric, validation_loss"):
        client.get_experiment("digits-7f3a").top_checkpoint("accuracy")
    with pytest.raises(errors.NotFound):
        client.get_model("nothing")
    with pytest.raises(ImportError, match="there is no server that has others"):
        client.create_user  # noqa: B018
