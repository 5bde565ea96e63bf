"""What ``hpcdet.determined`` has beside the APIs of its modules."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path

import pytest
import torch

import hpcdet.determined as det
from hpcdet import checkpoint
from hpcdet.determined import tensorboard
from hpcdet.determined.common import util
from hpcdet.determined.experimental import core_v2
from hpcdet.determined.launch._rank import become
from hpcdet.determined.pytorch import adapt_batch_sampler, load_trial_from_checkpoint_path
from hpcdet.determined.tensorboard.metric_writers.pytorch import TorchWriter
from hpcdet.errors import ConfigError, NotFound, UsageError
from hpcdet.process.ranks import expand
from tests import TESTS, ranks
from tests.alone import as_script

__all__ = ["as_script"]


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("login", ["login"]),
        ("gpu[1-3,07],login", ["gpu1", "gpu2", "gpu3", "gpu07", "login"]),
        ("r[1-2]n[08-09]-ib", ["r1n08-ib", "r1n09-ib", "r2n08-ib", "r2n09-ib"]),
    ],
)
def test_the_nodes_of_an_attempt_by_name(
    nodes: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert expand(nodes) == names
    one = {"RANK": "0", "WORLD_SIZE": str(2 * len(names)), "LOCAL_RANK": "0"}
    for name, value in {**one, "LOCAL_WORLD_SIZE": "2", "SLURM_STEP_NODELIST": nodes}.items():
        monkeypatch.setenv(name, value)
    trial = det.TrialInfo(1, "x", 0, {}, {})
    info = det.ClusterInfo("x", "x", "x", [0, 1], None, {}, trial)
    assert len(info.container_addrs) == len(names)
    assert info.container_slot_counts == [2] * len(names)
    monkeypatch.delenv("SLURM_STEP_NODELIST")
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    monkeypatch.delenv("PBS_NODEFILE", raising=False)
    if len(names) > 1:
        with pytest.raises(UsageError, match="does not give the names"):
            info.container_addrs  # noqa: B018


def test_code_of_a_checkpoint_beside_code_of_its_name(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "twice_named.py").write_text(f"import json\nWHICH = {name!r}\n")
    with det.import_from_path(tmp_path / "old"):
        import twice_named as old  # type: ignore[import-not-found]
    with det.import_from_path(tmp_path / "new"):
        import twice_named as new
    assert (old.WHICH, new.WHICH) == ("old", "new")
    assert not list(tmp_path.rglob("__pycache__"))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("twice_named")


def test_a_trial_from_its_checkpoint(tmp_path: Path) -> None:
    trial = ranks.experiment(tmp_path / "EXP", until=2)
    ranks.finish(trial)
    folder = trial.checkpoints / checkpoint.committed(trial.checkpoints)[-1].name
    made = load_trial_from_checkpoint_path(folder)
    assert type(made).__name__ == "DigitsTrial"
    [saved], [model] = checkpoint.load(folder).shared["models"], made.context.models
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, saved[name])
    assert made.context.get_hparam("hidden") == ranks.HPARAMS["hidden"]
    with pytest.raises(NotFound):
        load_trial_from_checkpoint_path(tmp_path / "nothing")
    (tmp_path / "EXP" / "code").chmod(0o777)
    with pytest.raises(ConfigError, match="may be changed by everybody"):
        load_trial_from_checkpoint_path(folder)
    moved = folder.rename(tmp_path / folder.name)
    with pytest.raises(UsageError, match="does not say of which class"):
        load_trial_from_checkpoint_path(moved)


@pytest.mark.usefixtures("as_script")
def test_core_v2_alone_goes_on_by_its_external_id(tmp_path: Path) -> None:
    def once() -> int:
        core_v2.init(
            config=core_v2.Config(
                name="alone",
                hparams={"a": 1},
                checkpoint_storage={"type": "shared_fs", "host_path": str(tmp_path)},
                external_experiment_id="exp/1",
                external_trial_id="trial",
            )
        )
        info = core_v2.info
        assert info.trial.hparams == {"a": 1} and info._trial_info.experiment_id == "exp/1"
        step = info.trial._steps_completed
        with core_v2.checkpoint.store_path({"steps_completed": step + 5}) as (path, _):
            (path / "state").write_text("x")
        assert str(tmp_path) in core_v2.url_reverse_webui_exp_view()
        core_v2.close()
        assert core_v2.train is None
        return step

    assert [once(), once(), once()] == [0, 5, 10]
    with pytest.raises(UsageError, match="neither config nor defaults"):
        core_v2.init()
    with pytest.raises(UsageError, match="is no folder"):
        core_v2.init(config=core_v2.Config(checkpoint_storage="s3://bucket"))


@pytest.mark.usefixtures("as_script")
def test_lightnings_logger() -> None:
    pytest.importorskip("lightning")
    from hpcdet.determined.lightning.experimental import DetLogger

    logger = DetLogger(config=core_v2.Config(name="alone"))
    logger.log_metrics({"loss": 0.5}, 3)
    assert core_v2.train.units.batches == 3
    logger.finalize("success")
    assert core_v2.train is None


def test_files_of_tensorboard(tmp_path: Path) -> None:
    manager = tensorboard.build("task", "allocation", {"type": "shared_fs"})
    manager.sync()
    (manager.base_path / "events").write_text("x")
    assert manager.list_tb_files(0) == [tensorboard.get_base_path({}) / "events"]
    if importlib.util.find_spec("tensorboard") is None:
        with pytest.raises(ConfigError, match="pip install tensorboard"):
            TorchWriter()


def test_what_a_launcher_cannot_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="there is no command"):
        become("determined.launch.torch_distributed", ["--max_restarts", "3"])
    with pytest.raises(ConfigError, match="entrypoint: model_def:MyTrial"):
        become("determined.launch.horovod", ["--", "--trial", "model_def:MyTrial"])
    monkeypatch.delenv("HPCDET_EXPERIMENT", raising=False)
    with pytest.raises(ConfigError, match="no rank of an experiment"):
        become("determined.launch.deepspeed", ["python3", "train.py"])


def test_small_things(monkeypatch: pytest.MonkeyPatch) -> None:
    base = {"a": {"b": 1, "c": 2}, "d": 3}
    merged = det.util.merge_dicts(base, {"a": {"c": 5}, "d": {"e": 1}})
    assert merged == {"a": {"b": 1, "c": 5}, "d": {"e": 1}} and base["d"] == 3
    assert det.util.json_encode({"x": torch.arange(2).numpy()}) == '{"x": [0, 1]}'
    assert list(util.chunks([1, 2, 3], 2)) == [[1, 2], [3]]
    assert util.strtobool("Yes") and not util.strtobool("off")
    config = det.ExperimentConfig({"resources": {"slots_per_trial": 4}})
    assert config.slots_per_trial() == 4 and config.scheduling_unit() == 100
    batches = adapt_batch_sampler([[0], [1], [2], [3]], skip=1, num_replicas=2, rank=1)
    assert list(batches) == [[3]]
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="one rank trains, and there are 2"):
        det.core.DistributedContext.from_tf_config()


def test_the_strategy_of_tensorflow_is_that_of_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for TensorFlow, which the development set-up leaves out."""
    module = types.ModuleType("tensorflow")
    module.distribute = types.SimpleNamespace(get_strategy=lambda: "strategy")
    monkeypatch.setitem(sys.modules, "tensorflow", module)
    assert det.core.DistributedContext.from_tf_config() == (None, "strategy")
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ConfigError, match="tensorflow cannot be imported"):
        det.core.DistributedContext.from_tf_config()


def test_it_is_tried_before_it_is_queued(tmp_path: Path) -> None:
    """One rank, which asks for a process group as several would."""
    code = TESTS / "unmodified"
    trial = ranks.experiment(tmp_path / "EXP", code=code, entrypoint="python3 loop.py")
    called = ranks.call("--test", str(trial.root.parent.parent))
    assert called.code == 0, called.output
    assert "hpcdet's face of it" in called.output
