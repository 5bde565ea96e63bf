"""Code written for Determined runs after its import lines were changed (``tests/ported``)."""

from __future__ import annotations

import dataclasses
import math
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcdet import checkpoint, core, pytorch
from hpcdet import determined as det
from hpcdet.errors import ConfigError, NotFound, UsageError
from hpcdet.read.views import timeline
from hpcdet.store.config.sections.searcher_keys import Searcher
from hpcdet.units import Length, Units
from tests import TESTS, alone, ranks
from tests.alone import as_script

__all__ = ["as_script"]

CODE = TESTS / "ported"
HPARAMS = {"learning_rate": 1.0, "n_filters1": 4, "dropout1": 0.25, "increment_by": 3}
LAUNCH = "python3 -m determined.launch.torch_distributed python3"

pytestmark = [pytest.mark.usefixtures("as_script"), pytest.mark.xdist_group("ported")]


def experiment(tmp_path: Path, entrypoint: str, size: int, metric: str, **changes: Any) -> Any:
    return ranks.experiment(
        tmp_path / "EXP",
        code=CODE,
        hparams=HPARAMS,
        ranks=size,
        entrypoint=entrypoint,
        searcher={"metric": metric},
        **changes,
    )


def told_to_leave_at_once_then_finished(trial: Any, size: int) -> list[dict[str, Any]]:
    """The journals' lines of both attempts."""
    first = ranks.run(trial, size, HPCDET_DEADLINE="1000")
    verdict = first.verdict()
    assert verdict is not None and verdict.verdict == "resume", first.log()
    second = ranks.run(trial, size)
    verdict = second.verdict()
    assert verdict is not None and verdict.verdict == "done", second.log()
    [start] = [line for line in second.lines() if line["kind"] == "start"]
    assert start["checkpoint"], "it went on"
    return first.lines() + second.lines()


def metrics(lines: list[dict[str, Any]], group: str) -> dict[int, dict[str, Any]]:
    return {
        line["step"]: line["metrics"]
        for line in lines
        if line["kind"] == "metrics" and line["group"] == group
    }


@pytest.mark.parametrize(("entrypoint", "size"), [("python3", 1), (LAUNCH, 2)])
def test_the_tutorials_trial(tmp_path: Path, entrypoint: str, size: int) -> None:
    trial = experiment(tmp_path, f"{entrypoint} train.py --epochs 2", size, "validation_loss")
    lines = told_to_leave_at_once_then_finished(trial, size)
    validations = metrics(lines, "validation")
    assert sorted(validations) == [8, 16, 20]
    assert validations[20]["accuracy"] > 0.2
    assert checkpoint.committed(trial.checkpoints)[-1].step == 20


