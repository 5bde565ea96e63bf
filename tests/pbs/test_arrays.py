"""Several workers on a real PBS: as a wave of single jobs, and as an array of subjobs."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from hpcdet.schedulers.common.base import Job, Prunes, TaskState
from hpcdet.schedulers.opening import open_scheduler
from tests.experiments import same_bits, until
from tests.pbs_runs import PbsLab, sized
from tests.slurm_runs import Run

pytestmark = [pytest.mark.pbs, pytest.mark.xdist_group("pbs")]

TRIALS = 3


def search() -> dict[str, Any]:
    """Three trials at once, each in a worker of its own."""
    return sized(
        1,
        1,
        hyperparameters={"learning_rate": {"type": "log", "base": 10, "minval": -3, "maxval": -1}},
        searcher={"name": "random", "max_trials": TRIALS, "max_concurrent_trials": TRIALS},
    )


def digests(run: Run) -> list[str]:
    return [run.digest(trial) for trial in range(1, TRIALS + 1)]


def test_a_wave_of_jobs_and_an_array_give_the_same_and_subjobs_go_on_one_by_one(
    lab: PbsLab,
) -> None:
    wave = lab.run(search(), "single")
    wave.wait()
    assert len(wave.submissions()) == TRIALS and not any("[" in job for job in wave.submissions())

    run = lab.run(search(), "arrays", pace=0.5)
    for trial in range(1, TRIALS + 1):
        run.until_batches(6, trial)
    [array] = run.submissions()
    first, second, third = (run.task(trial) for trial in range(1, TRIALS + 1))
    assert "[]" in array and {first, second, third} == {
        array.replace("[]", f"[{index}]") for index in range(TRIALS)
    }
    run.faster(2.0)  # the third one trains on, however long a busy server takes over the others
    run.cluster.check("qdel", first)
    run.cluster.check("qrerun", second)
    run.until_ended(1, 1)
    run.until_ended(1, 2)
    assert run.task(3) == third and run.reasons(3) == [""]
    run.faster()
    run.wait()
    assert run.reasons(1) == run.reasons(2) == ["preempted", "completed"], run.story()
    assert run.reasons(3) == ["completed"], run.story()
    same_bits(digests(run), digests(wave), run.story())


def test_an_array_is_throttled_held_and_pruned(lab: PbsLab) -> None:
    """As the searcher does it, on jobs that only sleep."""
    server = lab.cluster
    scheduler = open_scheduler(lab.site(limits={"poll_min_s": 0}))
    size = ("-l", "select=1:ncpus=1:mem=10mb", "-j", "oe", "-o", "/dev/null", "-r", "y", "-c", "n")
    argv = ("qsub", "-f", "-N", "sleeps", "-J", "0-3%1", *size, "--", "/bin/sleep", "900")
    array = server.check(*argv).strip()

    def states() -> list[TaskState]:
        return [task.state for task in scheduler.query([Job(array, 4)])[array]]

    def waits() -> str:
        return str(states())

    running, pending = TaskState.RUNNING, TaskState.PENDING
    until(lambda: states() == [running, pending, pending, pending], waits, 120)
    scheduler.hold(array, True)

    def holds() -> set[str]:
        return {task.wait.kind for task in scheduler.query([Job(array, 4)])[array][1:]}

    until(lambda: holds() == {"held"}, waits, 120)
    scheduler.hold(array, False)
    scheduler.throttle(array, 2)
    until(lambda: states().count(running) == 2, waits, 180)
    assert isinstance(scheduler, Prunes)
    scheduler.prune(array)
    ended = [running, running, TaskState.CANCELED, TaskState.CANCELED]
    until(lambda: states() == ended, waits, 120)
    scheduler.cancel(array, 0)
    until(lambda: states()[0] is TaskState.CANCELED, waits, 120)
    assert states()[1] is running
    scheduler.cancel(array)
    until(lambda: all(state.final for state in states()), waits, 120)


def test_a_lost_submission_is_found_and_a_dependency_in_vain_told(lab: PbsLab) -> None:
    server, scheduler = lab.cluster, open_scheduler(lab.site(limits={"poll_min_s": 0}))
    size = ("-l", "select=1:ncpus=1:mem=10mb", "-j", "oe", "-o", "/dev/null")
    tag = f"hpcdet:exp:1-{secrets.token_hex(4)}"  # the history keeps those of former runs
    tagged = ("qsub", "-f", "-N", "exp-1", "-v", f"HPCDET_TAG={tag}", *size)
    job = server.check(*tagged, "--", "/bin/false").strip()
    assert scheduler.find("exp-1", tag) == job
    assert scheduler.find("exp-1", f"{tag}x") is None
    assert scheduler.find("exp-2", tag) is None

    def task(one: str) -> Any:
        return scheduler.query([Job(one, 1)])[one][0]

    until(lambda: task(job).state is TaskState.FAILED, lambda: str(task(job)), 60)
    argv = ("qsub", "-f", "-N", "after", "-W", f"depend=afterok:{job}", *size, "--", "/bin/true")
    after = server.check(*argv).strip()
    until(lambda: task(after).wait.kind == "in_vain", lambda: str(task(after)), 60)
    scheduler.cancel(after)
    until(lambda: task(after).state is TaskState.GONE, lambda: str(task(after)), 60)
