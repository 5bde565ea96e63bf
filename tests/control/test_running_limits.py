"""Limits on jobs that run at once: several experiments of one user, on one queue."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.fleet import running_limits, running_shares
from hpcdet.control.fleet.running_limits import Room
from hpcdet.control.fleet.running_shares import Bound, RunningShare
from hpcdet.control.leader.leader import Holder
from hpcdet.control.requests import commands
from hpcdet.control.turn.controller import advance
from hpcdet.errors import Unavailable
from hpcdet.read.experiment import gather, states
from hpcdet.read.explanation import findings
from hpcdet.read.explanation.finding_view import Commands
from hpcdet.read.views import views
from hpcdet.schedulers.common.base import Capabilities, Occupancy, TaskState
from hpcdet.site.models import Site
from hpcdet.store.decisions import lease
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent, Submitted
from hpcdet.store.fs import files
from tests.control.worlds import closed, later
from tests.paper import PaperScheduler, Waves, World


class Counting(PaperScheduler):
    """It counts what runs; ``foreign``: jobs that hpcdet has not submitted."""

    foreign = 0
    of_project = 0
    answers = 0
    asked: list[str | None]

    def occupancy(self, project: str | None = None) -> Occupancy:
        if self.down:
            raise Unavailable("the scheduler is on holiday")
        self.asked = [*vars(self).get("asked", []), project]
        running = {
            number: job.states.count(TaskState.RUNNING)
            for number, job in self.jobs.items()
            if TaskState.RUNNING in job.states
        }
        waiting = [number for number, job in self.jobs.items() if TaskState.PENDING in job.states]
        beside = self.of_project if project else 0
        self.answers += 1  # each is newer than the one before
        return Occupancy(
            self.answers, {**running, "900": self.foreign, "901": beside}, frozenset(waiting)
        )

    elsewhere = 0

    def running_in(self, partition: str) -> dict[str, int]:
        """All jobs run in the partition, ``elsewhere`` of the foreign ones apart."""
        running = dict(self.occupancy().running)
        return {**running, "900": self.foreign - self.elsewhere}


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counting:
    monkeypatch.setenv("HPCDET_CACHE", str(tmp_path / "cache"))
    return Counting()


def make(scheduler: Counting, root: Path, width: int, **limits: Any) -> World:
    site = {"limits": {"poll_min_s": 10, "signal_lead_s": 20, "kill_wait_s": 10, **limits}}
    slurm = {"scheduler": "slurm", "directives": {"account": "p1"}} if scheduler.of_project else {}
    search = {"max_concurrent_trials": width, "max_trials": width}
    world = World.make(root, Waves(width, width), {**site, **slurm}, searcher=search)
    paths = ExperimentPaths(root / f"{root.name}-0001")
    files.make_folder(paths.code)
    files.replace(paths.config, b"{}")
    return dataclasses.replace(world, paths=paths, scheduler=scheduler)


def bounded(world: World, partition: str, most: int) -> World:
    """The experiment in a partition that has a limit."""
    values = {
        "partitions": {partition: {"max_running": most}, "free": {}},
        "default_partition": partition,
    }
    site = Site.model_validate({**world.site.plain(), **values})
    return dataclasses.replace(world, site=site)


def throttles(scheduler: Counting) -> dict[str, int]:
    first = {number: job.submission.throttle for number, job in scheduler.jobs.items()}
    return first | dict(scheduler.throttled)


def two(scheduler: Counting, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[World, World]:
    """Two experiments that share a limit of four jobs, each of which can wake the other."""
    first = make(scheduler, folder / "a", 4, max_running=4)
    second = make(scheduler, folder / "b", 4, max_running=4)
    worlds = {world.paths.root: world for world in (first, second)}
    monkeypatch.setattr(Holder, "open", opener(worlds))
    return first, second


def test_no_more_tasks_run_than_the_site_allows(tmp_path: Path, scheduler: Counting) -> None:
    world = make(scheduler, tmp_path, 6, max_running=4)
    advance(world.paths, world.holder())
    [job] = scheduler.jobs.values()
    assert (job.submission.tasks, job.submission.throttle) == (6, 4)


def test_jobs_of_others_take_their_part_of_the_limit(tmp_path: Path, scheduler: Counting) -> None:
    scheduler.foreign = 3
    world = make(scheduler, tmp_path, 6, max_running=4)
    holder = world.holder()
    advance(world.paths, holder)
    assert throttles(scheduler) == {"1": 1}
    scheduler.foreign = 1
    later(world, holder, 1)
    assert throttles(scheduler) == {"1": 3}
    scheduler.foreign = 4
    later(world, holder, 2)
    assert scheduler.held["1"], "no throttle stands for none"
    scheduler.reasons["1"] = "JobHeldUser"
    later(world, holder, 1)
    holder.lease.beat()
    [told] = states.waits(world.paths)
    assert (told["reason"], told["kind"]) == ("limits.max_running: 4 of site paper", "limit")
    scheduler.foreign = 2
    later(world, holder, 2)
    assert not scheduler.held["1"]
    assert throttles(scheduler) == {"1": 2}


def test_what_runs_goes_on_and_nothing_begins_where_the_limit_is_used_up(
    tmp_path: Path, scheduler: Counting
) -> None:
    world = make(scheduler, tmp_path, 4, max_running=3)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    play.claim(play.start("1", 0))
    scheduler.foreign = 3
    later(world, holder, 1)
    assert throttles(scheduler) == {"1": 1}
    assert not scheduler.held["1"]
    assert scheduler.jobs["1"].states[0] is TaskState.RUNNING


def test_single_jobs_are_as_many_as_may_run_and_surplus_ones_are_held(
    tmp_path: Path, scheduler: Counting
) -> None:
    scheduler.able = Capabilities(arrays=False)
    world = make(scheduler, tmp_path, 5, max_running=3)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    assert len(scheduler.jobs) == 3
    play.claim(play.start("1"))
    scheduler.foreign = 1
    later(world, holder, 1)
    assert scheduler.held == {"1": False, "2": False, "3": True}
    later(world, holder, 1)
    commands.ask(world.paths, "release")
    later(world, holder, 1)
    assert scheduler.held["3"], "a release by the user is none by the limit"
    scheduler.foreign = 0
    later(world, holder, 1)
    assert scheduler.held == {"1": False, "2": False, "3": False}
    assert len(scheduler.jobs) == 3


def test_experiments_share_a_limit_and_give_back_what_they_do_not_need(
    tmp_path: Path, scheduler: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two(scheduler, tmp_path, monkeypatch)
    one, other = first.holder(), second.holder()
    advance(first.paths, one)
    play = first.play()
    workers = play.start_all()
    attempts = [play.claim(worker) for worker in workers]
    turn = advance(second.paths, other)
    assert len(scheduler.jobs) == 1, "the first holds all of it"
    assert "max_running: 4" in turn.actions[-1]
    assert turn.strands
    other.close()
    [told] = states.waits(second.paths)
    assert (told["kind"], told["tasks"]) == ("limit", 4)
    # half of it is the second one's as soon as it is free: nobody of that one is there to see
    later(first, one, 1)
    assert throttles(scheduler)["1"] == 2
    for attempt, worker in zip(attempts[:2], workers[:2], strict=True):
        play.finish(attempt)
        play.leave(worker)
    later(first, one, 2)
    assert len(scheduler.jobs) == 2
    assert scheduler.jobs["2"].submission.throttle == 2
    # and all of it when the first one is over
    for attempt, worker in zip(attempts[2:], workers[2:], strict=True):
        play.finish(attempt)
        play.leave(worker)
    assert later(first, one, 1).closed
    assert closed(first)[0] == "COMPLETED"
    later(second, second.holder(), 2)
    assert throttles(scheduler)["2"] == 4


def test_an_experiment_whose_jobs_are_all_held_is_woken(
    tmp_path: Path, scheduler: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two(scheduler, tmp_path, monkeypatch)
    other, one = second.holder(), first.holder()
    advance(second.paths, other)
    scheduler.foreign = 4
    later(second, other, 1)
    assert scheduler.held == {"1": True}
    other.close()  # and nobody looks after it any more
    scheduler.foreign = 0
    advance(first.paths, one)
    assert not scheduler.held["1"], "by a turn of another one that found room"
    scheduler.foreign = 4
    other = second.holder()
    later(second, other, 1)
    later(first, one, 1)
    assert scheduler.held == {"1": True, "2": True}
    other.close()
    scheduler.foreign = 0
    commands.ask(first.paths, "cancel")
    later(first, one, 3)
    assert closed(first)[0] == "CANCELED"
    assert not scheduler.held["1"], "by one that has ended"


@pytest.mark.parametrize("lives", [False, True])
def test_one_whose_holder_has_just_died_is_woken_once_its_lease_is_over(
    tmp_path: Path, scheduler: Counting, monkeypatch: pytest.MonkeyPatch, lives: bool
) -> None:
    first, second = two(scheduler, tmp_path, monkeypatch)
    other, one = all_held(first, second)
    if not lives:
        foreign(monkeypatch, second, "worker")
    scheduler.foreign = 0
    began = second.clock.now
    commands.ask(first.paths, "cancel")
    later(first, one, 3)
    assert closed(first)[0] == "CANCELED"
    assert scheduler.held["1"] == lives, "its own holder sees to it, if it lives"
    assert (second.clock.now - began >= second.site.lease_ttl_s) == (not lives)
    assert other.lease.verify() == lives, "a holder of this process loses nothing"


@pytest.mark.parametrize("kind", ["submit", "worker"])
def test_one_whose_holder_is_in_its_last_turn_is_woken_after_that(
    tmp_path: Path, scheduler: Counting, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A ``submit`` that has found no room goes on submitting, beats, and leaves."""
    first, second = two(scheduler, tmp_path, monkeypatch)
    _, one = all_held(first, second)
    foreign(monkeypatch, second, kind)
    looks = 0

    def pass_by(seconds: float) -> None:
        nonlocal looks
        looks += 1
        second.clock.now += seconds
        beat = lease.Beat(str(looks), released=looks > 100)
        files.replace(lease.beat_path(second.paths, 1), beat.encode())

    monkeypatch.setattr(second.clock, "sleep", pass_by)
    scheduler.foreign = 0
    commands.ask(first.paths, "cancel")
    later(first, one, 3)
    assert closed(first)[0] == "CANCELED"
    assert scheduler.held["1"] == (kind == "worker"), "which goes on making turns"
    assert looks == (1 if kind == "worker" else 101)


