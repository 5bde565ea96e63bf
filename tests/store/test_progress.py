"""What counts as progress of an attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Claim, End, Trial, Verdict
from hpcdet.store.fs import journal
from hpcdet.store.trials import progress
from hpcdet.store.trials.standing import standing
from hpcdet.worker.claims import claims


@pytest.fixture
def trial(tmp_path: Path) -> TrialPaths:
    trial = ExperimentPaths(tmp_path).trial(1)
    Trial(1, {}, 7).write_once(trial.record)
    return trial


def attempt(
    trial: TrialPaths,
    *,
    begun: int | None = None,
    saved: tuple[int, ...] = (),
    told: tuple[int, ...] = (),
) -> AttemptPaths:
    """An attempt that began from a checkpoint of a step, saved and reported at steps."""
    one = trial.attempt(len(trial.attempts()) + 1)
    Claim("0001-0000.0", "n1", nodes=["n1"]).write_once(one.claim)
    with journal.Writer(one.journal) as log:
        name = "" if begun is None else f"{begun:08d}.g1"
        log.append("start", checkpoint=name, batches=begun or 0)
        log.append("first_step")
        for step in told:
            log.append("metrics", group="training", step=step, metrics={})
        for step in saved:
            log.append("checkpoint", step=step)
    return one


def test_only_what_need_not_be_done_again_is_progress(trial: TrialPaths) -> None:
    """Training that is never saved is none, however often it is tried."""
    fresh = attempt(trial, saved=(0,), told=(90,))
    assert progress.of(fresh) == progress.Progress(first_step=True, progressed=False)
    for _ in range(2):
        assert not progress.of(attempt(trial, begun=0, told=(95,))).progressed
    assert standing(trial).state == "running"
    for one in trial.attempts():
        claims.close_lost(one, "0001-0000.1")
    end = End.read(fresh.end)
    assert end is not None and end.first_step and not end.progressed
    assert (standing(trial).state, standing(trial).idle_ends) == ("doubtful", 3)
    assert not progress.of(attempt(trial, begun=50, saved=(50,))).progressed
    claims.close_lost(attempt(trial, begun=50, saved=(60,)), "0001-0000.1")
    assert standing(trial).idle_ends == 0


def test_a_good_end_is_progress_without_any_checkpoint(trial: TrialPaths) -> None:
    one = attempt(trial, begun=10)
    Verdict("done", "completed", 10).write_once(one.verdict)
    assert progress.of(one).progressed


def test_code_that_keeps_its_state_itself_gets_on_by_reporting_later_steps(
    trial: TrialPaths,
) -> None:
    steps = [(5, 9), (5, 9), (9, 20), (1, 2)]
    assert [progress.of(attempt(trial, told=told)).progressed for told in steps] == [
        *(True, False, True, False)
    ]
