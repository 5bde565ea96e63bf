"""The Core API: alone in this process, and in attempts of an experiment."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcdet import checkpoint, core
from hpcdet import determined as det
from hpcdet.errors import ConfigError, IntegrityError, NotFound, UsageError
from hpcdet.process import entrypoint as entrypoints
from hpcdet.process import signals
from hpcdet.train.checkpoints.checkpointer import Keeper
from tests import ranks
from tests.alone import as_script

__all__ = ["as_script"]


def run_alone(storage: Path, until: int, leave_at: int = -1) -> list[float]:
    """Draws a number a step; goes on from what it saved."""
    signals.forget()
    with core.init(hparams={"a": 1}, checkpoint_storage=storage, seed=3) as context:
        state = context.checkpoint.latest() or {"step": 0, "drawn": []}
        drawn, step = list(state["drawn"]), state["step"]
        while step < context.searcher.length(until):
            drawn.append(float(torch.rand(1)) + float(np.random.rand()))
            step += 1
            context.train.report_training_metrics(step, {"drawn": drawn[-1]})
            if step == leave_at:
                signal.raise_signal(signal.SIGTERM)
            if context.preempt.should_preempt():
                break
        context.checkpoint.save({"step": step, "drawn": drawn}, step)
    return drawn


@pytest.mark.usefixtures("as_script")
def test_a_script_alone_goes_on_where_it_was_told_to_leave(tmp_path: Path) -> None:
    assert run_alone(tmp_path / "a", 6, leave_at=4) == run_alone(tmp_path / "b", 6)[:4]
    assert run_alone(tmp_path / "a", 6) == run_alone(tmp_path / "c", 6)


@pytest.mark.usefixtures("as_script")
def test_determineds_folders_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with core.init(checkpoint_storage=tmp_path) as context:
        said = {"steps_completed": 3, "by": "me", "loss": np.float32(np.nan)}
        with context.checkpoint.store_path(said) as (path, name):
            (path / "deep").mkdir()
            (path / "deep" / "model.bin").write_bytes(bytes(range(256)))
            (path / "empty").touch()
        with context.checkpoint.restore_path(name) as path:
            assert (path / "deep" / "model.bin").read_bytes() == bytes(range(256))
            assert (path / "empty").read_bytes() == b""
        assert context.checkpoint.get_metadata(name) == {**said, "loss": "NaN"}
        with pytest.raises(NotFound, match="no such checkpoint"):
            context.checkpoint.load("00000009.g1")
        with pytest.raises(UsageError, match="steps_completed is missing"):
            context.checkpoint.store_path().__enter__()
        # as a loop does that saves at each interval, and again at its end
        assert context.checkpoint.save({}, 3) == context.checkpoint.save({}, 3, wait=False) == name
        with pytest.raises(UsageError, match="would be older"):
            context.checkpoint.save({}, 2)
        assert context.checkpoint.latest_id() == name
        trial = context.session.place.trial
        shutil.copytree(trial.checkpoints, tmp_path / "kept")
        places = property(lambda _: (trial.checkpoints, tmp_path / "kept"))
        monkeypatch.setattr(Keeper, "places", places)
        context.checkpoint.delete(name)
        with pytest.raises(NotFound):
            context.checkpoint.load(name)


@pytest.mark.usefixtures("as_script")
@pytest.mark.parametrize("name", ["../../escaped", "a/../../escaped", "/escaped"])
def test_a_forged_folder_writes_nothing_outside_of_it(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "deep" / "target"
    forged = {"files": {"sound": b"x", str(tmp_path / name) if name[0] == "/" else name: b"x"}}
    with core.init(checkpoint_storage=tmp_path / "run") as context:
        made = context.checkpoint.save(forged, 1)
        with pytest.raises(IntegrityError, match="outside its folder"):
            context.checkpoint.download(made, outside)
    assert not outside.exists() and not list(tmp_path.rglob("escaped"))


@pytest.mark.usefixtures("as_script")
def test_a_step_that_is_validated_after_it_was_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with core.init(checkpoint_storage=tmp_path) as context:
        context.train.report_validation_metrics(1, {"loss": 1.0})
        context.checkpoint.save({}, 1)
        assert "saved before" not in capsys.readouterr().err
        context.checkpoint.save({}, 2)
        context.train.report_validation_metrics(2, {"loss": 1.0})
    assert "step 2 was saved before it was validated" in capsys.readouterr().err


@pytest.mark.usefixtures("as_script")
@pytest.mark.parametrize("group", ["training", "validation", "mine"])
def test_nobody_reports_what_governance_measures(tmp_path: Path, group: str) -> None:
    with core.init(checkpoint_storage=tmp_path) as context:
        context.train.report_metrics(group, 1, {"governed": 1.0})
        with pytest.raises(ConfigError, match="no code may report one") as refused:
            context.train.report_metrics(group, 2, {"loss": 1.0, "gov.coverage": 1.0})
        assert refused.value.where == "metric gov.coverage"
        assert refused.value.hint.endswith("own_coverage")
        assert context.train.units.batches == 1  # nothing of it counts


@pytest.mark.usefixtures("as_script")
def test_contexts_alone(tmp_path: Path) -> None:
    assert det.get_cluster_info() is None
    with core.init(checkpoint_storage=tmp_path) as context:
        ranks_of = context.distributed
        assert (ranks_of.rank, ranks_of.size, ranks_of.is_chief) == (0, 1, True)
        assert ranks_of.allgather(5) == ranks_of.allgather_local(5) == [5]
        assert ranks_of.broadcast("x") == "x"
        assert list(context.searcher.operations()) == []
        with pytest.raises(core.InvalidHP):
            context.train.report_early_exit(core.EarlyExitReason.INVALID_HP)
    assert det.pytorch.Batch(3) == det.pytorch.Batch(3)


SETTINGS: dict[str, Any] = {
    "entrypoint": "python3 train.py",
    "hparams": {"learning_rate": 0.003, "hidden": 16, "global_batch_size": 64},
    "until": 400,  # long enough not to be over before the test has looked
    "checkpoint_every_s": 0.2,
}


@pytest.mark.xdist_group("core")
def test_a_loop_of_ones_own_keeps_its_bits(tmp_path: Path) -> None:
    """The example's script as entrypoint: told to leave, and killed, against undisturbed."""
    once = ranks.experiment(tmp_path / "1", ranks=2, **SETTINGS)
    ranks.run(once, 2)
    trial = ranks.experiment(tmp_path / "2", ranks=2, **SETTINGS)
    with ranks.start(trial, 2) as attempt:
        attempt.wait_for(lambda: any(line["kind"] == "first_step" for line in attempt.lines()))
        attempt.signal(signal.SIGUSR2, 1)
        attempt.wait()
    verdict = attempt.verdict()
    assert verdict is not None, attempt.log()
    assert (verdict.verdict, verdict.cause) == ("resume", "signal")
    with ranks.start(trial, 2) as attempt:
        attempt.wait_for(lambda: any(line["kind"] == "first_step" for line in attempt.lines()))
        attempt.signal(signal.SIGKILL)
    ranks.finish(trial, 2)
    assert ranks.result(trial) == ranks.result(once)


