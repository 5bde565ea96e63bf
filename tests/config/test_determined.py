"""Determined's files: accepted as they are, harmless keys named, others refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from hpcdet.config import api as config
from hpcdet.config.check import problems, search_methods
from hpcdet.config.check.section_models import model
from hpcdet.config.determined import unsupported_keys
from hpcdet.errors import ConfigError
from hpcdet.store.config import overrides
from hpcdet.store.config.sections.searcher_keys import Searcher
from hpcdet.units import Length

TUTORIAL = """\
name: mnist_pytorch_const
hyperparameters:
  learning_rate: 1.0
  global_batch_size: 64
  n_filters1:
    type: const
    val: 32
  dropout1: 0.25
records_per_epoch: 60000
searcher:
  name: single
  metric: validation_loss
  max_length:
    batches: 1000
  smaller_is_better: true
entrypoint: model_def:MNistTrial
"""

SLURM_SEARCH = """\
name: cifar10_random
description: a search on the cluster
labels: [cifar, pytorch]
workspace: Vision
project: CIFAR
data:
  url: https://example.org/cifar.tar.gz
entrypoint: python3 -m determined.launch.torch_distributed python3 train.py --epochs 5
environment:
  environment_variables:
    - NCCL_DEBUG=INFO
    - OMP_NUM_THREADS=4
  force_pull_image: true
bind_mounts:
  - {host_path: /data, container_path: /data, read_only: true}
resources:
  slots_per_trial: 8
  resource_pool: gpu
  shm_size: 4294967296
  weight: 2
  priority: 42
slurm:
  gpu_type: a100
  slots_per_node: 4
  sbatch_args: [--account=p1, "--time=04:00:00"]
hyperparameters:
  global_batch_size: 512
  learning_rate: {type: log, base: 10, minval: -4, maxval: -1}
  optimizer:
    type: categorical
    vals: [sgd, adam]
  layers:
    width: {type: int, minval: 32, maxval: 128}
searcher:
  name: random
  metric: accuracy
  smaller_is_better: false
  max_trials: 20
  max_time: 5
  time_metric: epochs
min_checkpoint_period: {epochs: 1}
min_validation_period: {epochs: 1}
checkpoint_storage:
  type: shared_fs
  host_path: /mnt/checkpoints
  storage_path: det
  propagation: rprivate
  save_experiment_best: 1
  save_trial_best: 2
  save_trial_latest: 1
profiling: {enabled: false}
tensorboard_storage: null
reproducibility: {experiment_seed: 777}
max_restarts: 2
"""

OLD_GRID = """\
description: grid
entrypoint: python3 -m determined.launch.torch_distributed --trial model_def:GridTrial
hyperparameters:
  global_batch_size: {type: categorical, vals: [32, 64]}
  lr: {type: double, minval: 0.001, maxval: 0.1, count: 3}
searcher:
  name: grid
  metric: error
  max_length: 100
min_validation_period: 50
scheduling_unit: 10
optimizations:
  {aggregation_frequency: 2, tensor_fusion_threshold: 64, auto_tune_tensor_fusion: true}
resources: {slots_per_trial: 0}
environment:
  environment_variables: {cpu: [A=1], cuda: [A=1, B=2]}
  ports: {web: 80}
internal: {native: {command: [x]}}
retention_policy: {log_retention_days: 30}
preemption_timeout: 600
integrations: {webhooks: {webhook_name: [x]}}
log_policies:
  - {name: CUDA OOM, pattern: ".*CUDA out of memory.*"}
