"""Job arrays of an experiment: how many, how wide, and submissions that fail."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.fleet import spare_jobs
from hpcdet.control.requests import commands
from hpcdet.control.turn.controller import advance
from hpcdet.errors import Unavailable
from hpcdet.read.experiment import gather, states
from hpcdet.read.explanation import findings
from hpcdet.schedulers.calls import submission_rate
from hpcdet.schedulers.common.base import Capabilities, Refusal, Submission, TaskState
from hpcdet.site_files import load_site
from hpcdet.store.config import resolved_config
from hpcdet.store.decisions import lease
from hpcdet.store.folder.records import (
    Intent,
    Submitted,
    WorkerClaim,
)
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import files
from hpcdet.store.trials.standing import standing
from tests.control.worlds import closed, end_of, later
from tests.paper import Waves, World


def test_a_submission_that_can_never_work_pauses_with_the_schedulers_words(tmp_path: Path) -> None:
    world = World.make(tmp_path)
    world.scheduler.refuse = lambda _: Refusal("invalid", "invalid partition specified: gpux")
    holder = world.holder()
    turn = advance(world.paths, holder)
    assert turn.state == "PAUSED"
    later(world, holder, 3)
    assert len(world.paths.submissions()) == 1
    submitted = Submitted.read(world.paths.submitted(1))
    assert submitted is not None
    assert (submitted.job, submitted.error) == ("", "invalid partition specified: gpux")
    world.scheduler.refuse = lambda _: None
    commands.ask(world.paths, "resume")
    assert advance(world.paths, holder).state != "PAUSED"
    assert len(world.scheduler.live) == 2


def test_back_pressure_is_no_error_and_never_too_many_jobs(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=6, width=6), searcher={"max_concurrent_trials": 6})
    scheduler = world.scheduler

    def max_submit(submission: Any) -> Refusal | None:
        if len(scheduler.live) + submission.tasks > 4:
            return Refusal("limit", "AssocMaxSubmitJobLimit")
        return None

    scheduler.refuse = max_submit
    play, holder = world.play(), world.holder()
    assert advance(world.paths, holder).state == "PENDING"
    assert len(scheduler.live) == 4
    later(world, holder, 4)
    assert len(scheduler.live) == 4
    assert len(world.paths.submissions()) <= 7
    while not (turn := later(world, holder, 1)).closed:
        assert len(scheduler.live) <= 4
        for worker in play.start_all():
            play.finish(play.claim(worker))
            play.leave(worker)
        assert turn.state != "PAUSED"
    assert closed(world) == ("COMPLETED", "6 of 6 trials succeeded")


def test_arrays_are_chunked_by_what_site_and_scheduler_allow(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=12, width=12), searcher={"max_concurrent_trials": 12})
    world.scheduler.able = Capabilities(max_array_tasks=5)
    advance(world.paths, world.holder())
    assert [j.submission.tasks for j in world.scheduler.jobs.values()] == [5, 5, 2]
    narrow = World.make(
        tmp_path / "narrow",
        Waves(count=12, width=12),
        site={"limits": {"max_submit": 3}},
        searcher={"max_concurrent_trials": 12},
    )
    advance(narrow.paths, narrow.holder())
    assert [j.submission.tasks for j in narrow.scheduler.jobs.values()] == [3]


def test_arrays_that_are_too_wide_are_halved_and_refused_only_where_there_are_none(
    tmp_path: Path,
) -> None:
    def refuse(submission: Submission) -> Refusal | None:
        too_wide = submission.tasks > most
        return Refusal("width", "Invalid job array specification") if too_wide else None

    most = 3
    search = {"max_concurrent_trials": 8}
    world = World.make(tmp_path, Waves(count=8, width=8), searcher=search)
    world.scheduler.refuse = refuse
    assert advance(world.paths, world.holder()).state != "PAUSED"
    assert [job.submission.tasks for job in world.scheduler.jobs.values()] == [2, 2, 2, 2]
    most = 0
    none = World.make(tmp_path / "none", Waves(count=2, width=2))
    none.scheduler.refuse = refuse
    assert advance(none.paths, none.holder()).state == "PAUSED"


def test_arrays_are_narrow_only_as_long_as_the_scheduler_takes_no_wider_ones(
    tmp_path: Path,
) -> None:
    away = Refusal("unavailable", "Unable to contact slurm controller")
    world = World.make(tmp_path, Waves(41, 41), searcher={"max_concurrent_trials": 1})
    world.scheduler.refuse = lambda _: away
    holder = world.holder()
    advance(world.paths, holder)
    world.scheduler.refuse = lambda _: None
    later(world, holder, 1)
    commands.ask(world.paths, "set", max_concurrent_trials=41)
    later(world, holder, 1)
    assert [job.submission.tasks for job in world.scheduler.jobs.values()] == [1, 40]

    (tmp_path / "full").mkdir()
    world = World.make(tmp_path / "full", Waves(40, 40), searcher={"max_concurrent_trials": 40})
    full_at(world, 1)
    holder = world.holder()
    advance(world.paths, holder)
    full_at(world, 100)
    later(world, holder, 1)
    widths = [job.submission.tasks for job in world.scheduler.jobs.values()]
    assert widths == [1, 1, 2, 4, 8, 16, 8]


def test_an_unavailable_scheduler_is_waited_for(tmp_path: Path) -> None:
    world = World.make(tmp_path)
    holder = world.holder()
    world.scheduler.down = True
    assert advance(world.paths, holder).held
    world.scheduler.down = False
    later(world, holder, 1)
    assert len(world.scheduler.jobs) == 1
    world.scheduler.down = True
    assert later(world, holder, 3).blind == "the scheduler is on holiday"
    newest = lease.last(world.paths)
    assert newest is not None
    assert newest[1] is not None
    assert newest[1].blind == "the scheduler is on holiday"
    assert len(world.scheduler.jobs) == 1


def test_an_intent_whose_job_was_made_is_found_by_its_tag(tmp_path: Path) -> None:
    world = World.make(tmp_path)
    holder = world.holder()
    advance(world.paths, holder)
    world.paths.submitted(1).unlink()  # as if the process had died before writing it
    later(world, holder, 1)
    assert len(world.scheduler.jobs) == 1
    submitted = Submitted.read(world.paths.submitted(1))
    assert submitted is not None
    assert submitted.job == "1"


def test_prepared_submissions_are_left_to_people(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    advance(world.paths, world.holder("submit", hold=True))
    assert not world.scheduler.jobs
    intent = Intent.read(world.paths.intent(1))
    assert intent is not None
    assert intent.hold
    assert world.paths.script(1).exists()
    world.clock.now += 200
    holder = world.holder()
    later(world, holder, 1)
    world.clock.now += 101
    assert later(world, holder, 2).held
    assert not world.scheduler.jobs


def test_nodes_where_launches_fail_are_avoided_and_the_trial_given_up_in_the_end(
    tmp_path: Path,
) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1), max_restarts=0)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    bad = play.start("1", node="hole")
    for _ in range(2):
        play.end(play.claim(bad), "launch_failed", error="srun: error")
        advance(world.paths, holder)
    assert standing(world.paths.trial(1)).state == "runnable"  # the place may be to blame
    play.leave(bad, "bad_node")
    later(world, holder, 2)
    intent = Intent.read(world.paths.intent(2))
    assert intent is not None
    assert intent.exclude == ["hole"]
    good = play.start("2", node="n2")
    play.end(play.claim(good), "launch_failed", error="srun: error")
    advance(world.paths, holder)
    assert closed(world)[0] == "ERROR"


def test_workers_that_die_before_taking_a_trial_are_not_sent_for_ever(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    play, holder = world.play(), world.holder()
    turn = advance(world.paths, holder)
    for _ in range(30):
        for job in world.scheduler.jobs.values():
            job.states = [TaskState.FAILED]
        turn = later(world, holder, 1)
    assert turn.state == "PAUSED"
    assert len(world.scheduler.jobs) == 5
    commands.ask(world.paths, "resume")
    advance(world.paths, holder)
    play.finish(play.claim(play.start_all()[0]))
    assert advance(world.paths, holder).closed


def test_waiting_tasks_that_nobody_needs_any_more_leave_the_queue(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=3, width=3), searcher={"max_concurrent_trials": 3})
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    worker = play.start("1", 0)
    play.finish(play.claim(worker))
    play.finish(play.claim(worker))
    play.claim(worker)
    later(world, holder, 1)
    assert world.scheduler.live == [("1", 0)]


def test_one_task_per_trial_where_the_user_wants_it(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=3, width=1), worker={"mode": "per_trial"})
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    for _ in range(3):
        [worker] = play.start_all()
        play.finish(play.claim(worker))
        play.leave(worker, "idle")
        turn = advance(world.paths, holder)
    assert turn.closed
    assert [job.submission.tasks for job in world.scheduler.jobs.values()] == [1, 1, 1]


def test_tasks_are_as_many_as_the_lanes_of_all_trials_fill(tmp_path: Path) -> None:
    search = {"max_concurrent_trials": 7, "max_trials": 7}
    lanes = {"worker": {"lanes": 3}, "resources": {"max_slots": 7}}
    world = World.make(tmp_path, Waves(count=7, width=7), searcher=search, **lanes)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    job = world.scheduler.jobs["1"].submission
    assert (job.tasks, job.throttle) == (2, 2), "three tasks could hold nine slots"

    (tmp_path / "wide").mkdir()
    world = World.make(
        tmp_path / "wide", Waves(count=7, width=7), searcher=search, worker={"lanes": 3}
    )
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    job = world.scheduler.jobs["1"].submission
    assert (job.tasks, job.throttle) == (3, 3)
    worker = play.start("1", 0)
    attempts = [play.claim(worker) for _ in range(3)]
    for attempt in attempts[:2]:
        play.finish(attempt)
    later(world, holder, 1)
    assert world.scheduler.live == [("1", 0), ("1", 1)], "five trials are left, for six lanes"
    # one lane goes on while the others take nothing more: four trials wait for three lanes
    files.replace(worker.beat, files.canonical({"at": files.now(), "leaving": "bad_node"}))
    later(world, holder, 1)
    assert world.scheduler.live[2:] == [("2", 0)]


NOBODY = {"submit_from_compute": False, "login_daemon": "forbidden"}


def test_spares_wait_where_nobody_submits_later_and_start_only_for_work(tmp_path: Path) -> None:
    search = {"max_concurrent_trials": 3, "max_trials": 3}
    site = {"scheduler": "slurm", "capabilities": NOBODY}
    world = World.make(tmp_path, Waves(3, 3), site, searcher=search, worker={"spares": 4})
    play, home = world.play(), world.holder()
    advance(world.paths, home)
    home.close()
    array, sentinel = world.scheduler.jobs.values()
    assert (array.submission.tasks, array.submission.throttle) == (7, 3)
    assert sentinel.submission.name == "paper-0001-1-sentinel"
    assert Intent.read(world.paths.sentinel(1)).watches == "1"  # type: ignore[union-attr]
    # a worker decides from here on, and can submit nothing
    holder = dataclasses.replace(world.holder("worker"), submits=False)
    one, two, three = (play.start("1", index) for index in range(3))
    first, lost = play.claim(one), play.claim(two)
    play.finish(play.claim(three))
    later(world, holder)
    # the third has nothing to do and leaves: no spare takes its place
    assert world.scheduler.throttled == [("1", 2)]
    play.leave(three)
    play.vanish(two, TaskState.NODE_FAIL)
    spare = play.start("1", 3)
    turn = later(world, holder)
    assert (end_of(lost), turn.wanted, turn.live) == ("node_fail", 2, (1,))
    play.finish(play.claim(spare))
    play.finish(first)
    assert later(world, holder, 1).closed
    assert len(world.scheduler.jobs) == 2
    assert world.scheduler.live == [("1", 0), ("1", 3)]  # who see for themselves that it is over


def test_spare_jobs_form_a_chain_behind_each_worker_where_there_are_no_arrays(
    tmp_path: Path,
) -> None:
    site = {"scheduler": "pbs", "capabilities": NOBODY}
    search = {"max_concurrent_trials": 2, "max_trials": 2}
    world = World.make(tmp_path, Waves(2, 2), site, searcher=search, worker={"spares": 4})
    world.scheduler.able = Capabilities(arrays=False)
    play, home = world.play(), world.holder()
    advance(world.paths, home)
    later(world, home)
    home.close()
    assert behind(world) == [[], [], ["1"], ["2"], ["3"], ["4"]]
    [sentinel] = [job for job in world.scheduler.jobs.values() if "sent" in job.submission.name]
    assert sentinel.submission.name == "paper-0001-6-sentinel"
    small = Intent.read(world.paths.sentinel(6))
    assert small is not None and small.watches == "5:6", "behind both chains"
    # a worker decides from here on, and can submit nothing: the next one of its chain goes on
    holder = dataclasses.replace(world.holder("worker"), submits=False)
    one, two = (play.start(job) for job in ("1", "2"))
    lost, other = play.claim(one), play.claim(two)
    play.vanish(one, TaskState.NODE_FAIL)
    spare = play.start("3")
    later(world, holder)
    assert end_of(lost) == "node_fail"
    play.finish(play.claim(spare))
    play.finish(other)
    assert later(world, holder, 1).closed
    assert len(world.scheduler.jobs) == 7


def test_spare_jobs_are_not_held_for_a_limit_of_running_jobs(tmp_path: Path) -> None:
    """Where nobody submits, there may be nobody to release them."""
    site = {"scheduler": "pbs", "capabilities": NOBODY, "limits": {"max_running": 2}}
    search = {"max_concurrent_trials": 3}
    world = World.make(tmp_path, Waves(3, 3), site, searcher=search, worker={"spares": 4})
    world.scheduler.able = Capabilities(arrays=False)
    holder = world.holder()
    turns = [advance(world.paths, holder), later(world, holder, 1), later(world, holder, 1)]
    assert behind(world) == [[], [], ["1"], ["2"], ["3"], ["4"]]
    assert not [text for turn in turns for text in turn.actions if "hold" in text]


def test_a_full_queue_makes_the_chain_of_spare_jobs_shorter(tmp_path: Path) -> None:
    site = {"scheduler": "pbs", "capabilities": NOBODY}
    world = World.make(tmp_path, Waves(1, 1), site, worker={"spares": 9})
    full = Refusal("limit", "would exceed queue generic's per-user limit")
    world.scheduler.able = Capabilities(arrays=False)
    world.scheduler.refuse = lambda _: full if len(world.scheduler.live) >= 4 else None
    holder = world.holder()
    assert advance(world.paths, holder).held
    assert behind(world)[:4] == [[], ["1"], ["2"], ["3"]]
    later(world, holder)
    jobs = [Submitted.read(world.paths.submitted(n)) for n in world.paths.submissions()]
    assert [job.job for job in jobs if job] == ["1", "2", "3", "4", ""]


def single_jobs(folder: Path, trials: int, most: int, spares: int, **limits: int) -> World:
    """A world without arrays, in which nobody submits later."""
    site = {"scheduler": "pbs", "capabilities": NOBODY, "limits": limits}
    search, worker = {"max_concurrent_trials": most}, {"spares": spares}
    world = World.make(folder, Waves(trials, trials), site, searcher=search, worker=worker)
    world.scheduler.able = Capabilities(arrays=False)
    return world


def test_a_spare_job_that_is_refused_does_not_pause_what_runs(tmp_path: Path) -> None:
    """As where the job before it has ended already, and the server forgets such jobs."""
    world = single_jobs(tmp_path, 1, 1, 4)
    unknown = Refusal("invalid", "qsub: Unknown Job Id")
    world.scheduler.refuse = lambda _: unknown if world.scheduler.jobs else None
    holder = world.holder()
    advance(world.paths, holder)
    assert later(world, holder).state == "PENDING"
    assert behind(world) == [[], ["1"]], "one is tried, once"


def test_workers_that_come_after_a_refused_spare_job_are_watched(tmp_path: Path) -> None:
    world = single_jobs(tmp_path, 1, 1, 2)
    full = Refusal("limit", "qsub: would exceed queue's limit")
    world.scheduler.refuse = lambda it: full if it.name.endswith("-2") else None
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    assert behind(world) == [[], ["1"]]
    play.vanish(play.start("1"), TaskState.NODE_FAIL)
    later(world, holder, 20)
    worker = Submitted.read(world.paths.submitted(3))
    assert worker is not None and worker.job in sentinels(world)[-1].split(":")


def test_spare_jobs_follow_a_worker_whose_submitter_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = single_jobs(tmp_path, 1, 1, 2)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(spare_jobs, "chain", die)
        with pytest.raises(KeyboardInterrupt):
            advance(world.paths, world.holder())
    assert behind(world) == [[]]
    later(world, world.holder(), 20)
    assert behind(world) == [[], ["1"], ["2"]]


@pytest.mark.parametrize("there", [True, False])
def test_a_chain_of_spare_jobs_whose_submitter_died_is_completed(
    tmp_path: Path, there: bool
) -> None:
    """A spare job that is found was not a worker: it gets no spare ones of its own."""
    world = single_jobs(tmp_path, 2, 2, 4)

    def die() -> None:
        if len(world.scheduler.jobs) == 3:
            raise KeyboardInterrupt

    world.scheduler.effect = die
    with pytest.raises(KeyboardInterrupt):
        advance(world.paths, world.holder())
    world.scheduler.effect = lambda: None
    assert behind(world) == [[], [], ["1"]]
    if not there:  # it died right before
        del world.scheduler.jobs["3"]
    home = world.holder()
    later(world, home, 12)
    later(world, home)
    assert behind(world) == [[], [], ["1"], ["2"], ["3"], ["4"]]
    assert len(world.scheduler.jobs) == 7
    small = Intent.read(world.paths.sentinel(6))
    assert small is not None and small.watches == "5:6", "one, behind both chains"


def test_spare_jobs_that_have_to_wait_for_their_turn_are_submitted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = single_jobs(tmp_path, 1, 1, 4, submit_per_min=3)
    turns = iter([0.0] * 3 + [30.0] + [0.0] * 9)
    monkeypatch.setattr(submission_rate, "take", lambda _: next(turns))
    home = world.holder("once")
    said = advance(world.paths, home).actions
    assert "scheduler asked again later: 3 submissions a minute are allowed here" in str(said)
    assert (len(world.scheduler.jobs), behind(world)) == (3, [[], ["1"], ["2"], ["3"]])
    home.close()
    worker = dataclasses.replace(world.holder("worker"), submits=False)
    later(world, worker, 1)
    assert worker.unmet, "it gives way to a process that may submit"
    worker.close()
    later(world, world.holder("once"))
    assert behind(world) == [[], ["1"], ["2"], ["3"], ["4"]]
    small = Intent.read(world.paths.sentinel(5))
    assert small is not None and small.watches == "5"


def test_a_person_waits_for_the_turn_of_each_spare_job_and_of_the_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = single_jobs(tmp_path, 1, 1, 2, submit_per_min=3)
    turns = itertools.cycle([30.0, 0.0])
    monkeypatch.setattr(submission_rate, "take", lambda _: next(turns))
    monkeypatch.setattr(submission_rate.time, "sleep", lambda _: None)
    advance(world.paths, world.holder("command"))
    assert behind(world) == [[], ["1"], ["2"]]
    assert [*world.scheduler.jobs] == ["1", "2", "3", "4"]


def test_who_has_lost_the_term_while_it_waits_for_its_turn_submits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.make(tmp_path, site={"limits": {"submit_per_min": 3}})
    turns, other = iter([90.0, 0.0]), world.holder()
    first = world.holder("command")

    def sleep(seconds: float) -> None:
        world.clock.now += seconds
        first.lease.release()  # as after its time
        assert other.begin()

    monkeypatch.setattr(submission_rate, "take", lambda _: next(turns))
    monkeypatch.setattr(submission_rate.time, "sleep", sleep)
    assert not advance(world.paths, first).held
    assert not world.scheduler.jobs


def test_spare_jobs_that_wait_are_no_workers_for_more_trials(tmp_path: Path) -> None:
    world = single_jobs(tmp_path, 3, 1, 2)
    holder = world.holder()
    advance(world.paths, holder)
    assert behind(world) == [[], ["1"], ["2"]]
    commands.ask(world.paths, "set", max_concurrent_trials=3)
    later(world, holder)
    later(world, holder)
    assert behind(world) == [[], ["1"], ["2"], [], [], ["5"], ["6"]], "4 is small"


def test_spare_jobs_take_no_room_from_workers_that_wait(tmp_path: Path) -> None:
    """Whom it is left to, as a limit has it, may begin, and they may not yet."""
    world = single_jobs(tmp_path, 3, 1, 2, max_running=2)
    holder = world.holder()
    advance(world.paths, holder)
    commands.ask(world.paths, "set", max_concurrent_trials=2)
    later(world, holder, 4)
    assert behind(world)[:4] == [[], ["1"], ["2"], []]
    assert not any(world.scheduler.held.values())


def test_spare_jobs_begin_after_what_their_worker_begins_after(tmp_path: Path) -> None:
    """Or the first one would begin as soon as its worker may never do so."""
    world = single_jobs(tmp_path, 1, 1, 2)
    commands.ask(world.paths, "after", jobs=["77"])
    advance(world.paths, world.holder())
    intents = [Intent.read(world.paths.intent(number)) for number in (1, 2, 3)]
    assert [intent.after for intent in intents if intent is not None] == [["77"]] * 3


def test_the_last_job_of_a_chain_is_canceled_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None begins because the one that it was behind has ended."""
    world = single_jobs(tmp_path, 1, 1, 2)
    holder = world.holder()
    advance(world.paths, holder)
    canceled: list[str] = []
    cancel = world.scheduler.cancel
    monkeypatch.setattr(world.scheduler, "cancel", lambda job: (canceled.append(job), cancel(job)))
    commands.ask(world.paths, "pause")
    later(world, holder)
    assert canceled == ["3", "2", "1"]