def test_the_tutorials_trial_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(CODE)
    monkeypatch.syspath_prepend(str(CODE))
    monkeypatch.setattr(sys, "argv", ["train.py", "--batches", "3"])
    for name in ("data", "model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    runpy.run_path(str(CODE / "train.py"), run_name="__main__")
    for name in ("data", "model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert "validation after 3 batches" in capsys.readouterr().out


def test_the_core_apis_tutorial(tmp_path: Path) -> None:
    script = "core_checkpoints.py"
    trial = experiment(tmp_path / "1", f"python3 {script}", 1, "x")
    lines = told_to_leave_at_once_then_finished(trial, 1)
    assert metrics(lines, "validation") == {
        step: {"x": 3 * step, "batches": step} for step in (10, 20, 30, 40)
    }
    trial = experiment(tmp_path / "2", f"{LAUNCH} {script} --distributed", 2, "x")
    lines = told_to_leave_at_once_then_finished(trial, 2)
    assert metrics(lines, "validation")[40] == {"x": 240, "batches": 40}
    told = [text for line in lines if (text := timeline._journal_text(line))]
    assert told.count("debug: end of main: x is 240") == 1


def test_the_core_apis_tutorial_in_pytorch(tmp_path: Path) -> None:
    trial = experiment(tmp_path, f"{LAUNCH} core_pytorch.py", 2, "test_loss")
    lines = told_to_leave_at_once_then_finished(trial, 2)
    assert [one["epochs"] for one in metrics(lines, "validation").values()] == [1, 2, 3]
    validations = [line for line in lines if line["kind"] == "metrics"]
    assert [line["units"]["epochs"] for line in validations] == [1, 2, 3], "rungs may be in epochs"


def test_the_rest_of_the_trials_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CODE))
    import everything  # type: ignore[import-not-found]

    def train(batches: int) -> Any:
        return alone.train(
            everything.EverythingTrial,
            tmp_path,
            batches,
            {"global_batch_size": 4},
            aggregation=2,
            validation_period=pytorch.Epoch(1),
            reporting_period=pytorch.Batch(2),
        )

    train(6)
    trial = train(8)
    calls = trial.counter.calls
    names = ("startup", "start", "epoch_start", "epoch_end", "workload_end", "validation_start")
    assert [calls[name] for name in names] == [1, 2, 2, 2, 4, 3]
    assert trial.counter.loaded and trial.counter.uuid == "00000008.g2"
    assert trial.starts == [] and trial.ends == [7] and trial.old.epochs == 0
    [folder] = trial.old.folders
    assert folder.endswith(trial.counter.uuid)
    found = trial.counter.metrics[-1]
    assert found["label_sum"] == found["many"] == 16
    assert found["least"] == found["most"] and found["late"] == 4
    assert len(list(trial.context.get_tensorboard_path().glob("*.pt.trace.json"))) == 2
    # averaged: 0.2 * (1 - w) per step, halved after the first epoch; summed: twice as much
    assert float(trial.a.weight.detach()) == pytest.approx(1 - 0.8**2 * 0.9**2)
    assert float(trial.b.weight.detach()) == pytest.approx(1 - 0.6**4)


def test_a_loader_for_a_loop_of_the_trials_own() -> None:
    data = pytorch.DataLoader(list(range(10)), batch_size=2, shuffle=True)
    loaders = [data.get_data_loader(num_replicas=2, rank=rank) for rank in range(2)]
    assert [len(loader) for loader in loaders] == [3, 2]

    def passed() -> list[int]:
        return [one for loader in loaders for batch in loader for one in batch.tolist()]

    first, second = passed(), passed()
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second, "a new order at each pass"
    endless = iter(data.get_data_loader(repeat=True, skip=4))
    assert len([next(endless) for _ in range(7)]) == 7


