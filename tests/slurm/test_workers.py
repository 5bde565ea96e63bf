"""Workers on a Slurm without accounting: what it says of jobs is in its queue, or nowhere.

The ranks are fakes (``tests/fake_rank.py``): their state is a chain of hashes that comes out right
only if each attempt went on from what the one before it had saved.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import replace

import pytest

from hpcdet.control.requests import commands
from hpcdet.store.folder.records import Intent, WorkerEnd
from tests.experiments import config, strike, until, worker_pids
from tests.slurm_runs import Lab, Run, undisturbed, urgent

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-b")]

PAIR = {"nodes": 2, "slots_per_node": 1}


def test_preemption_with_grace_requeues_the_told_task_alone(lab_b: Lab) -> None:
    """Row 2: during GraceTime steps get TERM and the batch script nothing. Row 10, and rule 4:
    a worker that is idle then hears of it by its listener, and gives its nodes back at once."""
    values = config(
        300,
        trials=3,
        data={"every": 10},
        resources={"resource_pool": "patient"},
        slurm={"sbatch_args": ["--exclusive"]},
        worker={"idle_s": 600},
    )
    run = lab_b.submit(values, pace=0.2, site={"python": lab_b.fake})
    for trial in (1, 2, 3):
        run.until_attempts(1, trial)
    commands.ask(run.paths, "pause", trial=2)
    until(lambda: run.reasons(2) == ["paused"], run.story)
    busy, idle = run.claim(1), run.claim(2)
    with urgent(lab_b.cluster, [*busy.nodes, *idle.nodes]):
        run.until_ended(1, 1)
        until(lambda: (end := _end(run, idle.worker)) and end.why == "signal", run.story)
        assert run.reasons(1)[0] == "preempted"
    commands.ask(run.paths, "resume", trial=2)
    run.until_attempts(2, 1)
    run.faster()
    run.wait()
    assert run.reasons(3) == ["completed"], run.story()
    assert [run.digest(trial) for trial in (1, 2, 3)] == [undisturbed(300, n) for n in (1, 2, 3)]
    restarts = {f"{job['ArrayJobId']}_{job['ArrayTaskId']}": job["Restarts"] for job in run.tasks()}
    assert restarts[run.claim(3).job] == "0", restarts


def test_a_canceled_job_frees_its_nodes_once_its_worker_has_left(lab_b: Lab) -> None:
    """Its step that listens hears TERM and lives on; the scheduler would kill it after KillWait."""
    lab_b.cluster.reconfigure(replace(lab_b.cluster.options, kill_wait_s=150))
    run = lab_b.submit(
        config(300, ranks=2, data={"every": 10}, resources=PAIR),
        pace=0.2,
        site={"python": lab_b.fake},
    )
    run.until_attempts(1)
    lab_b.cluster.check("scancel", run.task())
    ended = ("CANCELLED", "COMPLETED", "FAILED")  # until then COMPLETING
    until(lambda: run.tasks()[0]["JobState"] in ended, run.story, 120)


def _end(run: Run, worker: str) -> WorkerEnd | None:
    return WorkerEnd.read(run.paths.root / "workers" / worker / "end.json")


def test_jobs_that_preemption_cancels_are_submitted_again(lab_b: Lab) -> None:
    """Row 7: a partition with PreemptMode=CANCEL, on a site where nothing is requeued."""
    values = config(200, ranks=2, data={"every": 10}, resources={**PAIR, "resource_pool": "cancel"})
    site = {"python": lab_b.fake, "capabilities": {"requeue": "none"}}
    run = lab_b.submit(values, pace=0.1, site=site)
    run.until_attempts(1)
    run.crank()
    with urgent(lab_b.cluster, run.claim().nodes):
        run.until_ended(1)
    run.until_attempts(2)
    run.faster()
    run.wait()
    assert run.reasons() == ["preempted", "completed"], run.story()
    assert run.digest() == undisturbed(200)
    assert len(run.submissions()) == 2
    assert {job["Restarts"] for job in run.tasks()} == {"0"}


def test_a_node_where_nothing_starts_is_left_and_excluded(lab_b: Lab) -> None:
    """Rule 1: two launches that fail on a node say nothing against the trial."""
    hole = lab_b.folder / "black-hole"
    hole.write_text(
        "#!/bin/bash\n"
        '[ "$2" = hpcdet.attempt ] && [ "$SLURMD_NODENAME" = n1 ] && exit 3\n'
        f'exec {lab_b.fake} "$@"\n'
    )
    hole.chmod(0o700)
    run = lab_b.submit(config(30, max_restarts=0), site={"python": str(hole)})
    run.wait()
    assert run.reasons() == ["launch_failed", "launch_failed", "completed"], run.story()
    intents = [Intent.read(run.paths.intent(n)) for n in run.paths.submissions()]
    assert [intent.exclude for intent in intents if intent] == [[], ["n1"]]


def test_a_worker_that_cannot_start_does_not_requeue_itself_for_ever(lab_b: Lab) -> None:
    """Rule 2: no progress, no requeue; and a person is asked after a few submissions."""
    broken = lab_b.folder / "broken"
    broken.write_text(
        '#!/bin/bash\n[ "$2" = hpcdet.worker ] && kill -9 $$\n' + f'exec {sys.executable} "$@"\n'
    )
    broken.chmod(0o700)
    site = {"python": str(broken), "max_restarts_in_place": 1}
    run = lab_b.submit(config(30), site=site)
    until(lambda: [job["JobState"] for job in run.tasks()] == ["FAILED"], run.story)
    assert [job["Restarts"] for job in run.tasks()] == ["1"]


def test_workers_poll_no_more_than_the_site_allows(lab_b: Lab) -> None:
    """Twenty live trials, all of whose workers could ask: one query in five seconds."""
    values = config(10**6, trials=20, data={"every": 100})
    run = lab_b.submit(values, pace=0.2, site={"python": lab_b.fake, "limits": {"poll_min_s": 5}})
    for trial in range(1, 21):
        run.until_attempts(1, trial)
    before, began = _queries(lab_b), _now(lab_b)
    seen = run.batches(20)
    run.until_batches(seen + 100, 20)
    after, elapsed = _queries(lab_b), _now(lab_b) - began
    assert elapsed > 15
    for counted in (new - old for new, old in zip(after, before, strict=True)):
        assert counted <= elapsed / 5 + 1
    strike(worker_pids(run.paths), signal.SIGTERM)


def _queries(lab: Lab) -> tuple[int, int]:
    """Questions about jobs so far: as the wrappers count them, and as the controller does."""
    calls = [line.split()[1] for line in lab.cluster.calls.read_text().splitlines()]
    wrapped = sum(name in ("squeue", "sacct", "sinfo", "sstat") for name in calls)
    report = lab.cluster.check("sdiag").splitlines()
    counts = [row for row in report if row.strip().startswith("REQUEST_JOB_") and "INFO" in row]
    return wrapped, sum(int(row.partition("count:")[2].split()[0]) for row in counts)


def _now(lab: Lab) -> float:
    """The controller's time, so that both sides of a rate have one clock."""
    report = lab.cluster.check("sdiag")
    line = next(row for row in report.splitlines() if row.startswith("sdiag output at"))
    return float(line[line.index("(") + 1 : line.index(")")])