def all_held(first: World, second: World) -> tuple[Holder, Holder]:
    """The holders of two experiments that have jobs which the limit keeps from starting."""
    other, one = second.holder(), first.holder()
    advance(second.paths, other)
    advance(first.paths, one)
    assert isinstance(second.scheduler, Counting)
    second.scheduler.foreign = 4
    later(second, other, 1)
    later(first, one, 1)
    assert second.scheduler.held["1"]
    return other, one


def foreign(monkeypatch: pytest.MonkeyPatch, world: World, kind: str) -> None:
    """Make the first term that of another process."""
    monkeypatch.setattr(lease, "_held", {})
    path = world.paths.term(1)
    term = lease.Term.read(path)
    assert term is not None
    files.replace(path, dataclasses.replace(term, kind=kind, pid=term.pid + 1).encode())


def test_a_slow_turn_of_an_experiment_that_is_woken_costs_no_lease(
    tmp_path: Path, scheduler: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make(scheduler, tmp_path / "a", 4, max_running=4)
    second = make(scheduler, tmp_path / "b", 4, max_running=4)
    first = dataclasses.replace(first, site=first.site.model_copy(update={"lease_ttl_s": 2.0}))
    worlds = {world.paths.root: world for world in (first, second)}
    monkeypatch.setattr(Holder, "open", opener(worlds))
    other = second.holder()
    advance(second.paths, other)
    scheduler.foreign = 4
    later(second, other, 1)
    other.close()
    scheduler.foreign = 0
    real = scheduler.hold

    def slow(job: str, on: bool) -> None:
        beats: set[bytes] = set()
        until = time.monotonic() + 60
        while len(beats) < 6:  # for longer than the time to live, by beats a fifth of it apart
            assert time.monotonic() < until
            beats.add(lease.beat_path(first.paths, 1).read_bytes())
            first.clock.now += 0.01
            time.sleep(0.01)
        real(job, on)

    monkeypatch.setattr(scheduler, "hold", slow)
    holder = first.holder()
    turn = advance(first.paths, holder)
    assert turn.held and "woke b-0001" in turn.actions
    assert holder.lease.verify() and holder.lease.term == 1


def test_jobs_that_a_process_died_before_releasing_are_released_by_another(
    tmp_path: Path, scheduler: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make(scheduler, tmp_path / "a", 1, max_running=4)
    second = make(scheduler, tmp_path / "b", 4, max_running=4)
    worlds = {world.paths.root: world for world in (first, second)}
    monkeypatch.setattr(Holder, "open", opener(worlds))
    other = second.holder()
    advance(second.paths, other)
    scheduler.foreign = 4
    later(second, other, 1)
    assert scheduler.held == {"1": True}

    def killed(job: str, on: bool) -> None:
        raise KeyboardInterrupt

    scheduler.foreign = 0
    with monkeypatch.context() as patched:
        patched.setattr(scheduler, "hold", killed)
        with pytest.raises(KeyboardInterrupt):
            later(second, other, 1)
    assert [one.may for one in running_shares._read(shares_file(tmp_path))] == [4]
    advance(first.paths, first.holder())
    assert not scheduler.held["1"]


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("arrays", [False, True])
def test_where_the_last_jobs_of_another_are_about_to_end_a_job_is_submitted_behind_them(
    tmp_path: Path,
    scheduler: Counting,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    arrays: bool,
) -> None:
    scheduler.able = Capabilities(arrays=arrays)
    first = make(scheduler, tmp_path / "a", most, max_running=most)
    second = make(scheduler, tmp_path / "b", most, max_running=most)
    worlds = {world.paths.root: world for world in (first, second)}
    monkeypatch.setattr(Holder, "open", opener(worlds))
    one, play = first.holder(), first.play()
    advance(first.paths, one)
    ending = list(scheduler.jobs)
    attempts = [play.claim(worker) for worker in play.start_all()]
    other = second.holder()
    assert advance(second.paths, other).strands, "what runs is not about to end"
    other.close()
    for attempt in attempts:
        play.finish(attempt)
    assert later(first, one, 1).closed, "by a worker, which the queue shows as all the others"
    begun = [intent for n in second.paths.submissions() if (intent := read(second, n))]
    assert [intent.behind for intent in begun] == [ending] * (1 if arrays else most)
    assert sum(intent.throttle for intent in begun) == most
    later(second, second.holder(), 1)
    assert not any(scheduler.held[job] for job in scheduler.jobs), "nobody would release them"
    assert len(scheduler.jobs) == len(ending) + len(begun)
    assert read(first, 1).behind == [], "nothing was about to end"


def test_a_job_behind_one_that_the_server_has_forgotten_is_replaced(
    tmp_path: Path, scheduler: Counting
) -> None:
    """PBS deletes a job whose dependency is on an unknown one, whatever end it was to wait for."""
    world = make(scheduler, tmp_path, 1, max_running=1)
    ending = RunningShare(str(world.paths.root.with_name("left")), jobs=["900"], seen=1e12)
    files.make_folder(Path(ending.root))
    files.replace(ExperimentPaths(Path(ending.root)).config, b"{}")
    running_shares._write(shares_file(tmp_path), [ending])
    scheduler.foreign = 1
    holder = world.holder()
    advance(world.paths, holder)
    assert read(world, 1).behind == ["900"]
    scheduler.foreign = 0
    scheduler.reasons["1"] = "DependencyNeverSatisfied"
    later(world, holder, 3)
    assert scheduler.jobs["1"].states == [TaskState.CANCELED]
    assert read(world, 2).behind == [] and scheduler.jobs["2"].states == [TaskState.PENDING]
    # a dependency of the user's own, by options of the scheduler, is the user's affair
    scheduler.reasons["2"] = "DependencyNeverSatisfied"
    later(world, holder, 2)
    assert holder.decided.state[:2] == (
        "PAUSED",
        "what job 2 depends on did not end well; it was to begin after that",
    )


@pytest.mark.parametrize("kind", ["sentinel", "wait"])
def test_the_small_job_behind_an_array_makes_room_for_what_it_submits(
    tmp_path: Path, scheduler: Counting, kind: str
) -> None:
    """It runs itself, and uses up the limit; nobody else is there."""
    world = make(scheduler, tmp_path, 1, max_running=1)
    holder = world.holder()
    advance(world.paths, holder)
    scheduler.jobs["1"].states = [TaskState.NODE_FAIL]
    holder.close()
    Submitted("900", "paper", at=files.now()).write_once(world.paths.sentinel_submitted(1))
    scheduler.foreign = 1
    later(world, world.holder(kind), 2)
    assert len(scheduler.jobs) == (2 if kind == "sentinel" else 1)
    if kind == "sentinel":
        assert read(world, 2).behind == ["900"]


def read(world: World, number: int) -> Intent:
    intent = Intent.read(world.paths.intent(number))
    assert intent is not None
    return intent


def test_what_a_closed_experiment_runs_is_no_room_for_those_that_run(
    tmp_path: Path, scheduler: Counting
) -> None:
    """They get the rest once it has ended: a throttle that is raised waits for nothing."""
    queue = Occupancy(1000.0, {"7": 2, "8": 1}, frozenset())
    left = RunningShare("left", jobs=["7"], seen=999.0)
    mine = RunningShare("mine", wants=3, jobs=["8"], seen=999.0)
    bounds = [Bound(2, queue.running)]
    assert running_shares._room(mine, [left, mine], bounds, queue) == (0, [])
    none = dataclasses.replace(mine, jobs=[])
    bounds = [Bound(3, {"7": 2, "5": 1})]
    assert running_shares._room(none, [left, none], bounds, queue) == (2, ["7"])
    paused = dataclasses.replace(left, wants=2)
    assert running_shares._room(none, [paused, none], bounds, queue) == (0, [])


def opener(worlds: dict[Path, World]) -> Callable[..., Holder]:
    def open(paths: Any, kind: str, **_: Any) -> Holder:
        return worlds[paths.root].holder(kind)

    return open


def test_jobs_of_all_users_of_a_project_count(tmp_path: Path, scheduler: Counting) -> None:
    scheduler.of_project = 5
    world = make(scheduler, tmp_path, 6, max_running=4, max_running_project=7)
    advance(world.paths, world.holder())
    assert throttles(scheduler)["1"] == 2
    assert scheduler.asked == [None, "p1"]


def test_a_worker_that_leaves_is_replaced_though_the_queue_still_shows_its_job(
    tmp_path: Path, scheduler: Counting
) -> None:
    scheduler.able = Capabilities(arrays=False)
    world = make(scheduler, tmp_path, 1, max_running=1)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    worker = play.start("1")
    play.end(play.claim(worker), "walltime", progressed=True)
    play.leave(worker, "time")
    scheduler.jobs["1"].states = [TaskState.RUNNING]
    advance(world.paths, holder)
    assert len(scheduler.jobs) == 2


def test_without_an_answer_of_the_queue_the_files_tell(tmp_path: Path, scheduler: Counting) -> None:
    first = make(scheduler, tmp_path / "a", 3, max_running=4)
    advance(first.paths, first.holder())
    scheduler.down = True
    second = make(scheduler, tmp_path / "b", 3, max_running=4)
    advance(second.paths, second.holder())
    [share] = running_shares._read(tmp_path / "cache" / "polling" / "running-paper.json")[1:]
    assert (share.wants, share.may) == (3, 1)


def test_a_paused_experiment_wants_nothing(tmp_path: Path, scheduler: Counting) -> None:
    first = make(scheduler, tmp_path / "a", 3, max_running=4)
    holder = first.holder()
    advance(first.paths, holder)
    commands.ask(first.paths, "pause")
    later(first, holder, 2)
    second = make(scheduler, tmp_path / "b", 4, max_running=4)
    advance(second.paths, second.holder())
    assert throttles(scheduler)["2"] == 4


def test_a_partition_has_a_limit_of_its_own(tmp_path: Path, scheduler: Counting) -> None:
    scheduler.foreign, scheduler.elsewhere = 5, 3
    world = bounded(make(scheduler, tmp_path / "a", 6), "gpu", 4)
    holder = world.holder()
    advance(world.paths, holder)
    assert throttles(scheduler) == {"1": 2}, "two foreign jobs run in it"
    assert running_limits.words(holder) == "partitions.gpu.max_running: 4 of site paper"
    free = bounded(make(scheduler, tmp_path / "b", 6), "gpu", 4)
    free = dataclasses.replace(free, site=free.site.changed({"default_partition": "free"}, {}))
    advance(free.paths, free.holder())
    assert throttles(scheduler)["2"] == 6


def test_experiments_share_the_limit_of_their_partition_only(
    tmp_path: Path, scheduler: Counting
) -> None:
    first = bounded(make(scheduler, tmp_path / "a", 4, max_running=6), "gpu", 2)
    second = bounded(make(scheduler, tmp_path / "b", 5, max_running=6), "cpu", 5)
    advance(first.paths, first.holder())
    advance(second.paths, second.holder())
    assert throttles(scheduler) == {"1": 2, "2": 4}, "six in all, two of them in gpu"
    both = running_shares._read(shares_file(tmp_path))
    assert [(one.partition, one.may) for one in both] == [("gpu", 2), ("cpu", 4)]
    told = Bound(3, {"1": 2, "8": 1}, partition="cpu")
    assert told.room(both[1], both, None) == 0, "jobs of the other share run there, too"
    assert told.room(both[0], both, None) == both[0].wants, "it is no limit for this one"


def test_an_experiment_that_leaves_a_partition_gives_its_share_back(
    tmp_path: Path, scheduler: Counting
) -> None:
    world = bounded(make(scheduler, tmp_path, 4), "gpu", 2)
    holder = world.holder()
    advance(world.paths, holder)
    assert [one.may for one in running_shares._read(shares_file(tmp_path))] == [2]
    moved = world.site.changed({"default_partition": "free"}, {})
    holder.hands = dataclasses.replace(holder.hands, site=moved)
    later(world, holder, 1)
    assert running_shares._read(shares_file(tmp_path)) == []
    assert dict(scheduler.throttled) == {"1": 4}


def shares_file(tmp_path: Path) -> Path:
    folder = tmp_path / "cache" / "polling"
    files.make_folder(folder)
    return folder / "running-paper.json"


def reasons(world: World, holder: Holder) -> list[tuple[str, str]]:
    holder.lease.beat()
    return [(one["reason"], one["kind"]) for one in states.waits(world.paths)]


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, files.LARGEST + 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"[1, null, {}, []]"),
        lambda path: path.write_bytes(b'[{"root": "/x", "jobs": 7}, {"root": "/y", "may": "a"}]'),
        lambda path: path.write_bytes(b"[{"),
        huge,
        os.mkfifo,
        lambda path: path.symlink_to(path),
    ],
)
def test_a_damaged_file_of_shares_is_written_anew(
    tmp_path: Path, scheduler: Counting, damage: Callable[[Path], None]
) -> None:
    damage(shares_file(tmp_path))
    world = make(scheduler, tmp_path, 6, max_running=4)
    advance(world.paths, world.holder())
    assert throttles(scheduler) == {"1": 4}
    [share] = running_shares._read(shares_file(tmp_path))
    assert (share.wants, share.may) == (6, 4)


