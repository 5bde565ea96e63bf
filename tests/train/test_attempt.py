"""Attempts as real processes: how they end, and what they say of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcdet import checkpoint
from hpcdet.store.folder.records import Best, Verdict
from hpcdet.store.fs import files
from hpcdet.units import Length
from tests import ranks

BATCH = Length("batches", 1)

LINE = """
import os, torch
from torch import nn
from hpcdet import pytorch

class LineTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.05))
        self.ids = context.wrap_reducer(lambda ids: sorted(sum(ids, [])), name="ids")

    def points(self):
        x = torch.linspace(0, 1, 22).reshape(-1, 1)
        return torch.utils.data.TensorDataset(x, 3 * x + 1, torch.arange(22))

    def build_training_data_loader(self):
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(self.points(), size, shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(self.points(), 3)

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y, ids = batch
        WHAT
        loss = ((self.model(x) - y) ** 2).mean()
        self.ids.update(ids.tolist())
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch, batch_idx):
        x, y, _ = batch
        return {"validation_loss": ((self.model(x) - y) ** 2).mean()}
"""


def line(root: Path, what: str = "pass", **settings: Any) -> Any:
    settings = {"entrypoint": "model_def:LineTrial", "until": 4} | settings
    hparams = settings.pop("hparams", {"global_batch_size": 10})
    return ranks.experiment(root, code=LINE.replace("WHAT", what), hparams=hparams, **settings)  # type: ignore[arg-type]


def verdict_of(attempt: ranks.Attempt) -> Verdict:
    verdict = attempt.verdict()
    assert verdict is not None, attempt.log()
    return verdict


def test_any_number_of_ranks_sees_every_sample_once_and_learns_the_same(tmp_path: Path) -> None:
    """22 samples in batches of 10: the last has 2, fewer than the ranks may be."""
    losses = []
    for world in (1, 2, 3, 4):
        trial = line(tmp_path / str(world), until=6, ranks=world, scheduling_unit=3)
        assert verdict_of(ranks.run(trial, world)).verdict == "done"
        result = ranks.result(trial)
        for epoch in (3, 6):
            ids = result.training[epoch]["ids"]
            # with four ranks two have nothing left of the last batch and repeat its first sample
            assert sorted(set(ids)) == list(range(22))
            assert len(ids) == (22 if world < 3 else 20 + world)
        losses.append(result.validations[6]["validation_loss"])
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-4)


def test_another_number_of_ranks_goes_on_with_the_next_sample(tmp_path: Path) -> None:
    once, changed = line(tmp_path / "1", until=6), line(tmp_path / "2", until=6, ranks=2)
    ranks.run(once)
    assert verdict_of(ranks.run(changed, 2, HPCDET_DEADLINE="1000")).verdict == "resume"
    ranks.finish(changed, 3)
    expected = ranks.result(once).validations[6]["validation_loss"]
    assert ranks.result(changed).validations[6]["validation_loss"] == pytest.approx(expected, 1e-4)


def test_code_that_cannot_be_imported_is_the_users_error(tmp_path: Path) -> None:
    trial = ranks.experiment(
        tmp_path / "EXP", code="import no_such_module\n", entrypoint="model_def:Trial"
    )
    attempt = ranks.run(trial)
    verdict = verdict_of(attempt)
    assert (verdict.verdict, verdict.cause) == ("fail", "error")
    assert verdict.error == "ModuleNotFoundError: No module named 'no_such_module'"
    assert "import no_such_module" in attempt.log()
    assert attempt.processes[0].exitcode == 1


def test_a_class_that_is_not_there_is_said(tmp_path: Path) -> None:
    trial = line(tmp_path / "EXP", entrypoint="model_def:Nobody")
    assert "no PyTorchTrial named 'Nobody'" in verdict_of(ranks.run(trial)).error


def test_the_rank_that_fails_says_so_and_the_others_blame_nobody(tmp_path: Path) -> None:
    what = "assert self.context.distributed.rank != 1 or batch_idx < 2, 'rank 1 is unwell'"
    trial = line(tmp_path / "EXP", what, ranks=2)
    attempt = ranks.run(trial, 2)
    assert verdict_of(attempt).error == "AssertionError: rank 1 is unwell"
    assert [process.exitcode for process in attempt.processes] == [75, 1]
    assert "other ranks of this trial are gone: " in attempt.log()
    # the next attempt goes on from the checkpoint of step 0
    ranks.run(trial, 2)
    assert trial.attempts()[1].journal.exists()


def test_hyperparameters_that_cannot_work_are_not_tried_again(tmp_path: Path) -> None:
    trial = line(tmp_path / "EXP", "raise pytorch.InvalidHP('too wide')")
    attempt = ranks.run(trial)
    assert verdict_of(attempt).verdict == "norestart"
    assert "too wide" in verdict_of(attempt).error
    assert attempt.processes[0].exitcode == 0


def test_a_damaged_state_is_no_reason_to_begin_anew(tmp_path: Path) -> None:
    trial = line(tmp_path / "EXP", "assert batch_idx < 1")
    ranks.run(trial)
    [saved] = [folder for folder in trial.checkpoints.iterdir() if folder.name[0] != "."]
    file = next(saved.glob("*.h5"))
    file.write_bytes(bytes(file.stat().st_size))
    for _ in range(2):  # by the attempt that finds it, and by the one after
        verdict = verdict_of(ranks.run(trial))
        assert (verdict.verdict, verdict.unrecoverable) == ("norestart", True)
        assert "none of its checkpoints can be used" in verdict.error


def test_a_searcher_metric_that_is_missing_is_said(tmp_path: Path) -> None:
    searcher = {"metric": "accuracy", "max_length": {"batches": 2}}
    attempt = ranks.run(line(tmp_path / "EXP", searcher=searcher))
    assert verdict_of(attempt).error.endswith("the validation has no metric 'accuracy'")
    assert "it has: ids, validation_loss" in attempt.log()


def test_time_that_runs_out_is_noticed_without_any_signal(tmp_path: Path) -> None:
    trial = line(tmp_path / "EXP", ranks=2)
    verdict = verdict_of(ranks.run(trial, 2, HPCDET_DEADLINE="1000"))
    assert (verdict.verdict, verdict.cause) == ("resume", "walltime")
    assert 1 <= verdict.batches <= 2
    ranks.finish(trial, 2)
    assert ranks.result(trial).batches == 4


def test_one_order_makes_one_checkpoint(tmp_path: Path) -> None:
    """It is heard a step after it was given, and given until it is heard."""
    trial = line(tmp_path / "EXP", until=6, ranks=2, checkpoint_every_s=0)
    attempt = ranks.run(trial, 2)
    assert verdict_of(attempt).verdict == "done"
    steps = [one["step"] for one in attempt.lines() if one["kind"] == "checkpoint"]
    # one that is being written puts the next one off; the end has one in any case
    assert (steps[:2], steps[-1]) == ([0, 2], 6)
    assert all(later - earlier >= 2 for earlier, later in pairwise(steps[:-1])), steps


def test_storage_that_is_away_for_a_moment_ends_nothing(tmp_path: Path) -> None:
    reader = "hpcdet.train.attempt.control_reader"
    away = f"import {reader} as w; w.in_force = lambda _: os.stat('/away/from/here')"
    now = "self.context.core.session.coordinator.preemption._control._seconds = 0"
    attempt = ranks.run(line(tmp_path / "EXP", f"{away}; {now}"))
    assert verdict_of(attempt).verdict == "done"


@pytest.mark.parametrize(
    ("action", "expected"),
    [("pause", ("resume", "paused")), ("stop", ("done", "stopped")), ("kill", ("done", "stopped"))],
)
def test_controls_reach_a_running_trial(
    tmp_path: Path, action: str, expected: tuple[str, str]
) -> None:
    trial = line(tmp_path / "EXP", until=10**9, ranks=2)
    with ranks.start(trial, 2) as attempt:
        attempt.wait_for(lambda: any(one["kind"] == "first_step" for one in attempt.lines()))
        ranks.control(trial, action)
        attempt.wait()
    verdict = verdict_of(attempt)
    assert (verdict.verdict, verdict.cause) == expected
    assert verdict.checkpoint == f"{verdict.batches:08d}.g1"


def test_a_longer_length_goes_on_as_if_it_had_been_asked_for_at_once(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"min_validation_period": {"batches": 4}}
    once, rungs = line(tmp_path / "1", until=8, **settings), line(tmp_path / "2", **settings)
    ranks.run(once)
    ranks.control(rungs, "run", 4)
    first = verdict_of(ranks.run(rungs))
    assert first.until is not None and first.until.value == 4
    ranks.control(rungs, "run", 8)
    ranks.run(rungs)
    assert ranks.result(rungs).digest == ranks.result(once).digest


def test_a_changed_environment_is_said_and_refused_if_so_configured(tmp_path: Path) -> None:
    for policy, expected in (("warn", "done"), ("refuse", "fail")):
        trial = line(tmp_path / policy, on_env_change=policy, until=10**9)
        with ranks.start(trial) as attempt:
            attempt.wait_for(lambda one=attempt: bool(one.lines()))
            attempt.signal(signal.SIGTERM)
            attempt.wait()
        (tmp_path / policy / "code" / "extra.py").write_text("")
        ranks.control(trial, "run", 1)
        attempt = ranks.run(trial)
        assert verdict_of(attempt).verdict == expected
        assert "code: " in attempt.log()


def test_the_command_line_and_the_rehearsal(tmp_path: Path) -> None:
    """As the worker starts a rank, and as ``hpcdet test`` tries an experiment."""
    command = [sys.executable, "-m", "hpcdet.attempt"]
    trial = ranks.experiment(tmp_path / "EXP", until=2)
    assert subprocess.run([*command, "--test", str(tmp_path / "EXP")], check=False).returncode == 0
    assert not trial.checkpoints.exists()
    run = subprocess.run([*command, str(tmp_path / "EXP"), "1", "1"], check=False)
    assert run.returncode == 0
    assert ranks.result(trial).batches == 2
    assert not list((tmp_path / "EXP" / "code").rglob("*.pyc"))


def test_a_rehearsal_finds_what_would_fail(tmp_path: Path) -> None:
    line(tmp_path / "EXP", "raise RuntimeError('not today')")
    tried = ranks.call("--test", str(tmp_path / "EXP"))
    assert tried.code == 1
    assert "failed while training and saving: RuntimeError: not today" in tried.output


SLOW_VALIDATION = """    def evaluate_full_dataset(self, loader):
        import time
        end = time.monotonic() + 2
        while time.monotonic() < end:
            time.sleep(0.1)
        return {"validation_loss": 1.0}
