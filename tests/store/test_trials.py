"""Where a trial stands, for every row of the table in the architecture."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Claim, Control, End, Reason, Trial, Verdict
from hpcdet.store.trials.controls import in_force
from hpcdet.store.trials.standing import latest_checkpoint, reason_of, standing
from hpcdet.units import Length


@pytest.fixture
def trial(tmp_path: Path) -> TrialPaths:
    made = ExperimentPaths(tmp_path).trial(1)
    Trial(1, {}, 0).write_once(made.record)
    return made


def control(
    trial: TrialPaths, seq: int, action: str, until: int | None = None, **more: int
) -> None:
    length = Length("batches", until) if until else None
    Control(action, length, **more).write_once(trial.control(seq))  # type: ignore[arg-type]


def attempt(trial: TrialPaths, number: int, reason: Reason | None, progressed: bool = True) -> None:
    one = trial.attempt(number)
    Claim("0001-0000.0", "n1").write_once(one.claim)
    if reason:
        End(reason, progressed=progressed).write_once(one.end)


def test_a_trial_without_record_may_not_be_claimed(tmp_path: Path) -> None:
    trial = ExperimentPaths(tmp_path).trial(1)
    control(trial, 1, "run")
    assert standing(trial).state == "paused"


def test_a_new_trial_is_runnable_and_then_runs_whatever_its_control(trial: TrialPaths) -> None:
    assert (standing(trial).state, standing(trial).next_attempt) == ("runnable", 1)
    (trial.attempt(1).root / "logs").mkdir(parents=True)  # made, but not claimed
    assert standing(trial).next_attempt == 1
    attempt(trial, 1, None)
    control(trial, 1, "kill")
    found = standing(trial)
    assert (found.state, found.open_attempt, found.next_attempt) == ("running", 1, 2)


@pytest.mark.parametrize(
    ("action", "state"),
    [("pause", "paused"), ("stop", "stopped"), ("kill", "stopped"), ("fail", "failed")],
)
def test_a_control_closes_a_trial_that_is_not_open(
    trial: TrialPaths, action: str, state: str
) -> None:
    attempt(trial, 1, "preempted")
    control(trial, 1, action)
    assert standing(trial).state == state


def test_done_until_more_is_asked_for(trial: TrialPaths) -> None:
    control(trial, 1, "run", 100)
    attempt(trial, 1, "completed")
    reached = Verdict("done", "completed", 100, Length("batches", 100))
    reached.write_once(trial.attempt(1).verdict)
    assert (standing(trial).state, standing(trial).batches) == ("done", 100)
    control(trial, 2, "pause")
    assert standing(trial).state == "done"
    control(trial, 3, "run", 300)
    assert standing(trial).state == "runnable"
    attempt(trial, 2, "preempted")
    assert standing(trial).state == "runnable"


def test_an_end_without_a_target_reached_is_an_end_for_good(trial: TrialPaths) -> None:
    control(trial, 1, "run", 100)
    attempt(trial, 1, "completed")
    Verdict("done", "completed", 7).write_once(trial.attempt(1).verdict)
    assert standing(trial).state == "done"


@pytest.mark.parametrize("reason", ["user_error", "oom"])
def test_a_failure_of_the_code_waits_for_a_judgement(trial: TrialPaths, reason: Reason) -> None:
    control(trial, 1, "run")
    attempt(trial, 1, reason)
    assert standing(trial).state == "doubtful"
    control(trial, 2, "run", attempts=2)
    assert (standing(trial).state, standing(trial).failures) == ("runnable", 1)
    attempt(trial, 2, reason)
    assert standing(trial).state == "doubtful"


def test_three_ends_without_progress_wait_for_a_judgement(trial: TrialPaths) -> None:
    reasons: list[Reason] = ["lost", "preempted", "launch_failed"]
    for number, reason in enumerate(reasons, 1):
        assert standing(trial).state == "runnable"
        attempt(trial, number, reason, progressed=False)
    assert (standing(trial).state, standing(trial).idle_ends) == ("doubtful", 3)
    control(trial, 1, "run", attempts=4)
    attempt(trial, 4, "walltime")
    assert (standing(trial).state, standing(trial).idle_ends) == ("runnable", 0)


def test_a_control_of_a_fenced_holder_behind_a_newer_one_is_void(trial: TrialPaths) -> None:
    control(trial, 1, "run", 100, term=1)
    control(trial, 2, "pause", term=3)
    control(trial, 3, "stop", term=2)
    found = in_force(trial)
    assert found is not None
    assert (found.action, found.until) == ("pause", Length("batches", 100))


def test_the_latest_checkpoint_is_a_committed_one(trial: TrialPaths) -> None:
    assert latest_checkpoint(trial) == ""
    for name in ("00000100.g1", "00000200.g2", "00000200.g1", "00000300.g2"):
        (trial.checkpoints / name).mkdir(parents=True)
    for name in ("00000100.g1", "00000200.g2", "00000200.g1"):
        (trial.checkpoints / name / "MANIFEST.json").write_text("{}")
    (trial.checkpoints / ".bad-00000900.g1").mkdir()
    assert latest_checkpoint(trial) == "00000200.g2"
    assert standing(trial).batches == 200


@pytest.mark.parametrize(
    ("verdict", "cause", "reason"),
    [
        ("done", "completed", "completed"),
        ("done", "stopped", "stopped"),
        ("resume", "signal", "preempted"),
        ("resume", "walltime", "walltime"),
        ("resume", "paused", "paused"),
        ("fail", "error", "user_error"),
        ("norestart", "error", "user_error"),
    ],
)
def test_what_an_attempt_says_of_its_end(verdict: str, cause: str, reason: str) -> None:
    assert reason_of(Verdict(verdict, cause)) == reason  # type: ignore[arg-type]