def test_an_experiment_that_cannot_be_reached_takes_no_part(
    tmp_path: Path, scheduler: Counting
) -> None:
    gone = RunningShare(str(tmp_path / ("x" * 300)), wants=4, may=4, jobs=["1"], seen=1e12)
    running_shares._write(shares_file(tmp_path), [gone])
    world = make(scheduler, tmp_path, 6, max_running=4)
    advance(world.paths, world.holder())
    assert throttles(scheduler) == {"1": 4}


def test_where_shares_cannot_be_written_nothing_new_begins_and_the_rest_goes_on(
    tmp_path: Path, scheduler: Counting
) -> None:
    world = make(scheduler, tmp_path, 6, max_running=4)
    shares_file(tmp_path).mkdir()
    holder = world.holder()
    advance(world.paths, holder)
    assert not scheduler.jobs
    [(reason, kind)] = reasons(world, holder)
    assert "running-paper.json: the shares of running jobs cannot be written: " in reason
    assert kind == "limit"
    shares_file(tmp_path).rmdir()
    later(world, holder, 1)
    assert throttles(scheduler) == {"1": 4}
    play = world.play()
    workers = play.start_all()
    attempts = [play.claim(worker) for worker in workers]
    shares_file(tmp_path).unlink()
    shares_file(tmp_path).mkdir()
    later(world, holder, 1)
    assert throttles(scheduler) == {"1": 4}
    for attempt, worker in zip(attempts, workers, strict=True):
        play.finish(attempt)
        play.leave(worker)
    assert later(world, holder, 1).closed, "its share is given back in vain, and no more than that"
    assert closed(world)[0] == "COMPLETED"


