"""Workers that are killed with nobody following: the batch script sees to it that others go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.leader import lost_workers
from hpcdet.site_files import load_site
from hpcdet.store.decisions import chain
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import (
    Claim,
    Closed,
    End,
    Final,
    Intent,
    Submitted,
    WorkerClaim,
    WorkerEnd,
)
from hpcdet.store.fs import files, journal
from hpcdet.worker import handover, sentinel
from tests import experiments as x
from tests.local.test_experiments import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with x.local_jobs(tmp_path / "state"):
        yield Lab(tmp_path)


def submit(lab: Lab, requeue: str, **data: object) -> ExperimentPaths:
    site = lab.site(capabilities={"requeue": requeue}, lease_ttl_s=1)
    return lab.submit(x.config(60, data={"step_s": 0.05, **data}), site)


def kill(paths: ExperimentPaths, attempt: int) -> None:
    """SIGKILL the worker of this attempt once it trains."""

    def trains() -> bool:
        lines = journal.read(paths.trial(1).attempt(attempt).journal)
        return any(line["kind"] == "first_step" for line in lines)

    x.until(trains, lambda: x.story(paths))
    claim = Claim.read(paths.trial(1).attempt(attempt).claim)
    assert claim is not None
    worker = WorkerClaim.read(paths.root / "workers" / claim.worker / "claim.json")
    assert worker is not None
    os.kill(worker.pid, signal.SIGKILL)


def test_a_lone_trial_goes_on_where_its_task_may_not_come_back(lab: Lab) -> None:
    paths = submit(lab, "none")
    kill(paths, 1)
    assert x.run_to_end(paths).state == "COMPLETED", x.story(paths)
    assert x.ends(paths, 1) == ["lost", "completed"]
    assert x.final_digest(paths, 1) == lab.undisturbed(60)
    assert len(paths.submissions()) == 2


@pytest.mark.parametrize("requeue", ["none", "user"])
def test_workers_that_die_again_and_again_pause_the_experiment(lab: Lab, requeue: str) -> None:
    """Three more times, and then a person is asked, whoever brings the task back."""
    paths = submit(lab, requeue, every=1000)
    for attempt in range(1, 5):
        kill(paths, attempt)

    def paused() -> bool:
        lines = [line for line in chain.read(paths) if line["kind"] == "state"]
        return bool(lines) and lines[-1]["state"] == "PAUSED"

    x.until(paused, lambda: x.story(paths))
    [*_, last] = [line for line in chain.read(paths) if line["kind"] == "state"]
    assert "workers died 4 times in a row before a trial got any further" in last["why"]
    assert last["by"] == "scheduler"
    assert len(paths.submissions()) == (4 if requeue == "none" else 1)
    assert x.ends(paths, 1) == ["lost"] * 4


def test_a_sentinel_that_runs_though_others_live_changes_nothing(lab: Lab) -> None:
    """Slurm starts it after ``scancel``, too, and where it has forgotten the job."""
    hold = {"at": 30, "until": str(lab.folder / "go")}
    paths = submit(lab, "none", step_s=0.001, hold=hold)
    lab.wait_for_hold(paths)
    assert sentinel.watch(paths, 1) is None
    assert len(paths.submissions()) == 1 and x.ends(paths, 1) == [""]
    lab.release()
    assert x.run_to_end(paths).state == "COMPLETED", x.story(paths)
    assert sentinel.watch(paths, 1) is None
    assert not paths.stuck(1).exists()


def test_a_script_that_runs_on_after_the_end_or_another_job_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = ExperimentPaths(tmp_path / "exp")
    worker = paths.worker(1, 0, 0)
    files.write_once(paths.site, load_site.dump(x.local_site()))
    WorkerClaim("7_0", "there", 1).write_once(worker.claim)
    monkeypatch.setenv("HPCDET_JOB", "8_0")
    assert handover.hand_over(paths, worker, 137) == "the place is that of job 7_0"
    Closed("COMPLETED").write_once(paths.closed)
    monkeypatch.setenv("HPCDET_JOB", "7_0")
    assert handover.hand_over(paths, worker, 137) == "the experiment is over"
    assert not worker.end.exists() and not worker.final.exists()


def test_a_task_whose_requeue_was_refused_is_over_though_its_worker_said_that_it_returns(
    tmp_path: Path,
) -> None:
    paths = ExperimentPaths(tmp_path / "exp")
    worker, attempt = paths.worker(1, 0, 0), paths.trial(1).attempt(1)
    Intent(1, "exp-1", "tag", tasks=1, throttle=1, term=1).write_once(paths.intent(1))
    Submitted("7").write_once(paths.submitted(1))
    WorkerClaim("7_0", "there", 1).write_once(worker.claim)
    Claim(worker.name, "there").write_once(attempt.claim)
    with journal.Writer(worker.journal) as log:
        log.append("claimed", trial=1, attempt=1)
    WorkerEnd("signal", at=files.now(), returns=True).write_once(worker.end)

    class Silent:
        answered_at = 0.0

        def query(self, jobs: object) -> dict[str, Any]:
            return {}

    site = x.local_site(capabilities={"requeue": "user"})
    looks = lost_workers.Watch(paths, site, Silent(), lambda: 0.0)  # type: ignore[arg-type]
    [place] = looks.look().places
    assert place.phase != "over"
    handover.bury(paths, worker, 85)
    handover.bury(paths, worker, 85)
    [place] = looks.look().places
    assert place.phase == "over"
    end, final = End.read(attempt.end), Final.read(worker.final)
    assert end is not None and end.reason == "lost"
    assert final is not None and final.code == 85