def test_what_cannot_work_is_said(tmp_path: Path) -> None:
    assert det.get_cluster_info() is None
    exp_conf = {"data": {"url": "x"}}
    with pytorch.init(
        hparams={"a": 1}, exp_conf=exp_conf, checkpoint_storage=str(tmp_path / "1")
    ) as context:
        assert context.get_experiment_config() == exp_conf
        assert context.get_data_config() == {"url": "x"}
        assert context.get_tensorboard_path().is_dir()
        model = context.wrap_model(torch.nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with pytest.raises(UsageError, match="was not wrapped"):
            context.wrap_lr_scheduler(torch.optim.lr_scheduler.StepLR(optimizer, 1))
        context.wrap_optimizer(optimizer)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        with pytest.raises(UsageError, match="needs a metric"):
            context.wrap_lr_scheduler(plateau)
        with pytest.raises(ConfigError, match="apex is not supported"):
            context.configure_apex_amp(model, optimizer)
        with pytest.raises(TypeError, match="one of LRScheduler"):
            pytorch.LRScheduler(plateau, "every epoch")  # type: ignore[arg-type]
        trial: Any = None
        with pytest.raises(ConfigError, match="'other' is no checkpoint of this trial"):
            pytorch.Trainer(trial, context).fit(latest_checkpoint="other")
    with pytest.raises(UsageError, match="cannot be kept by 2 ranks"):
        core._preempt.check(core.PreemptMode.ChiefOnly, 2)


def test_the_rest_of_the_core_api(tmp_path: Path) -> None:
    given = core.DistributedContext.from_torch_distributed()
    with pytest.raises(UsageError, match="not met yet"):
        given.allgather(1)
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "a").write_text("a")
    (source / "b").write_text("b")
    node = {"local_rank": 0, "local_size": 1, "cross_rank": 0, "cross_size": 1}
    with pytest.raises(UsageError, match="gives rank 0 of 2, and this process is rank 0 of 1"):
        core.DistributedContext(rank=0, size=2, chief_ip="here", **node)  # type: ignore[arg-type]
    given = core.DistributedContext(rank=0, size=1, **node)  # type: ignore[arg-type]
    with core.init(checkpoint_storage=tmp_path / "run", distributed=given) as context:
        assert given.allgather(1) == [1] and given.broadcast_local() is None
        keeper = context.checkpoint
        name = keeper.upload(source, {"steps_completed": 1}, selector=lambda path: path != "b")
        keeper.download(name, tmp_path / "all", core.DownloadMode.NoSharedDownload)
        assert [path.name for path in (tmp_path / "all").rglob("*")] == ["deep", "a"]
        with keeper.restore_path(name, selector=lambda _: False) as path:
            assert list(path.iterdir()) == []
        keeper.delete(name)
        with pytest.raises(NotFound):
            keeper.load(name)
        assert context.train.set_metadata({"dataset": "v2"}) == {"dataset": "v2"}
        assert context.train.get_metadata() == {"dataset": "v2"}
        assert context.train.get_tensorboard_path().is_dir()
        context.train.upload_tensorboard_files()
        assert list(context.searcher.operations(core.SearcherMode.ChiefOnly)) == []
        assert context.searcher.get_configured_units() is None
        context.searcher.acknowledge_out_of_ops()


def test_a_loop_says_how_many_epochs_it_has_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a metric, as ``time_metric: epochs`` has it, or as older code ends its operations."""
    asked = Searcher("asha", max_length=Length("epochs", 8), max_trials=4, divisor=4, num_rungs=2)
    told: list[tuple[int, int]] = []

    def report(_group: str, units: Units, _metrics: object) -> None:
        told.append((units.batches, units.epochs))

    with core.init(checkpoint_storage=tmp_path) as context:
        session, train = context.session, context.train
        session.config = dataclasses.replace(session.config, searcher=asked)
        session.length.rungs = asked.rungs
        monkeypatch.setattr(session, "report", report)
        train.report_validation_metrics(10, {"loss": 1.0, "epochs": torch.tensor(1.0)})
        train.report_training_metrics(15, {"epochs": math.nan, "records": np.ones(2)})
        for operation in context.searcher.operations():
            train.report_validation_metrics(10 * operation.length, {"loss": 0.5})
            operation.report_completed(0.5)
            operation.report_completed(0.5)
    assert told == [(10, 1), (15, 1), (20, 1), (20, 2)]


def test_a_rung_that_was_left_before_its_validation_comes_again(tmp_path: Path) -> None:
    """A loop that looks whether to leave after each step, and validates after the last of them."""
    asked = Searcher("asha", max_length=Length("batches", 90), max_trials=9, divisor=3, num_rungs=3)

    def left(validate: bool, step: int) -> list[int]:
        """The operations of an attempt, which then leaves with the state of a step."""
        with core.init(checkpoint_storage=tmp_path) as context:
            session = context.session
            session.config = dataclasses.replace(session.config, searcher=asked)
            session.length.rungs = asked.rungs
            context.checkpoint.latest()
            if validate:
                context.train.report_validation_metrics(step, {"validation_loss": 1.0})
            found = [operation.length for operation in context.searcher.operations()]
            context.checkpoint.save({}, step)
            return found

    assert left(False, 10) == [10, 30]
    assert left(False, 10) == [10, 30]  # owed
    assert left(True, 10) == [10, 30]  # still, by the checkpoint: all ranks see the same
    assert left(False, 20) == [30]
    assert left(False, 31) == [30]
    assert left(True, 31) == [30]  # owed, not exactly there
    assert left(False, 40) == []
