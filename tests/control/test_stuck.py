"""Jobs that will never start by themselves: replaced, or given to a person; others are left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.fleet import failed_submissions
from hpcdet.control.leader.leader import Holder
from hpcdet.control.requests import commands
from hpcdet.control.turn.controller import Turn, advance
from hpcdet.read.experiment import gather, states
from hpcdet.schedulers.common.base import TaskState
from hpcdet.schedulers.slurm.answers import slurm_text, slurm_waits
from hpcdet.store.decisions import lease
from hpcdet.store.folder import home
from hpcdet.store.folder.records import Intent, WorkerEnd
from tests.paper import PaperScheduler, Waves, World

HELD = "launch failed requeued held"


class Remembering(PaperScheduler):
    """A scheduler with accounting."""

    def launched_on(self, job: str, index: int) -> tuple[str, ...]:
        return self.nodes

    nodes: tuple[str, ...] = ("n7",)


def make(tmp_path: Path, **settings: object) -> World:
    world = World.make(tmp_path, Waves(count=1, width=1), **settings)  # type: ignore[arg-type]
    world.scheduler = Remembering()
    return world


def turns(world: World, holder: Holder, number: int) -> Turn:
    """So many turns, each with another answer of the scheduler."""
    for _ in range(number):
        world.clock.now += 11
        holder.lease.beat()
        turn = advance(world.paths, holder)
    return turn


def fail_to_launch(world: World, job: str) -> None:
    """As Slurm does it: requeued, and held."""
    world.scheduler.reasons[job] = HELD
    world.scheduler.jobs[job].restarts[0] = 1


def test_every_reason_that_slurm_names_has_its_class() -> None:
    def kinds(*reasons: str) -> set[str]:
        return {slurm_waits.wait(reason).kind for reason in reasons}

    assert kinds(HELD, HELD.replace(" ", "_"), "JobHeldAdmin", "JobHoldMaxRequeue") == {"launch"}
    never = (
        *("BadConstraints", "PartitionTimeLimit", "InvalidAccount"),
        *("QOSMaxWallDurationPerJobLimit", "AssocMaxWallDurationPerJobLimit", "InvalidQOS"),
        *(
            "QOSMaxCpuPerJobLimit",
            "QOSMinGRES",
            "QOSMaxNodePerJobLimit",
            "AssocMaxCpuMinutesPerJobLimit",
        ),
    )
    assert kinds(*never) == {"never"}
    assert all(slurm_waits.wait(reason).repair for reason in (HELD, *never))
    passing = ("AssocMaxJobsLimit", "QOSMaxJobsPerUserLimit", "AssocGrpCpuLimit", "QOSGrpNodeLimit")
    assert kinds(*passing, "JobArrayTaskLimit") == {"limit"}
    assert kinds("Priority", "Resources", "Licenses", "Reservation", "None", "") == {"other"}
    outage = "ReqNodeNotAvail, UnavailableNodes:n1", "PartitionDown", "PartitionInactive"
    down = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority"
    # of a job that is wider than its partition: slurm_waits.TOO_WIDE
    assert kinds(*outage, down, "PartitionNodeLimit") == {"outage"}
    assert kinds("JobHeldUser", "job requeued in held state") == {"held"}
    assert kinds("BeginTime") == {"begin_time"}
    assert kinds("DependencyNeverSatisfied") == {"in_vain"}


def test_reasons_are_read_as_squeue_prints_them() -> None:
    """Recorded from Slurm 22.05: an array whose first task could not be launched."""
    rows = slurm_text.squeue(
        "11|1|PENDING|ReqNodeNotAvail, UnavailableNodes:n1|0|1763835387|N/A|N/A|0||\n"
        "11|0|PENDING|launch failed requeued held|1|1763835387|N/A|N/A|0||\n"
        "3|N/A|RUNNING|None|0|1763835387|N/A|N/A|0|n1|\n"
    )
    assert [(row.task.state, row.task.wait.kind) for row in rows] == [
        (TaskState.PENDING, "outage"),
        (TaskState.PENDING, "launch"),
        (TaskState.RUNNING, "other"),
    ]


def test_a_task_held_after_a_failed_launch_is_replaced_without_its_node(tmp_path: Path) -> None:
    world = make(tmp_path)
    holder = world.holder()
    advance(world.paths, holder)
    fail_to_launch(world, "1")
    turns(world, holder, 1)
    assert world.scheduler.live == [("1", 0)]  # one answer is none
    turns(world, holder, 3)
    assert world.scheduler.live == [("2", 0)]
    intent = Intent.read(world.paths.intent(2))
    assert intent is not None and intent.exclude == ["n7"]


def test_of_a_job_on_several_nodes_those_go_that_fail_again(tmp_path: Path) -> None:
    world = make(tmp_path)
    holder = world.holder()
    advance(world.paths, holder)
    excluded = []
    for job, nodes in enumerate((("n1", "n2"), ("n2", "n3")), 1):
        world.scheduler.nodes = nodes
        fail_to_launch(world, str(job))
        turns(world, holder, 4)
        intent = Intent.read(world.paths.intent(job + 1))
        excluded.append(intent.exclude if intent is not None else None)
    assert excluded == [[], ["n2"]]


def test_three_launches_that_fail_in_a_row_are_a_matter_for_a_person(tmp_path: Path) -> None:
    world = make(tmp_path)
    holder = world.holder()
    advance(world.paths, holder)
    for job in range(1, failed_submissions.LAUNCHES + 1):
        fail_to_launch(world, str(job))
        turns(world, holder, 4)
        if job == 2:  # another process takes over, and counts on
            holder.close()
            holder = world.holder()
    assert len(world.scheduler.jobs) == failed_submissions.LAUNCHES and not world.scheduler.live
    state, why = states.experiment_state(gather.gather(world.paths))
    assert state == "PAUSED" and HELD in why and "n7" in why and "administrators" in why
    commands.ask(world.paths, "resume")
    turns(world, holder, 2)
    assert world.scheduler.live == [(str(failed_submissions.LAUNCHES + 1), 0)]
    intent = Intent.read(world.paths.intent(failed_submissions.LAUNCHES + 1))
    assert intent is not None and intent.exclude == []  # somebody has looked after the node


@pytest.mark.parametrize("granted", [True, False])
def test_tasks_that_are_canceled_at_their_launch_are_sent_elsewhere_three_times(
    tmp_path: Path, granted: bool
) -> None:
    """Slurm does so with a task that may not be requeued. One that its user cancels while it waits
    has had no node."""
    world = make(tmp_path)
    holder = world.holder()
    advance(world.paths, holder)
    excluded = []
    for job in range(1, failed_submissions.LAUNCHES + 1):
        if granted:
            world.scheduler.granted[str(job)] = (f"n{job}",)
        world.scheduler.cancel(str(job))
        turns(world, holder, 3)
        intent = Intent.read(world.paths.intent(job + 1))
        excluded.append(intent.exclude if intent is not None else None)
        waiting = states.waiting_jobs(gather.gather(world.paths))
        if granted:  # for `squeue --start`
            assert waiting == ([str(job + 1)] if intent is not None else [])
        holder.close()  # each by another process, as sentinels do
        holder = world.holder()
    state, why = states.experiment_state(gather.gather(world.paths))
    if not granted:
        assert excluded == [[]] * failed_submissions.LAUNCHES and state == "PENDING"
        return
    assert excluded == [["n1"], ["n1", "n2"], None]
    assert state == "PAUSED" and "could not be launched on n1, n2, n3" in why, why
    commands.ask(world.paths, "resume")
    turns(world, holder, 2)
    assert len(world.scheduler.live) == 1


def test_a_task_that_its_user_cancels_before_its_worker_is_up_was_launched(tmp_path: Path) -> None:
    """Slurm 22.05 shows a script that scancel ends by signal 15, a failed launch by status 0."""
    world = make(tmp_path)
    holder = world.holder()
    advance(world.paths, holder)
    world.scheduler.granted["1"], world.scheduler.exits["1"] = ("n1",), -15
    world.scheduler.cancel("1")
    turns(world, holder, 3)
    intent = Intent.read(world.paths.intent(2))
    assert intent is not None and intent.exclude == [] and not holder.decided.jobs.unlaunched


def test_what_a_former_term_has_canceled_has_not_failed_to_launch(tmp_path: Path) -> None:
    """It had begun meanwhile, and its worker was not up yet."""
    world = make(tmp_path, searcher={"max_trials": 2, "max_concurrent_trials": 2})
    world.method = Waves(count=2, width=2)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    play.finish(play.claim(worker := play.start("1", 0)))
    world.scheduler.granted["1_1"] = ("n1",)
    turns(world, holder, 1)
    play.claim(worker)
    turns(world, holder, 1)
    assert world.scheduler.live == [("1", 0)], "one is enough for what is left"
    holder.close()
    holder = world.holder()
    turns(world, holder, 3)
    assert not holder.decided.jobs.unlaunched


def test_all_nodes_of_a_submission_whose_launches_fail_are_avoided(tmp_path: Path) -> None:
    world = make(tmp_path, searcher={"max_trials": 3, "max_concurrent_trials": 3})
    world.method = Waves(count=3, width=3)
    holder = world.holder()
    advance(world.paths, holder)
    for index in range(3):
        world.scheduler.granted[f"1_{index}"] = (f"n{index}",)
    world.scheduler.cancel("1")
    turns(world, holder, 3)
    intent = Intent.read(world.paths.intent(2))
    assert intent is not None and intent.exclude == ["n0", "n1", "n2"]
    assert len(holder.decided.jobs.unlaunched) == 3
    holder.close()
    holder = world.holder()
    turns(world, holder, 1)
    assert len(holder.decided.jobs.unlaunched) == 3


@pytest.mark.parametrize("restarts", [0, 1])
def test_the_launch_of_a_requeued_task_may_fail_too(tmp_path: Path, restarts: int) -> None:
    """Not so where its user cancels it while its worker is at work."""
    world = make(tmp_path, site={"capabilities": {"requeue": "user"}})
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    world.scheduler.granted["1"] = ("n1",)
    worker = play.start("1")
    turns(world, holder, 1)
    WorkerEnd("signal", worker.name, returns=True).write_once(worker.end)
    world.scheduler.jobs["1"].restarts[0] = restarts
    play.vanish(worker, TaskState.CANCELED)
    turns(world, holder, 4)
    intent = Intent.read(world.paths.intent(2))
    assert intent is not None and intent.exclude == (["n1"] if restarts else [])


def test_who_replaces_a_task_is_not_canceled_for_it(tmp_path: Path) -> None:
    """The next holder has seen the end of the task in one answer only, which proves nothing yet."""
    world = make(tmp_path, site={"capabilities": {"requeue": "user"}})
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    world.scheduler.granted["1"] = ("n1",)
    worker = play.start("1")
    turns(world, holder, 1)
    WorkerEnd("signal", worker.name, returns=True).write_once(worker.end)
    world.scheduler.jobs["1"].restarts[0] = 1
    play.vanish(worker, TaskState.CANCELED)
    turns(world, holder, 4)
    assert world.scheduler.live == [("2", 0)]
    holder.close()
    turns(world, world.holder(), 1)
    assert world.scheduler.live == [("2", 0)]


def test_a_launch_that_fails_now_and_then_is_no_matter_for_anybody(tmp_path: Path) -> None:
    world = make(tmp_path)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    for job in range(1, 2 * failed_submissions.LAUNCHES, 2):
        fail_to_launch(world, str(job))
        turns(world, holder, 4)
        worker = play.start(str(job + 1))
        attempt = play.claim(worker)
        play.report(attempt, 10 * job)
        play.end(attempt, "node_fail", progressed=True, first_step=True)
        play.vanish(worker, TaskState.NODE_FAIL)
        turns(world, holder, 4)
        assert states.waiting_jobs(gather.gather(world.paths)) == [str(job + 2)]
    assert states.experiment_state(gather.gather(world.paths))[0] == "RUNNING"


@pytest.mark.parametrize(
    ("reason", "repair"),
    [
        ("PartitionTimeLimit", "resources.walltime_s"),
        ("QOSMaxWallDurationPerJobLimit", "resources.walltime_s"),
        ("AssocMaxWallDurationPerJobLimit", "resources.walltime_s"),
        ("BadConstraints", "resources.memory_per_slot"),
        ("InvalidAccount", "--account"),
        ("InvalidQOS", "--qos"),
    ],
)
def test_what_cannot_start_as_it_is_leaves_the_queue_and_its_user_hears_why(
    tmp_path: Path, reason: str, repair: str
) -> None:
    world = make(tmp_path)
    holder = world.holder()
    advance(world.paths, holder)
    world.scheduler.reasons["1"] = reason
    turns(world, holder, 1)
    assert states.experiment_state(gather.gather(world.paths))[0] == "PENDING"
    turns(world, holder, 3)
    assert not world.scheduler.live
    state, why = states.experiment_state(gather.gather(world.paths))
    assert state == "PAUSED" and f"job 1 cannot start ({reason})" in why and repair in why
    next = states.resuming(gather.gather(world.paths))
    assert next == f"hpcdet resume {home.called(world.paths)}" + (
        " --set resources.walltime_s=LESS" if repair == "resources.walltime_s" else ""
    )
    commands.ask(world.paths, "resume")
    turns(world, holder, 2)
    assert world.scheduler.live == [("2", 0)]


def test_what_its_owner_holds_is_left_alone_whatever_slurm_calls_it(tmp_path: Path) -> None:
    world = make(tmp_path)
    holder = world.holder()
    advance(world.paths, holder)
    world.scheduler.reasons["1"] = "JobHeldUser"
    turns(world, holder, 4)
    assert world.scheduler.live == [("1", 0)]
    commands.ask(world.paths, "hold")
    # root holds as an administrator does
    world.scheduler.reasons["1"] = "JobHeldAdmin"
    turns(world, holder, 4)
    assert world.scheduler.live == [("1", 0)]
    assert len(world.scheduler.jobs) == 1


def test_why_tasks_wait_and_since_when_is_told_by_one_holder_to_the_next(tmp_path: Path) -> None:
    world = make(tmp_path, site={"limits": {"poll_min_s": 10, "waits_warn_s": 60}})
    holder = world.holder()
    advance(world.paths, holder)
    world.scheduler.reasons["1"] = "Priority"
    turns(world, holder, 4)
    assert world.scheduler.live == [("1", 0)]
    world.scheduler.reasons["1"] = "ReqNodeNotAvail, UnavailableNodes:n1"
    turns(world, holder, 2)  # what one turn sees is told by the next beat
    [wait] = states.waits(world.paths)
    assert (wait["reason"], wait["kind"], wait["tasks"], wait["long"]) == (
        *("ReqNodeNotAvail", "outage", 1, False),
    )
    health = states.health(gather.gather(world.paths), now=4e9)
    assert health["health"] == "queued"
    assert f"ReqNodeNotAvail since {wait['since']}" in health["why"]
    # as a former holder saw it an hour ago
    before, term = dict(wait, since="2026-01-01T00:00:00Z"), holder.lease.term
    holder.close()
    path = lease.beat_path(world.paths, term)
    os.unlink(path)
    lease.Beat("x", released=True, waits=[before]).write_once(path)
    turns(world, world.holder(), 2)
    [wait] = states.waits(world.paths)
    assert wait["since"] == "2026-01-01T00:00:00Z" and wait["long"]


@pytest.mark.parametrize(
    "wrong", [{}, {"since": "soon"}, {"since": "2026-01-01"}, {"tasks": "3"}, {"reason": ["x"]}]
)
def test_reasons_that_are_none_are_passed_over(tmp_path: Path, wrong: dict[str, Any]) -> None:
    good = {"reason": "Priority", "kind": "other", "tasks": 1, "since": "2026-01-01T00:00:00Z"}
    beat = lease.Beat("x", waits=[{**good, "long": False}, {**good, **wrong}])
    if wrong:
        beat.waits[1]["long"] = False
    assert beat.reasons() == [{**good, "long": False}]
    world = make(tmp_path)
    holder = world.holder()
    advance(world.paths, holder)
    world.scheduler.reasons["1"] = "Priority"
    holder.close()
    path = lease.beat_path(world.paths, holder.lease.term or 1)
    path.unlink()
    lease.Beat("x", released=True, waits=[{"reason": "Priority", **wrong}]).write_once(path)
    turns(world, world.holder(), 2)
    assert [one["reason"] for one in states.waits(world.paths)] == ["Priority"]


def test_what_has_left_the_queue_waits_no_more(tmp_path: Path) -> None:
    """The scheduler is not asked again where nothing of ours can be in the queue."""
    world = make(tmp_path)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    world.scheduler.reasons["1"] = "ReqNodeNotAvail, UnavailableNodes:n1"
    turns(world, holder, 2)
    assert states.waits(world.paths)
    attempt = play.claim(worker := play.start("1"))
    play.report(attempt, 10)
    holder.lease.beat()
    advance(world.paths, holder)  # before the scheduler may be asked again
    play.leave(worker)
    turns(world, holder, 1)
    holder.lease.beat()
    assert not states.waits(world.paths)
