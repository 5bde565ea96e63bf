"""A site where neither workers nor a login node may submit: spare tasks, and a sentinel.

Inside jobs an ``sbatch`` that refuses comes first on PATH, so that what goes on there goes on
without.
"""

from __future__ import annotations

from typing import Any

import pytest

from hpcdet.read.experiment import states
from hpcdet.read.experiment.gather import gather
from hpcdet.store.folder.records import Intent, Stuck, Submitted
from tests.experiments import config, until
from tests.slurm_runs import Lab, Run, hpcdet, undisturbed, urgent

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-b")]


def _forbidden(lab: Lab) -> dict[str, Any]:
    """The site; what is refused is written down in ``refused``."""
    bin = lab.folder / "bin"
    bin.mkdir(exist_ok=True)
    (bin / "sbatch").write_text(f"#!/bin/bash\necho $* >>{lab.folder}/refused\nexit 1\n")
    (bin / "sbatch").chmod(0o700)
    path = f"{bin}:{lab.cluster.environment()['PATH']}"
    nobody = {"submit_from_compute": False, "login_daemon": "forbidden", "requeue": "none"}
    return {"env": {"PATH": path}, "capabilities": nobody, "python": lab.fake}


def _field(run: Run, job: str, name: str) -> str:
    said = run.cluster.check("scontrol", "-o", "show", "job", job)
    words = dict(word.partition("=")[::2] for word in said.splitlines()[0].split())
    return words.get(name, "")


def _sentinel(run: Run) -> str:
    record = Submitted.read(run.paths.sentinel_submitted(1))
    assert record is not None and record.job, run.story()
    return record.job


def test_spare_tasks_replace_ended_ones_with_nobody_at_home(lab_b: Lab) -> None:
    values = config(
        150,
        trials=2,
        data={"every": 10},
        resources={"resource_pool": "cancel"},
        slurm={"sbatch_args": ["--exclusive"]},
    )
    run = lab_b.submit(values, pace=0.1, site=_forbidden(lab_b))
    intent = Intent.read(run.paths.intent(1))
    assert intent is not None and (intent.tasks, intent.spares, intent.throttle) == (12, 10, 2)
    assert _field(run, _sentinel(run), "Dependency").startswith(f"afterany:{run.submissions()[0]}")
    for trial in (1, 2):
        run.until_attempts(1, trial)
    with urgent(lab_b.cluster, run.claim(1).nodes):
        run.until_ended(1, 1)
        run.until_attempts(2, 1)
    assert hpcdet("set", run.paths.id, "max_concurrent=1").returncode == 0
    until(lambda: _throttle(run) == "1", run.story)
    run.faster()
    run.wait()
    assert run.reasons(1)[0] == "preempted", run.story()
    assert [run.digest(trial) for trial in (1, 2)] == [undisturbed(150, n) for n in (1, 2)]
    assert len(run.submissions()) == 1
    assert not (lab_b.folder / "refused").exists()
    live = ("PENDING", "RUNNING")
    until(lambda: not any(job["JobState"] in live for job in run.jobs()), run.story)
    assert not run.paths.stuck(1).exists()
    # no spare task has started for nothing
    assert len(list(run.paths.workers())) == 3, run.story()


def _throttle(run: Run) -> str:
    jobs = [job for job in run.tasks() if job.get("ArrayTaskThrottle")]
    return jobs[0]["ArrayTaskThrottle"] if jobs else ""


def test_when_the_spares_are_used_up_the_sentinel_tells(lab_b: Lab) -> None:
    heard = lab_b.folder / "heard"
    values = config(
        10**6,
        data={"every": 10},
        worker={"spares": 1},
        notify={"command": f'echo "$HPCDET_EVENT $HPCDET_WHY" >>{heard}', "on": ["stuck", "end"]},
    )
    run = lab_b.submit(values, pace=0.05, site=_forbidden(lab_b))
    for attempt in (1, 2):
        run.until_attempts(attempt)
        run.cluster.check("scancel", run.task())
        run.until_ended(attempt)
    until(lambda: run.paths.stuck(1).exists(), run.story)
    stuck = Stuck.read(run.paths.stuck(1))
    assert stuck is not None and stuck.next == f"hpcdet resume {run.paths.id}"
    until(heard.exists, run.story)
    health = states.health(gather(run.paths))
    assert health["health"] == "stalled" and stuck.next in health["why"]
    explained = hpcdet("explain", run.paths.id)
    assert f"next: {stuck.next}" in explained.stdout, explained
    assert "stuck" in hpcdet("events", run.paths.id, "-o", "csv").stdout
    resumed = hpcdet("resume", run.paths.id)
    assert resumed.returncode == 0, resumed
    run.until_attempts(3)
    assert states.health(gather(run.paths))["health"] == "ok"
    assert len(run.submissions()) == 2
    assert len(heard.read_text().splitlines()) == 1
    assert hpcdet("cancel", run.paths.id, "--wait").returncode == 0