def test_the_example_saves_each_step_once(tmp_path: Path) -> None:
    """Also where a checkpoint by time falls due at the last step."""
    settings = {**SETTINGS, "until": 3, "checkpoint_every_s": 0}
    attempt = ranks.run(ranks.experiment(tmp_path / "EXP", **settings))
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    steps = [line["step"] for line in attempt.lines() if line["kind"] == "checkpoint"]
    assert steps == [1, 2, 3]


SCRIPT = """
import sys
import hpcdet.determined as det
from hpcdet import checkpoint, core

info = det.get_cluster_info()
assert info.trial.hparams == {"a": 1} and info.trial.trial_seed == 7 and info.task_type == "TRIAL"
with core.init() as context:
    assert sys.argv[1:] == ["--flag"]
    assert context.data == info.user_data == {"n": 1, "secrets": {"t": "hush"}}
    assert "hush" not in str(info.trial.config)
    for op in context.searcher.operations():
        context.train.report_validation_metrics(op.length, {"validation_loss": 0.5})
        context.profiler.on()
        assert not context.preempt.should_preempt()
"""


@pytest.mark.parametrize(
    "entrypoint",
    [
        "python3 script.py --flag",
        ["python3", "script.py", "--flag"],
        "python3 -m script --flag",
        "python3 -m determined.launch.torch_distributed -- python3 script.py --flag",
        'X=1 exec "$PY" script.py --flag',
    ],
)
def test_commands_as_entrypoints(tmp_path: Path, entrypoint: Any) -> None:
    trial = ranks.experiment(
        tmp_path / "EXP",
        code="",
        hparams={"a": 1},
        entrypoint=entrypoint,
        until=5,
        data={"n": 1, "secrets": {"t": {"stored": "t"}}},
    )
    (tmp_path / "EXP" / "secrets.json").write_text('{"t": "hush"}')
    (tmp_path / "EXP" / "code" / "script.py").write_text(SCRIPT)
    attempt = ranks.run(trial, PY=sys.executable)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    metrics = [line for line in attempt.lines() if line["kind"] == "metrics"]
    assert [(line["step"], line["metrics"]) for line in metrics] == [(5, {"validation_loss": 0.5})]