def test_a_stopped_process_does_not_stop_the_others(
    tmp_path: Path, scheduler: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_shares, "LOCK_S", 0.2)
    locked = shares_file(tmp_path).with_suffix(".lock")
    hold = (
        "import fcntl, os, signal, sys; file = open(sys.argv[1], 'w');"
        "fcntl.flock(file, fcntl.LOCK_EX); os.kill(os.getpid(), signal.SIGSTOP)"
    )
    world = make(scheduler, tmp_path, 6, max_running=4)
    holder = world.holder()
    with subprocess.Popen([sys.executable, "-c", hold, locked]) as stopped:
        os.waitpid(stopped.pid, os.WUNTRACED)
        advance(world.paths, holder)
        stopped.send_signal(signal.SIGKILL)
    assert (
        not scheduler.jobs and "another process has kept it locked" in reasons(world, holder)[0][0]
    )
    later(world, holder, 1)
    assert throttles(scheduler) == {"1": 4}, "a dead process keeps no lock"


def test_a_file_system_without_locks_will_do(
    tmp_path: Path, scheduler: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    world = make(scheduler, tmp_path, 6, max_running=4)
    holder = world.holder()
    monkeypatch.setattr(fcntl, "flock", flock)
    advance(world.paths, holder)
    assert throttles(scheduler) == {"1": 4}


@pytest.mark.parametrize("partition", [False, True])
def test_the_limit_is_named_as_long_as_it_keeps_jobs_away(
    tmp_path: Path, scheduler: Counting, partition: bool
) -> None:
    scheduler.foreign = 4
    world = make(scheduler, tmp_path, 6, **({} if partition else {"max_running": 4}))
    world = bounded(world, "gpu", 4) if partition else world
    holder, limit = world.holder(), "partitions.gpu" if partition else "limits"
    for _ in range(2):  # the second one before the scheduler may be asked again
        advance(world.paths, holder)
        assert reasons(world, holder) == [(f"{limit}.max_running: 4 of site paper", "limit")]
    seen, more = gather.gather(world.paths), f"more may not be submitted yet ({limit}.max_running"
    said = states.health(seen)
    assert said["health"] == "queued" and more in said["why"]
    [finding] = findings._queue(seen, views.status(world.paths), Commands())
    assert more in finding.finding and finding.next.startswith("hpcdet searcher run --once ")
    said = states.health(seen, time.time() + 2 * states.FRESH_S)
    assert said["health"] == "stalled" and more in said["why"]


def test_a_limit_that_cannot_be_judged_is_named_only_where_workers_are_missing(
    tmp_path: Path, scheduler: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> Room:
        raise Unavailable("no answer", where="limits.max_running")

    world = make(scheduler, tmp_path, 2, max_running=4)
    holder = world.holder()
    advance(world.paths, holder)
    monkeypatch.setattr(running_limits, "room", away)
    later(world, holder, 1)
    assert "limit" not in dict(reasons(world, holder)).values()
    scheduler.cancel("1", 0)
    later(world, holder, 2)
    assert ("limits.max_running: no answer", "limit") in reasons(world, holder)


def test_what_one_gives_away_is_free_once_an_answer_shows_it(tmp_path: Path) -> None:
    """A task may have begun since the answer in which it waited."""
    file, bounds = tmp_path / "running.json", lambda running: [Bound(2, running)]
    for root in ("first", "second"):
        files.make_folder(tmp_path / root)
        (tmp_path / root / "experiment.yaml").write_text("{}")

    def agree(root: str, wants: int, jobs: list[str], at: float, running: dict[str, int]) -> int:
        mine = RunningShare(str(tmp_path / root), wants=wants, jobs=jobs, seen=1000.0)
        queue = Occupancy(at, running, frozenset({"7"}))
        return running_shares.agree(file, mine, bounds(running), queue).may

    assert agree("first", 3, [], 1000.0, {}) == 2
    assert agree("second", 2, [], 1000.5, {}) == 0
    stale = 1000.5, {"7": 1}  # the second task of job 7 runs by now
    assert agree("first", 3, ["7"], *stale) == 1
    assert agree("second", 2, [], *stale) == 0
    assert agree("second", 2, [], 1001.0, {"7": 2}) == 0
    assert agree("second", 2, [], 1002.0, {"7": 1}) == 1


def test_shares_are_dealt_in_turn_and_dead_experiments_hold_nothing(tmp_path: Path) -> None:
    dealt = running_shares._dealt(7, {"a": 1, "b": 9, "c": 9})
    assert dealt == {"a": 1, "b": 3, "c": 3}
    assert running_shares._dealt(1, {"a": 2, "b": 2}) == {"a": 1, "b": 0}
    assert running_shares._dealt(-2, {"a": 2}) == {"a": 0}
    queue = Occupancy(1000.0, {"7": 2, "5": 1}, frozenset({"8"}))
    dead = RunningShare("dead", wants=4, may=4, jobs=["1"], seen=10.0)
    there = RunningShare("there", wants=4, may=4, jobs=["7"], seen=10.0)
    new = RunningShare("new", wants=1, may=1, jobs=["9"], seen=999.0)
    assert [one.holds(queue, queue.running) for one in (dead, there, new)] == [0, 4, 1]
    assert dead.holds(None, {}) == 4, "who cannot ask does not know"
    mine = RunningShare("mine", wants=9, seen=1001.0)
    bound = Bound(20, queue.running)
    # one of 20 is another job's; the others want 9, and hold 5
    assert bound.room(mine, [dead, there, new, mine], queue) == 9
    assert Bound(10, queue.running).room(mine, [dead, there, new, mine], queue) == 2
