"""What follows from a line in the log of a trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcdet.config import api as config
from hpcdet.control.leader import retry_rules
from hpcdet.errors import ConfigError
from hpcdet.store.config.sections.log_policies import LogPolicy
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import End, WorkerEnd
from hpcdet.worker.attempts import matched_log_policies
from tests import experiments as x
from tests.local.test_experiments import Lab

OOM = LogPolicy(".*CUDA out of memory.*", "cancel_retries", "CUDA OOM")
ECC = LogPolicy(r"uncorrectable ECC error on \w+", "exclude_node")
LABEL = LogPolicy("^epoch 1", name="first")


def test_a_policy_fits_by_a_line_of_any_rank(tmp_path: Path) -> None:
    attempt = ExperimentPaths(tmp_path).trial(1).attempt(1)
    attempt.logs.mkdir(parents=True)
    attempt.log(0).write_bytes(b"epoch 12\n\xff torn\n")
    attempt.log(1).write_text("start\nRuntimeError: CUDA out of memory. Tried\n")
    assert matched_log_policies.fitting([ECC, OOM, LABEL], attempt) == [OOM, LABEL]
    attempt.launcher_log.write_text("uncorrectable ECC error on gpu3\n")
    assert matched_log_policies.fitting([ECC, OOM], attempt) == [ECC, OOM]
    assert matched_log_policies.fitting([], attempt) == []
    nothing = ExperimentPaths(tmp_path).trial(2).attempt(1)
    assert matched_log_policies.fitting([ECC], nothing) == []


@pytest.mark.parametrize(("reason", "again"), [("user_error", False), ("preempted", True)])
def test_a_failure_with_it_is_final_and_a_preemption_is_none(reason: Any, again: bool) -> None:
    end = End(reason, error="boom", policies=["CUDA OOM"], final=True, progressed=True)
    judged = retry_rules.judge([end], None, max_restarts=5)
    assert judged.again is again
    assert again or judged.why == "log policy CUDA OOM: boom"


def test_determineds_shapes_and_patterns_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    head = "entrypoint: m:T\nsearcher: {name: single, metric: a, max_length: {batches: 1}}\n"
    policies = "[{name: a, pattern: x, action: {type: exclude_node}}, {pattern: y, action: null}]"
    file.write_text(f"{head}log_policies: {policies}\n")
    found = config.load(file).config.log_policies
    assert found == [LogPolicy("x", "exclude_node", "a"), LogPolicy("y")]
    file.write_text(f"{head}log_policies: [{{pattern: '(x'}}]\n")
    with pytest.raises(ConfigError, match="no regular expression") as caught:
        config.load(file)
    assert "log_policies.0.pattern" in str(caught.value)
    file.write_text(f"{head}log_policies: [{{pattern: x, action: reboot}}]\n")
    with pytest.raises(ConfigError, match="log_policies"):
        config.load(file)


def test_a_trial_is_not_tried_again_and_its_worker_leaves_the_node(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    values = x.config(100, data={"every": 10, "crash": {"1": [5, 9]}}, max_restarts=3)
    values["log_policies"] = [
        {"name": "crashes", "pattern": "crash of trial", "action": "cancel_retries"},
        {"name": "node", "pattern": "RuntimeError", "action": "exclude_node"},
        {"name": "never", "pattern": "nobody says so", "action": "cancel_retries"},
    ]
    paths = lab.submit(values)
    assert x.run_to_end(paths).state == "ERROR"
    [attempt] = paths.trial(1).attempts()
    end = End.read(attempt.end)
    assert end is not None and (end.reason, end.policies) == ("user_error", ["crashes", "node"])
    assert end.final and end.excludes
    [worker] = paths.workers()
    left = WorkerEnd.read(worker.end)
    assert left is not None and left.why == "bad_node", "its nodes are left out from now on"