def test_a_script_that_fails_before_it_begins(tmp_path: Path) -> None:
    trial = ranks.experiment(tmp_path / "EXP", code="", entrypoint="python3 nowhere.py")
    verdict = ranks.run(trial).verdict()
    assert verdict is not None
    assert verdict.verdict == "fail" and "nowhere.py" in verdict.error


WITHOUT_WITH = """
import os, sys
from hpcdet import checkpoint, core

context = core.init()
for step in range(1, 4):
    context.train.report_training_metrics(step, {"loss": 1.0})
    if context.preempt.should_preempt():
        context.checkpoint.save({"step": step}, step)
        break
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.mark.parametrize("entrypoint", ["python3 script.py", '"$PY" script.py; exit $?'])
def test_a_script_that_never_leaves_its_context(tmp_path: Path, entrypoint: str) -> None:
    """In the rank's own process, and in one of its own: told to leave, at its end, failing."""
    trial = ranks.experiment(tmp_path / "EXP", code="", entrypoint=entrypoint, until=3)
    (tmp_path / "EXP" / "code" / "script.py").write_text(WITHOUT_WITH)
    said = []
    for more in ({"HPCDET_DEADLINE": "1000"}, {"CODE": "3"}, {}):
        attempt = ranks.run(trial, PY=sys.executable, **more)  # type: ignore[arg-type]
        verdict = attempt.verdict()
        assert verdict is not None, attempt.log()
        said.append((verdict.verdict, verdict.cause, verdict.batches))
    assert said == [("resume", "walltime", 1), ("fail", "error", 0), ("done", "completed", 3)]


def test_any_command_ends_as_its_exit_code_says(tmp_path: Path) -> None:
    said = []
    for number, entrypoint in enumerate(["exit 0", "exit 3", "kill -9 $$"]):
        attempt = ranks.run(
            ranks.experiment(tmp_path / f"{number}", code="", entrypoint=entrypoint)
        )
        verdict = attempt.verdict()
        said.append((verdict and (verdict.verdict, verdict.error), attempt.processes[0].exitcode))
    failure = ("fail", "exit code 3: sh -c 'exit 3'")
    assert said == [(("done", ""), 0), (failure, 3), (None, -9)]


INTERPRETER = """
import sys
from hpcdet import checkpoint, core
with core.init() as context:
    context.train.report_validation_metrics(1, {"prefix": sys.prefix})
"""


def test_a_script_runs_in_the_interpreter_that_was_named(tmp_path: Path) -> None:
    other = tmp_path / "other"
    venv.create(other)
    trial = ranks.experiment(
        tmp_path / "EXP", code="", entrypoint=f"{other}/bin/python script.py", until=1
    )
    (tmp_path / "EXP" / "code" / "script.py").write_text(INTERPRETER)
    verdict = ranks.run(trial).verdict()
    assert verdict is not None and verdict.verdict == "fail"
    assert f"{other}/bin/python cannot import hpcdet" in verdict.error
    [packages] = (other / "lib").glob("python*/site-packages")
    (packages / "here.pth").write_text("\n".join(path for path in sys.path if path))
    (other / "bin" / "python3.99").symlink_to(other / "bin" / "python")
    config = tmp_path / "EXP" / "experiment.yaml"
    config.write_text(config.read_text().replace(f"{other}/bin/python", "python3.99"))
    attempt = ranks.run(trial, PATH=f"{other}/bin:{os.environ['PATH']}")
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    [metrics] = [line["metrics"] for line in attempt.lines() if line["kind"] == "metrics"]
    assert metrics == {"prefix": str(other)}


