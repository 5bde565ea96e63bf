"""The backend for Torque, told to the private Slurm through Slurm's own wrappers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hpcdet.schedulers import opening
from hpcdet.schedulers.common.base import Job, Submission, TaskState
from hpcdet.site_files.load_site import load
from hpcdet.store.fs import files
from hpcdet.testing import Conformance
from tests import torque_runs
from tests.cluster.slurm import SlurmCluster
from tests.experiments import same_bits, until
from tests.pbs_runs import sized
from tests.torque_runs import TorqueLab

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]


@pytest.fixture
def lab(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TorqueLab]:
    """A folder for experiments through the wrappers."""
    if reason := torque_runs.why_not():
        pytest.skip(reason)
    made = TorqueLab(slurm, tmp_path, monkeypatch)
    with torque_runs.variables_of_pbs(slurm):
        yield made
        made.end()


@pytest.mark.timeout(1800)  # two stories
def test_the_same_story_is_told_on_it(lab: TorqueLab, tmp_path: Path) -> None:
    here = tmp_path / "here.yaml"
    values = {"name": "here", "extends": "local", "limits": {"poll_min_s": 0.2}}
    files.replace(here, yaml.safe_dump(values).encode())
    local = {"HPCDET_LOCAL_STATE": str(tmp_path / "state")}
    expected = Conformance(str(here), tmp_path / "here", local).tell()
    told = Conformance(lab.site().source, lab.folder / "story").tell()
    assert told["search"] == expected["search"]
    assert told["control"] == expected["control"]


def test_a_deleted_trial_goes_on_in_a_new_job_with_the_same_bits(lab: TorqueLab) -> None:
    """A foreign ``qdel``: TERM, and KILL after the grace."""
    calm = lab.run(sized(2, 1))
    calm.wait()
    run = lab.run(sized(2, 1), pace=0.2)
    run.until_batches(7)
    lab.cluster.check("qdel", run.task())
    run.until_attempts(2)
    run.faster()
    run.wait()
    assert run.reasons()[-1] == "completed" and len(run.submissions()) >= 2, run.story()
    same_bits(run.digest(), calm.digest(), run.story())


def test_spare_jobs_go_on_where_nodes_may_not_submit(lab: TorqueLab) -> None:
    """Nobody is at home: the job behind the deleted one takes its trial."""
    nobody = {"submit_from_compute": False}
    run = lab.run(sized(1, 1, worker={"spares": 2, "idle_s": 5}), pace=0.2, capabilities=nobody)
    jobs = run.submissions()
    assert len(jobs) == 3
    run.until_batches(7)
    lab.cluster.check("qdel", run.task())
    run.until_attempts(2)
    assert run.task() == jobs[1]
    run.faster()
    run.wait()
    assert run.reasons()[-1] == "completed" and run.submissions() == jobs, run.story()


def test_a_submission_that_died_is_found_by_its_name(lab: TorqueLab) -> None:
    """Wrappers show neither variables nor the ends of jobs."""
    scheduler = opening.open_scheduler(lab.site())
    script = lab.folder / "script.sh"
    script.write_text("#!/bin/bash\n#PBS -N exp-1\n#PBS -v HPCDET_TAG=t\n#PBS -h\nsleep 600\n")
    job = scheduler.submit(Submission("exp-1", "t", script, 1, 1))
    assert scheduler.find("exp-1", "t") == job
    assert scheduler.find("exp-2", "t") is None

    def state() -> TaskState:
        return scheduler.query([Job(job, 1)])[job][0].state

    assert state() is TaskState.PENDING
    scheduler.hold(job, False)
    until(lambda: state() is TaskState.RUNNING, lambda: str(state()), 120)
    shown = [row for row in lab.cluster.jobs() if row["JobId"] == job]
    assert [row["Requeue"] for row in shown] == ["0"], "its server runs it again"
    assert not list(lab.folder.glob("*.o*")), "its output fell into the folder"
    scheduler.cancel(job)
    until(lambda: state() is TaskState.GONE, lambda: str(state()), 120)
    scheduler.cancel(job)  # once more, and it has ended


def test_the_wrappers_are_not_taken_for_torque(lab: TorqueLab) -> None:
    assert load().name == "generic-slurm"