def test_a_cancel_that_is_not_carried_out_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a server that was restarted: not in each turn, as a job may take a while to end."""
    world = World.make(tmp_path, Waves(1, 1))
    holder = world.holder()
    advance(world.paths, holder)
    canceled: list[str] = []
    monkeypatch.setattr(world.scheduler, "cancel", canceled.append)
    commands.ask(world.paths, "pause")
    later(world, holder, 4)
    assert canceled == ["1"]
    later(world, holder, 4)
    assert canceled == ["1", "1"]


def test_a_hold_that_the_scheduler_cannot_take_waits_as_submissions_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.make(tmp_path, Waves(1, 1))
    holder, asked = world.holder(), list[str]()
    advance(world.paths, holder)

    def hold(job: str, on: bool) -> None:
        asked.append(job)
        raise Unavailable("Unable to contact slurm controller")

    monkeypatch.setattr(world.scheduler, "hold", hold)
    commands.ask(world.paths, "hold")
    for _ in range(9):
        world.clock.now += 1
        advance(world.paths, holder)
    assert asked == ["1"]
    later(world, holder, 1)
    assert asked == ["1", "1"]


def test_the_end_takes_only_sentinels_that_wait_out_of_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    can = {"requeue": "none", "submit_from_compute": True}
    world = World.make(tmp_path, Waves(1, 1), {"scheduler": "slurm", "capabilities": can})
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    play.vanish(play.start("1"), TaskState.NODE_FAIL)
    world.scheduler.jobs["2"].states = [TaskState.COMPLETED]  # it ran after that, and left
    later(world, holder)
    names = [job.submission.name for job in world.scheduler.jobs.values()]
    assert names == [f"paper-0001-{name}" for name in ("1", "1-sentinel", "2", "2-sentinel")]
    canceled: list[str] = []
    monkeypatch.setattr(world.scheduler, "cancel", canceled.append)
    play.finish(play.claim(play.start("3")))
    assert later(world, holder, 1).closed
    assert canceled == ["4"]


def sentinels(world: World) -> list[str]:
    """The jobs that each posted sentinel is behind."""
    found = (Intent.read(world.paths.sentinel(number)) for number in world.paths.submissions())
    posted = [Submitted.read(world.paths.sentinel_submitted(n)) for n in world.paths.submissions()]
    pairs = zip(found, posted, strict=True)
    return [small.watches for small, job in pairs if small is not None and job is not None]


def test_a_sentinel_is_posted_while_a_limit_of_running_jobs_keeps_workers_out(
    tmp_path: Path,
) -> None:
    """Where nobody submits, all would end unnoticed with the workers that may run."""
    world = single_jobs(tmp_path, 3, 3, 0, max_running=2, poll_min_s=10)
    holder = world.holder()
    advance(world.paths, holder)
    later(world, holder, 3)
    assert behind(world) == [[], []]
    assert sentinels(world) == ["1:2"]


SUCCESSOR = {"requeue": "none", "submit_from_compute": True}
LIMITS = {"poll_min_s": 10}


def test_a_sentinels_place_in_the_queue_is_for_no_worker(tmp_path: Path) -> None:
    site = {"scheduler": "slurm", "capabilities": SUCCESSOR, "limits": LIMITS | {"max_submit": 3}}
    world = World.make(tmp_path, Waves(5, 5), site, searcher={"max_concurrent_trials": 5})
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    later(world, holder, 3)
    assert [job.submission.tasks for job in world.scheduler.jobs.values()] == [2, 1]
    assert sentinels(world) == ["1"]
    for worker in [play.start("1", index) for index in (0, 1)]:
        play.vanish(worker, TaskState.NODE_FAIL)
    later(world, holder, 3)
    assert [job.submission.tasks for job in world.scheduler.jobs.values()] == [2, 1, 2, 1]
    assert sentinels(world) == ["1", "3"]


def full_at(world: World, most: int) -> None:
    """Let the scheduler refuse more jobs than these, of which the site says nothing."""
    full = Refusal("limit", "AssocMaxSubmitJobLimit")

    def refuse(asked: Submission) -> Refusal | None:
        return full if len(world.scheduler.live) + asked.tasks > most else None

    world.scheduler.refuse = refuse


def test_a_sentinel_that_a_newer_term_does_not_count_on_is_canceled(tmp_path: Path) -> None:
    site = {"scheduler": "slurm", "capabilities": SUCCESSOR}
    world = World.make(tmp_path, Waves(1, 1), site)

    def another_settles_it() -> None:
        if "2" in world.scheduler.jobs:
            Submitted("77", "paper", at=files.now()).write_once(world.paths.sentinel_submitted(1))

    world.scheduler.effect = another_settles_it
    advance(world.paths, world.holder())
    assert world.scheduler.live == [("1", 0)]


def test_people_are_told_that_a_sentinel_was_refused(tmp_path: Path) -> None:
    site = {"scheduler": "slurm", "capabilities": SUCCESSOR}
    world = World.make(tmp_path, Waves(1, 1), site)
    invalid = Refusal("invalid", "Invalid account or account/partition combination")
    world.scheduler.refuse = lambda asked: invalid if "sentinel" in asked.name else None
    files.write_once(world.paths.site, load_site.dump(world.site))
    files.write_once(world.paths.config, resolved_config.dump(world.resolved.raw))
    advance(world.paths, world.holder())
    told = states.health(gather.gather(world.paths))
    assert told["health"] == "queued" and invalid.message in told["why"]
    said = findings.explain(gather.gather(world.paths))
    [found] = [one for one in said if invalid.message in one.evidence]
    assert found.finding == states.UNWATCHED and found.next.startswith("hpcdet searcher")


def test_the_next_place_in_a_full_queue_is_the_sentinels(tmp_path: Path) -> None:
    site = {"scheduler": "slurm", "capabilities": SUCCESSOR}
    world = World.make(tmp_path, Waves(8, 8), site, searcher={"max_concurrent_trials": 8})
    full_at(world, 4)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    later(world, holder, 2)
    assert (len(world.scheduler.live), sentinels(world)) == (4, [])
    worker, *_ = play.start_all()
    play.vanish(worker, TaskState.NODE_FAIL)
    later(world, holder, 2)
    assert sentinels(world) == ["1"]


def test_a_sentinel_that_finds_no_place_keeps_no_worker_out(tmp_path: Path) -> None:
    """It may be meant for another partition, which has limits of its own."""
    site = {"scheduler": "slurm", "capabilities": SUCCESSOR, "limits": LIMITS | {"max_array": 1}}
    world = World.make(tmp_path, Waves(3, 3), site, searcher={"max_concurrent_trials": 3})
    full = Refusal("limit", "QOSMaxSubmitJobPerUserLimit")
    world.scheduler.refuse = lambda asked: full if "sentinel" in asked.name else None
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    assert (len(world.scheduler.live), sentinels(world)) == (3, [])
    play.vanish(play.start("1"), TaskState.NODE_FAIL)
    later(world, holder, 3)
    assert len(world.scheduler.live) == 3


def test_the_next_place_in_a_full_queue_is_for_what_is_behind_single_jobs(tmp_path: Path) -> None:
    """Once there is one, the last worker may be left without spare jobs, but not unwatched."""
    world = single_jobs(tmp_path, 5, 5, 5, poll_min_s=10)
    full_at(world, 3)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    later(world, holder, 2)
    assert (len(world.scheduler.live), sentinels(world)) == (3, [])
    play.finish(play.claim(worker := play.start("1")))
    play.leave(worker)
    later(world, holder, 3)
    assert sentinels(world) == ["1:2:3"]
    full_at(world, 9)
    later(world, holder, 3)
    last = sentinels(world)[-1].split(":")
    workers = [
        job for job, one in world.scheduler.jobs.items() if "sent" not in one.submission.name
    ]
    assert {*workers} - {"1"} <= {*last}


def test_where_nobody_submits_per_trial_there_is_a_task_for_each_trial(tmp_path: Path) -> None:
    search = {"max_concurrent_trials": 2, "max_trials": 9}
    site = {"scheduler": "slurm", "capabilities": NOBODY, "limits": {"max_submit": 14}}
    worker = {"mode": "per_trial"}
    for limit, tasks in ((None, 2 + 7 + 2 * 5), (14, 13)):
        site["limits"] = {"max_submit": limit}
        made = tmp_path / str(limit)
        world = World.make(made, Waves(9, 2), site, searcher=search, worker=worker)
        advance(world.paths, world.holder())
        job, _ = world.scheduler.jobs.values()
        assert (job.submission.tasks, job.submission.throttle) == (tasks, 2)


def test_a_holder_that_cannot_submit_gives_way_now_and_then(tmp_path: Path) -> None:
    world = World.make(tmp_path, site={"capabilities": NOBODY})
    worker, home = dataclasses.replace(world.holder(), submits=False), world.holder()
    assert advance(world.paths, worker).held
    assert world.scheduler.live == []
    assert not advance(world.paths, worker).held
    assert advance(world.paths, home).held
    assert world.scheduler.live
    home.close()
    world.clock.now += 30
    assert advance(world.paths, worker).held


def test_a_worker_that_left_for_more_nodes_is_followed_by_a_job_behind_its_task(
    tmp_path: Path,
) -> None:
    """Once each: a later submission does not wait for it again."""
    need = {"slots_per_trial": 4, "nodes": 2, "slots_per_node": 2, "min_slots_per_trial": 2}
    world = World.make(
        tmp_path,
        Waves(count=2, width=2),
        site={
            "capabilities": {"requeue": "user", "submit_from_compute": True},
            "limits": {"poll_min_s": 10, "max_array": 1},
        },
        resources=need,
    )
    holder, play = world.holder(), world.play()
    advance(world.paths, holder)
    first, second = play.start_all()
    attempts = [play.claim(first), play.claim(second)]
    play.end(attempts[0], "resized", progressed=True)
    play.leave(first, "resized")
    later(world, holder, 1)
    assert behind(world) == [[], [], [task(first)]]
    play.end(attempts[1], "resized", progressed=True)
    play.leave(second, "resized")
    [third] = play.start_all()
    play.claim(third)
    later(world, holder, 1)
    assert behind(world) == [[], [], [task(first)], [task(second)]]
    [fourth] = play.start_all()
    play.end(play.claim(fourth), "preempted", progressed=True)
    play.leave(fourth, "spent")
    later(world, holder, 1)
    assert behind(world)[4:] == [[]]


@pytest.mark.parametrize("most", [1, 2])
def test_each_job_that_takes_the_place_of_such_workers_is_behind_one(
    tmp_path: Path, most: int
) -> None:
    """It would begin on fewer nodes, else. A single one, as of fewer trials, waits for all."""
    need = {"slots_per_trial": 4, "nodes": 2, "slots_per_node": 2, "min_slots_per_trial": 2}
    world = World.make(tmp_path, Waves(count=2, width=2), resources=need)
    world.scheduler.able = Capabilities(arrays=False)
    holder, play = world.holder(), world.play()
    advance(world.paths, holder)
    workers = play.start_all()
    for worker, goes_on in zip(workers, (True, most > 1), strict=True):
        attempt = play.claim(worker)
        if goes_on:
            play.end(attempt, "resized", progressed=True)
        else:
            play.finish(attempt)
        play.leave(worker, "resized")
    later(world, holder, 1)
    tasks = [task(worker) for worker in workers]
    assert behind(world) == [[], [], *([[one] for one in tasks] if most > 1 else [tasks])]


def test_a_submission_that_was_given_up_follows_no_worker(tmp_path: Path) -> None:
    need = {"slots_per_trial": 4, "nodes": 2, "slots_per_node": 2, "min_slots_per_trial": 2}
    site = {"capabilities": {"requeue": "user", "submit_from_compute": True}}
    world = World.make(tmp_path, Waves(count=2, width=2), site=site, resources=need)
    holder, play = world.holder(), world.play()
    advance(world.paths, holder)
    workers = play.start_all()
    for worker in workers:
        play.end(play.claim(worker), "resized", progressed=True)
        play.leave(worker, "resized")
    world.scheduler.refuse = lambda asked: (
        Refusal("width", "Invalid job array specification") if asked.tasks > 1 else None
    )
    later(world, holder, 1)
    both = [task(worker) for worker in workers]
    assert behind(world) == [[], both, both[:1], []], "on paper both tasks are job 1"
    given_up = Submitted.read(world.paths.submitted(2))
    assert given_up is not None and not given_up.job


def behind(world: World) -> list[list[str]]:
    """What each submission is behind."""
    intents = (Intent.read(world.paths.intent(number)) for number in world.paths.submissions())
    return [intent.behind for intent in intents if intent is not None]


def task(worker: WorkerPaths) -> str:
    """The task of a worker."""
    claim = WorkerClaim.read(worker.claim)
    assert claim is not None
    return claim.job