"""

IMPATIENT = """
import datetime, torch.distributed.distributed_c10d as c10d
c10d.default_pg_timeout = datetime.timedelta(seconds=1)
"""


def test_the_others_wait_for_a_rank_as_long_as_it_lives(tmp_path: Path) -> None:
    """A validation by rank 0 alone takes longer than collectives take to time out by default."""
    code = LINE[: LINE.index("    def evaluate_batch")] + SLOW_VALIDATION
    group = "torch.distributed.group.WORLD._get_backend(torch.device('cpu'))"
    endless = f"import datetime; assert {group}.options._timeout > datetime.timedelta(days=100)"
    trial = ranks.experiment(
        tmp_path / "EXP",
        code=IMPATIENT + code.replace("WHAT", endless),
        hparams={"global_batch_size": 10},
        entrypoint="model_def:LineTrial",
        ranks=2,
        until=1,
    )
    attempt = ranks.run(trial, 2)
    assert verdict_of(attempt).verdict == "done", attempt.log()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_busy_by_itself_ends_soon_after_another_was_killed(
    tmp_path: Path, victim: int
) -> None:
    """No launcher is there to end it, and it waits in no collective that could fail."""
    busy = f"""
        import time
        from hpcdet.train.meeting import liveness
        liveness.GRACE_S = 0.1
        while batch_idx == 1:
            open(f"{tmp_path}/busy-{{self.context.distributed.rank}}", "w").close()
            time.sleep(0.05)
