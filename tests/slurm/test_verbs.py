"""What users ask with flags, as the private Slurm sees it."""

from __future__ import annotations

import pytest

from hpcdet.read.views import views
from hpcdet.store.trials.standing import checkpoints
from tests.experiments import until
from tests.slurm_runs import Lab, config, hpcdet

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]


def test_a_failed_trial_gets_more_memory_elsewhere_and_all_are_gone_at_once(lab: Lab) -> None:
    values = config(
        hyperparameters={"x": {"type": "categorical", "vals": [1, 2]}},
        searcher={"name": "grid", "max_trials": 2, "max_length": {"batches": 100_000}},
        resources={"slots_per_trial": 1, "nodes": 1, "slots_per_node": 1},
        max_restarts=0,
        data={"every": 10**9, "crash": {"1": [1, 1]}},
    )
    run = lab.submit(values, pace=0.05, site={"python": lab.fake})
    until(lambda: "user_error" in run.reasons(1), run.story, 240)
    run.until_attempts(1, trial=2)
    [bad] = run.claim(1).nodes
    asked = hpcdet("retry", run.paths.id, "--state", "FAILED", "--mem", "x2", "--exclude-node", bad)
    assert asked.returncode == 0, asked.stderr
    run.until_attempts(2)

    assert run.claim(1).nodes != [bad] and run.reasons(2) == [""], run.story()
    script = run.paths.script(2).read_text()
    assert "#SBATCH --mem=2048M" in script and f"#SBATCH --exclude={bad}" in script
    job = next(job for job in run.tasks() if job["JobName"].endswith("-2"))
    assert (job["MinMemoryNode"], job["ExcNodeList"]) == ("2G", bad)

    asked = hpcdet("cancel", run.paths.id, "--now", "--wait")
    assert asked.returncode == 0, asked.stderr
    live = ("PENDING", "RUNNING", "COMPLETING")
    until(lambda: not any(job["JobState"] in live for job in run.jobs()), run.story)
    assert not any(checkpoints(trial) for trial in run.paths.trials()), "it saved"
    reasons = [attempt.reason for attempt in views.attempts(run.paths)]
    assert reasons == ["user_error", "canceled", "canceled"]
    assert views.status(run.paths).state == "CANCELED"