def test_another_version_in_the_same_folder_is_another_interpreter(tmp_path: Path) -> None:
    here, minor = Path(sys.executable).parent, sys.version_info.minor
    ours = ["python", "python3", f"python3.{minor}", sys.executable]
    other = ["python3.7", f"{here}/python3.7", f"{tmp_path}/python3"]
    kinds = {one: entrypoints.parse([one, "train.py"], {}).kind for one in (*ours, *other)}
    assert kinds == dict.fromkeys(ours, "script") | dict.fromkeys(other, "interpreter")


BY_NAME = """
import hpcdet.determined as det

with det.core.init() as context:
    name, step = det.get_cluster_info().latest_checkpoint, 0
    if name is not None:
        with context.checkpoint.restore_path(name) as path:
            step = int((path / "step").read_text())
    while step < 4:
        step += 1
        context.train.report_training_metrics(step, {"loss": 1.0})
        if context.preempt.should_preempt():
            break
    if context.distributed.rank == 0:
        with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
            (path / "step").write_text(str(step))
"""


def test_going_on_from_a_checkpoint_by_its_name_is_no_new_beginning(tmp_path: Path) -> None:
    """As Determined's scripts do, where rank 0 alone stores."""
    trial = ranks.experiment(
        tmp_path / "EXP", code="", entrypoint="python3 script.py", until=4, ranks=2
    )
    (tmp_path / "EXP" / "code" / "script.py").write_text(BY_NAME)
    first = ranks.run(trial, 2, HPCDET_DEADLINE="1000").lines()
    second = ranks.run(trial, 2).lines()
    starts = [[one for one in lines if one["kind"] == "start"] for lines in (first, second)]
    assert [[(one["checkpoint"], one["batches"]) for one in own] for own in starts] == [
        [("", 0)],
        [("00000002.g1", 2)],
    ]
    assert [one["name"] for one in second if one["kind"] == "checkpoint"] == ["00000004.g2"]
    assert checkpoint.committed(trial.checkpoints)[-1].prev_root, "the chain goes on"


SHARDED = """
from hpcdet import core

with core.init() as context:
    rank, checkpoints = context.distributed.rank, context.checkpoint
    said = {"steps_completed": 3, "of": {"0": "a"}} if rank == 0 else {"of": {"1": "b"}}
    said["loss"] = float("nan")
    with checkpoints.store_path(said, shard=True) as (path, name):
        (path / str(rank)).write_text(f"of {rank}")
    told = {"steps_completed": 3, "of": {"0": "a", "1": "b"}, "loss": "NaN"}
    assert checkpoints.get_metadata(name) == told
    with checkpoints.restore_path(name) as path:
        assert [(path / str(one)).read_text() for one in (0, 1)] == ["of 0", "of 1"]
        mine, said = (path, {"steps_completed": 4}) if rank else (None, None)
        checkpoints.upload(mine, said, shard=True)
    if rank == 0:
        checkpoints.upload(".", {"steps_completed": 5}, selector=lambda name: False)
    assert checkpoints.save({"w": 1}, 5) == "00000005.g1"
    checkpoints.upload(None, {"steps_completed": 6, "by": rank}, shard=True)
"""


def test_ranks_store_one_folder_together(tmp_path: Path) -> None:
    trial = ranks.experiment(tmp_path / "EXP", code="", entrypoint="python3 script.py", ranks=2)
    (tmp_path / "EXP" / "code" / "script.py").write_text(SHARDED)
    attempt = ranks.run(trial, 2)
    verdict = attempt.verdict()
    assert verdict is not None and "one rank gives 0, and another 1" in verdict.error, attempt.log()
    made = {one.step: one.world for one in checkpoint.committed(trial.checkpoints)}
    assert made == {4: 2, 5: 1}, "the newest two"