security: {kerberos: {config_file: x}}
data_layer: {type: shared_fs}
"""


def load(tmp_path: Path, text: str, *sets: str) -> config.LoadedConfig:
    file = tmp_path / "det.yaml"
    file.write_text(text)
    return config.load(file, sets)


def test_the_tutorial_is_accepted(tmp_path: Path) -> None:
    loaded = load(tmp_path, TUTORIAL)
    [warning] = loaded.warnings
    assert "det.yaml:9: records_per_epoch: has no effect" in warning
    assert loaded.config.searcher.max_length == Length("batches", 1000)
    assert loaded.config.records_per_epoch == 60000


def test_a_search_on_slurm_keeps_its_meaning(tmp_path: Path) -> None:
    loaded = load(tmp_path, SLURM_SEARCH)
    made = loaded.config
    assert made.entrypoint == "python3 train.py --epochs 5"
    assert made.searcher.max_length == Length("epochs", 5)
    need = made.resources
    assert (need.nodes, need.slots_per_node, need.slots_per_trial) == (2, 4, 8)
    assert (need.walltime_s, made.slurm.sbatch_args) == (4 * 3600, ["--account=p1"])
    assert made.environment.environment_variables["OMP_NUM_THREADS"] == "4"
    assert sorted(warning.split(": ")[1] for warning in loaded.warnings) == sorted(
        [
            "bind_mounts",
            "checkpoint_storage.host_path",
            "checkpoint_storage.propagation",
            "checkpoint_storage.storage_path",
            "entrypoint",
            "environment.force_pull_image",
            "resources.shm_size",
            "resources.weight",
        ]
    )


def test_an_old_grid_with_everything_that_does_not_matter(tmp_path: Path) -> None:
    loaded = load(tmp_path, OLD_GRID)
    made = loaded.config
    assert (made.name, made.entrypoint) == ("det", "model_def:GridTrial")
    assert (made.searcher.max_length, made.searcher.max_trials) == (Length("batches", 100), 6)
    assert made.min_validation_period == Length("batches", 50)
    assert made.resources.slots_per_trial == 1
    assert made.environment.environment_variables == {}
    assert made.environment.cpu_variables == {"A": "1"}
    assert made.environment.cuda_variables == {"A": "1", "B": "2"}
    assert len(loaded.warnings) == 11


SAMPLES: dict[str, Any] = {
    "bind_mounts": [{"host_path": "/a", "container_path": "/b"}],
    "optimizations.mixed_precision": "O2",
    "checkpoint_storage.type": "hdfs",
    "searcher.name": "sync_halving",
    "optimizations.average_training_metrics": False,
}


@pytest.mark.parametrize("key", unsupported_keys.KEYS)
def test_every_key_of_the_table_has_its_effect(tmp_path: Path, key: str) -> None:
    """A value that the first entry is about: refused with its reason, or a warning."""
    entry = unsupported_keys.KEYS[key][0]
    assignment = f"{key}={yaml.safe_dump(SAMPLES.get(key, 'x'), default_flow_style=True)}"
    assignment = assignment.removesuffix("\n").removesuffix("\n...")
    if entry.kind == "harmless":
        [warning] = load(tmp_path, "entrypoint: x", assignment).warnings
        assert f"{key}: has no effect: {entry.reason}" in warning
    else:
        with pytest.raises(ConfigError) as caught:
            load(tmp_path, "entrypoint: x", assignment)
        assert f"{key}: {entry.reason}" in str(caught.value)
        assert caught.value.exit_code == 4
        if entry.kind == "later":
            assert "not in this version" in entry.reason


def test_no_key_is_both_ours_and_always_foreign() -> None:
    ours = set(problems.all_keys())
    assert not [
        k for k, entries in unsupported_keys.KEYS.items() if k in ours and entries[0].always
    ]
    assert set(unsupported_keys.WITHOUT_EFFECT) <= ours


ADAPTIVE = """
name: adaptive_asha
  metric: error
  max_trials: 16
  max_time: 937
  time_metric: batches
  mode: standard
  divisor: 4
  max_rungs: 5
  max_concurrent_trials: 8
  stop_once: true""".strip()


def test_an_adaptive_search_is_honoured(tmp_path: Path) -> None:
    text = TUTORIAL.replace("    batches: 1000\n", "").replace("  max_length:\n", "")
    loaded = load(tmp_path, text.replace("name: single\n  metric: validation_loss", ADAPTIVE))
    asked = loaded.config.searcher
    assert (asked.rule, asked.max_length) == ("stopping", Length("batches", 937))
    assert [(one.rungs, one.trials, one.concurrent) for one in asked.brackets] == [
        ((58, 234, 937), 12, 4),
        ((234, 937), 4, 4),
    ]
    assert [str(rung) for rung in asked.rungs] == ["58 batches", "234 batches", "937 batches"]
    table = load(
        tmp_path, "entrypoint: x", "searcher={name: hyperband, max_length: 81, divisor: 3}"
    )
    assert table.config.searcher.max_trials == 81 + 34 + 15 + 8 + 5
    own = "searcher={name: asha, max_time: 9, time_metric: seen, num_rungs: 2, max_trials: 4}"
    counted = load(tmp_path, "entrypoint: x", own).config.searcher
    unset = "searcher={name: single, max_length: 9, max_time: null, time_metric: null}"
    assert load(tmp_path, "entrypoint: x", unset).config.searcher.top == 9
    assert (counted.top, counted.max_length, counted.rungs) == (9, None, [])
    longer = overrides.lay(loaded.config, {overrides.MAX_LENGTH: {"batches": 2000}}).searcher
    assert [rung.value for rung in longer.rungs] == [58, 234, 937, 2000]
    assert longer.brackets == asked.brackets


@pytest.mark.parametrize(
    ("searcher", "said"),
    [
        ("{name: adaptive_asha, max_length: 9}", "'max_trials' is missing"),
        ("{name: asha, max_trials: 9}", "'max_length' is missing: where trials are compared"),
        ("{name: asha, max_trials: 9, time_metric: seen}", "'max_time' is missing"),
        ("{name: random, max_trials: 9, divisor: 3}", "name: random has no divisor"),
        ("{name: asha, mode: standard, stop_once: true, rule: hybrid}", "means rule: stopping"),
        ("{name: asha, max_trials: 9, max_length: 9, divisor: 1}", "greater than 1"),
        ("{name: sync_halving, max_trials: 9}", "use async_halving"),
        ("{name: random, max_trials: 9, num_rungs: 2}", r"async_halving \| asha \| pasha"),
        (
            "{name: asha, max_trials: 9, max_length: 9, rule: stopping, promotion_share: null}",
            "searcher.promotion_share: rule: stopping promotes no trial",
        ),
        (
            "{name: asha, max_trials: 9, max_length: 9, rule_version: 5, sampler: {name: tpe}, "
            "promotion_share: 1}",
            "searcher.promotion_share: with the sampler tpe, rule_version: 5 keeps its own pace",
        ),
        (
            "{name: bohb, max_length: 9, rule_version: 5, promotion_share: null}",
            "searcher.promotion_share: with",
        ),
        (
            "{name: adaptive_asha, max_trials: 9, max_length: 9, bracket_rungs: [2], max_rungs: 3}",
            "and so does max_rungs",
        ),
        ("{name: single, schedule: {seed: 3}}", "name: single has no schedule"),
        (
            "{name: schedule, max_trials: 3, schedule: {steps: [{until: 9}]}}",
            "a trial for each of the 1 steps",
        ),
        ("{name: hyperband, max_length: 9, initial: [{}, {}, {}, {}, {}, {}, {}]}", "the 6 of the"),
    ],
)
def test_searches_that_cannot_be(tmp_path: Path, searcher: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(tmp_path, "entrypoint: x", f"searcher={searcher}")


@pytest.mark.parametrize("others", ["sampler: {name: tpe}", "rule_version: 5"])
def test_a_share_is_kept_where_something_asks_for_it(tmp_path: Path, others: str) -> None:
    asked = f"{{name: asha, max_trials: 9, max_length: 9, promotion_share: 0.25, {others}}}"
    loaded = load(tmp_path, "entrypoint: x", f"searcher={asked}")
    assert loaded.config.searcher.promotion_share == 0.25


def test_of_every_key_of_a_search_it_is_known_who_takes_it() -> None:
    fields = model(Searcher).model_fields
    names = {*get_args(fields["name"].annotation)}
    assert {*search_methods.EVERY} | search_methods.TAKE.keys() == fields.keys()
    assert not {*search_methods.EVERY} & search_methods.TAKE.keys()
    assert {name for takers in search_methods.TAKE.values() for name in takers} <= names


def test_rungs_that_are_fewer_than_asked_for_are_said(tmp_path: Path) -> None:
    merged = "searcher={name: asha, max_trials: 9, max_length: 10, num_rungs: 4, divisor: 3}"
    few = "searcher={name: adaptive_asha, max_trials: 2, max_length: 27, bracket_rungs: [3, 2, 1]}"
    said = [load(tmp_path, "entrypoint: x", sets).warnings[0] for sets in (merged, few)]
    assert "searcher.num_rungs: 4 rungs of 10 divided by 3 are 3 different ones" in said[0]
    assert "bracket_rungs: 2 trials are enough for 2 of the brackets" in said[1]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("python3 -m determined.launch.torch_distributed model_def:T", "model_def:T"),
        ("python3 -m determined.exec.harness model_def:T", "model_def:T"),
        ("python3 -m determined.launch.torch_distributed -- python3 'a b.py'", "python3 'a b.py'"),
        (
            ["python3", "-m", "determined.launch.torch_distributed", "python3", "t.py"],
            ["python3", "t.py"],
        ),
        ("python3 train.py -m determined.launch", "python3 train.py -m determined.launch"),
        (["./train.sh", "a:b"], ["./train.sh", "a:b"]),
    ],
)
def test_launch_layers_go_and_what_they_start_stays(tmp_path: Path, given: Any, meant: Any) -> None:
    text = yaml.safe_dump({"entrypoint": given, "searcher": {"max_length": 3}})
    assert load(tmp_path, text).config.entrypoint == meant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "entrypoint: python3 -m determined.launch.horovod python3 t.py",
            "Horovod is not",
        ),
        ("searcher: {max_time: 3, max_length: 4}", "two lengths"),
        ("searcher: {max_time: 3, time_metric: loss}", "no unit of length"),
        ("searcher: {time_metric: epochs}", "'max_time' is missing"),
        ("searcher: {name: asha, max_trials: 9, max_time: 9}", "'time_metric' is missing"),
        ("slurm: {sbatch_args: [-t 5]}\nresources: {walltime_s: 9}", "walltime is there twice"),
    ],
)
def test_shapes_that_cannot_be_kept(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(tmp_path, text if "entrypoint" in text else f"entrypoint: x\n{text}")


def test_a_map_by_device_adds_to_what_other_layers_say(tmp_path: Path) -> None:
    text = """