"""
    trial = line(tmp_path / "EXP", busy, ranks=2)
    with ranks.start(trial, 2) as attempt:
        attempt.wait_for(lambda: len(list(tmp_path.glob("busy-*"))) == 2)
        attempt.signal(signal.SIGKILL, victim)
        codes = attempt.wait()
    assert codes[1 - victim] == 75, attempt.log()
    assert "other ranks of this trial are gone" in attempt.log()
    assert attempt.verdict() is None


@pytest.mark.parametrize(("trial_of_best", "kept"), [(2, [3, 4]), (1, [1, 2, 3, 4])])
def test_best_means_the_best_of_the_experiment(
    tmp_path: Path, trial_of_best: int, kept: list[int]
) -> None:
    """As far as the holder has heard; what this trial reported itself is no obstacle."""
    falling = 'return {"validation_loss": 4.0 - self.context.core.train.units.batches}'
    code = LINE.replace("WHAT", "pass").replace("        x, y, _ = batch\n", f"        {falling}\n")
    trial = ranks.experiment(
        tmp_path / "EXP",
        code=code,
        hparams={"global_batch_size": 10},
        entrypoint="model_def:LineTrial",
        until=4,
        min_validation_period={"batches": 1},
    )
    files.replace(tmp_path / "EXP" / "best.json", Best(trial_of_best, 1.5, BATCH).encode())
    lines = ranks.run(trial).lines()
    best = [one["step"] for one in lines if one["kind"] == "checkpoint" and "best" in one["kept"]]
    assert best == kept


def test_another_number_of_ranks_has_the_waiting_gradients_and_a_new_callback(
    tmp_path: Path,
) -> None:
    """Gradients of some batches wait for others when two ranks leave; one rank goes on."""
    settings: dict[str, Any] = {
        "optimizations": {"aggregation_frequency": 4},
        "on_env_change": "warn",
    }
    once = line(tmp_path / "once", **settings)
    ranks.run(once)
    trial = line(tmp_path / "EXP", ranks=2, **settings)
    left = verdict_of(ranks.run(trial, 2, HPCDET_DEADLINE="1000"))
    assert left.verdict == "resume" and left.batches in (1, 2)
    model = tmp_path / "EXP" / "code" / "model_def.py"
    model.write_text(
        model.read_text()
        + "\n    def build_callbacks(self):\n        return {'new': pytorch.PyTorchCallback()}\n"
    )
    verdict = verdict_of(ranks.run(trial))
    assert (verdict.verdict, verdict.batches) == ("done", 4)
    ends = (once.checkpoints / "00000004.g1", trial.checkpoints / verdict.checkpoint)
    weights = [checkpoint.load(end).shared["models"][0] for end in ends]
    for name in ("weight", "bias"):
        assert torch.allclose(weights[0][name], weights[1][name], rtol=1e-5)