entrypoint: x
searcher: {max_length: 3}
environment:
  environment_variables: {cpu: [A=1], gpu: {B: 2}}
  cuda_variables: {C: 3}
"""
    made = load(tmp_path, text, "environment.cpu_variables.D=4").config.environment
    assert made.cpu_variables == {"A": "1", "D": "4"}
    assert made.cuda_variables == {"B": "2", "C": "3"}
    plain = (
        "entrypoint: x\nsearcher: {max_length: 3}\nenvironment: {environment_variables: {cpu: 1}}"
    )
    assert load(tmp_path, plain).config.environment.environment_variables == {"cpu": "1"}


def test_an_image_has_mounts_and_both_can_be_ignored_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "det.yaml"
    file.write_text(
        "entrypoint: x\nsearcher: {max_length: 3}\nenvironment: {image: determinedai/pytorch}\n"
        "bind_mounts: [{host_path: /a, container_path: /b}]\n"
    )
    made = config.load(file).config
    assert made.environment.image == "determinedai/pytorch"
    [mount] = made.bind_mounts or []
    assert (mount.host_path, mount.container_path, mount.read_only) == ("/a", "/b", False)
    with pytest.raises(ConfigError, match="--ignore bind_mounts"):
        config.load(file, ignored=["environment.image"])
    loaded = config.load(file, ignored=config.IGNORABLE)
    assert loaded.config.environment.image is None
    said = " ".join(loaded.warnings)
    assert "environment.image: has no effect" in said and "bind_mounts: has no effect" in said
    assert set(config.IGNORABLE) == {"environment.image", "bind_mounts"}


@pytest.mark.parametrize(
    ("searcher", "hint"),
    [
        ("{max_length: 14, max_time: 937, time_metric: batches}", "Determined takes max_time"),
        ("{max_steps: 9}", "max_length: {batches: 900}: a step was 100 batches"),
        ("{name: adaptive, step_budget: 9}", "write max_trials"),
        ("{name: adaptive_simple, max_trials: 9}", "adaptive_asha: it takes the same"),
        ("{name: pbt, num_rounds: 8}", "max_length"),
        ("{name: pbt, length_per_round: 8}", "perturbation_interval"),
        ("{name: pbt, replace_function: {truncate_fraction: 0.2}}", "quantile"),
        ("{name: pbt, explore_function: {resample_probability: 0.2}}", "factors"),
    ],
)
def test_hints_lead_to_what_is_meant(tmp_path: Path, searcher: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "entrypoint: x", f"searcher={searcher}")
    assert hint in str(caught.value)


def test_what_a_config_of_determined_does_otherwise_here_is_said(tmp_path: Path) -> None:
    search = "searcher: {name: asha, max_trials: 9, max_time: 9, time_metric: batches"
    many = "resources: {slots_per_trial: 8}"
    said = " ".join(load(tmp_path, f"entrypoint: python3 t.py\n{search}}}\n{many}").warnings)
    assert "runs 8 times, once on each slot" in said
    assert "rule: stopping is Determined 0.38's" in said
    launched = "entrypoint: python3 -m determined.launch.torch_distributed python3 t.py"
    for text in (
        f"{launched}\n{search}, rule: stopping}}\n{many}",
        f"{launched}\n{search}, stop_once: false}}\n{many}",
        f"entrypoint: python3 t.py\nsearcher: {{name: asha, max_trials: 9, max_length: 9}}\n{many}",
    ):
        said = " ".join(load(tmp_path, text).warnings)
        assert "once on each slot" not in said and "rule: stopping" not in said, text
