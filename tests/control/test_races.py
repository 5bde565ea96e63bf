"""Several controllers at once, sleepers that wake, and any order of things: decided once."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdet.control.leader.leader import Holder
from hpcdet.control.requests import commands
from hpcdet.control.turn import write_controls
from hpcdet.control.turn.controller import Turn, advance
from hpcdet.control.upkeep import notify, packing
from hpcdet.errors import UsageError
from hpcdet.schedulers.common.base import TaskState
from hpcdet.store.decisions import chain
from hpcdet.store.decisions.lease import Lease
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import (
    Claim,
    Closed,
    Command,
    End,
    Intent,
    Reopened,
    Submitted,
    WorkerEnd,
)
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import packed
from hpcdet.store.trials import standing as trials
from hpcdet.store.trials.standing import standing
from tests.experiments import until
from tests.paper import Waves, World


@pytest.fixture(autouse=True)
def _no_plug_is_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def check_decided_once(world: World, trials: int) -> None:
    """The chain holds each fact and each decision once, and files agree with it."""
    lines = chain.read(world.paths)
    events = [line["event"] for line in lines if line["kind"] == "event"]
    starts = [event for event in events if event["kind"] == "start"]
    ends = Counter(event["trial"] for event in events if event["kind"] == "segment_end")
    reports = Counter(
        (event["trial"], event["length"]["batches"]) for event in events if "length" in event
    )
    actions = [line["action"] for line in lines if line["kind"] == "action"]
    created = [action["trial"] for action in actions if action["kind"] == "create"]
    assert len(starts) == 1
    assert created == list(range(1, trials + 1))
    assert ends == Counter(range(1, trials + 1))
    assert set(reports.values()) <= {1}
    assert [trial.number for trial in world.paths.trials()] == created


def holds_back(world: World) -> None:
    """No job is unknown or doubled: what was submitted and lives belongs to one intent each."""
    names = Counter(
        job.submission.name
        for job in world.scheduler.jobs.values()
        if not all(state.final for state in job.states)
    )
    assert set(names.values()) <= {1}


@pytest.mark.parametrize("controllers", [2, 4])
def test_controllers_at_once_decide_once(tmp_path: Path, controllers: int) -> None:
    world = World.make(tmp_path, Waves(count=8, width=2))
    over = threading.Event()
    troubles: list[BaseException] = []
    turns = [0] * controllers

    def turn_for_ever(number: int) -> None:
        rng, holder = random.Random(number), world.holder(f"c{number}")
        try:
            while not over.is_set():
                turns[number] += advance(world.paths, holder).held
                if rng.random() < 0.5:
                    holder.close()
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=turn_for_ever, args=(n,)) for n in range(controllers)]
    for thread in threads:
        thread.start()
    play, workers = world.play(), list[WorkerPaths]()
    try:
        until(lambda: sum(map(bool, turns)) >= 2 or troubles)  # they do take turns
        while not world.paths.closed.exists() and not troubles:
            workers += play.start_all()
            for worker in workers:
                if any(standing(t).state == "runnable" for t in world.paths.trials()):
                    play.finish(play.claim(worker))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not troubles
    check_decided_once(world, trials=8)
    assert [job.submission.tasks for job in world.scheduler.jobs.values()] == [2]


def test_a_turn_over_many_trials_keeps_the_lease_however_slow_each_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Takeover, resume, submission and close, each of which takes longer than a term lasts."""
    settings = {"searcher": {"max_concurrent_trials": 12}, "budget": {"slot_hours": 1000}}
    world = World.make(tmp_path, Waves(count=12, width=12), **settings)
    play, ttl_s = world.play(), world.site.lease_ttl_s
    rival = Lease(world.paths, "rival", ttl_s, world.clock)
    first = world.holder()
    advance(world.paths, first)
    commands.ask(world.paths, "pause")
    advance(world.paths, first)
    first.close()
    turning = False

    def turn() -> Turn:
        nonlocal turning
        turning = True
        found = advance(world.paths, second)
        turning = False
        return found

    def slow(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            world.clock.now += 0.1 * ttl_s * turning
            assert not turning or not rival.try_acquire()
            return real(*args, **kwargs)

        return call

    for where, name in (
        (trials, "claimed"),
        (write_controls, "in_force"),
        (trials, "_standing"),
        (packing, "pack"),
    ):
        monkeypatch.setattr(where, name, slow(getattr(where, name)))
    second = world.holder()
    assert turn().held
    commands.ask(world.paths, "resume")
    assert turn().wanted == 12
    for worker in play.start_all():
        play.finish(play.claim(worker))
    assert turn().state == "COMPLETED"
    assert max(packed.numbers(world.paths.terms, ".json")) == 2


def test_what_is_asked_for_while_it_closes_is_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def hook(paths: ExperimentPaths, _: str, __: str, why: str, **___: object) -> int:
        told.append(why)
        if len(told) == 1:
            commands.ask(paths, "retry", reopen=True)
        return 0

    monkeypatch.setattr(notify, "run_hook", hook)
    wishes = {"command": "true", "on": ["end"]}
    world = World.make(tmp_path, Waves(count=1, width=1), max_restarts=0, notify=wishes)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    [worker] = play.start_all()
    play.fail(play.claim(worker))
    assert not advance(world.paths, holder).closed
    play.finish(play.claim(worker))
    assert advance(world.paths, holder).state == "COMPLETED"
    assert [why.partition(":")[0] for why in told] == ["ERROR", "COMPLETED"]
    assert world.paths.times_reopened == 0


def test_what_is_asked_for_right_before_it_is_closed_reopens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1), max_restarts=0)
    play, holder, write = world.play(), world.holder(), Closed.write_once

    def written(record: Closed, path: Path) -> bool:
        if path.name == "closed.json":  # who asks finds it open, before and after
            assert commands.ask(world.paths, "retry", reopen=True) == 1
        return write(record, path)

    monkeypatch.setattr(Closed, "write_once", written)
    advance(world.paths, holder)
    [worker] = play.start_all()
    play.fail(play.claim(worker))
    assert not advance(world.paths, holder).closed
    play.finish(play.claim(worker))
    assert advance(world.paths, holder).closed
    found = Closed.read(world.paths.root / "closed-2.json")
    assert found is not None and found.state == "COMPLETED"
    assert world.paths.times_reopened == 1


def test_what_is_asked_for_as_it_is_closed_reopens_it_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    holder, write = world.holder(), Command.write_once
    advance(world.paths, holder)

    def close() -> None:
        Closed("COMPLETED", "", 1).write_once(world.paths.closed)

    def obey() -> None:
        assert [advance(world.paths, holder).closed for _ in range(2)] == [False, True]

    meanwhile = close

    def written(command: Command, path: Path) -> bool:
        made = write(command, path)
        meanwhile()
        return made

    monkeypatch.setattr(Command, "write_once", written)
    assert commands.ask(world.paths, "retry", reopen=True) == 1
    assert world.paths.times_reopened == 1 and not world.paths.closed.exists()
    with pytest.raises(UsageError, match="cannot pause: the experiment is COMPLETED already"):
        commands.ask(world.paths, "pause")
    assert packed.numbers(world.paths.commands, ".json") == [1]
    Reopened(1).write_once(world.paths.reopening)
    meanwhile = obey
    assert commands.ask(world.paths, "cancel") == 2, "it is closed because of this"


class Sleeper:
    """Runs something right before an effect on the file system: meanwhile the process sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.at, self.armed = 0, 0, False
        self.meanwhile = lambda: None
        for name in ("link", "replace", "write"):
            monkeypatch.setattr(os, name, self.wrap(getattr(os, name)))

    def wrap(self, real: object) -> object:
        def call(*args: object, **kwargs: object) -> object:
            self.effect()
            return real(*args, **kwargs)  # type: ignore[operator]

        return call

    def effect(self) -> None:
        if self.armed:
            self.count += 1
            if self.count == self.at:
                self.armed = False
                self.meanwhile()


def test_a_holder_that_sleeps_anywhere_in_a_turn_wakes_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it sleeps, another takes the next term and finishes the turn; nothing is doubled."""
    sleeper = Sleeper(monkeypatch)

    def story(folder: Path, at: int) -> int:
        world = World.make(folder, Waves(count=3, width=2, stop_above=1.0))
        play, first, second = world.play(), world.holder("first"), world.holder("second")
        world.scheduler.effect = sleeper.effect
        slept: list[int] = []

        def take_over() -> None:
            advance(world.paths, second)
            world.clock.now += 101
            turn = advance(world.paths, second)
            assert turn.held or turn.closed
            slept.append(first.lease.term)

        sleeper.at, sleeper.count, sleeper.meanwhile = at, 0, take_over

        def turn() -> None:
            sleeper.armed = not slept
            former = len(slept)
            held = advance(world.paths, first).held
            sleeper.armed = False
            if len(slept) > former:
                assert not held or not first.lease.verify()
                assert first.lease.term == 0
            elif slept:
                advance(world.paths, second)
            assert len(world.scheduler.live) <= 2
            holds_back(world)

        turn()
        one, two = play.start_all()
        stopped, failing = play.claim(one, 1), play.claim(two, 2)
        play.report(stopped, 10, 3.0)
        play.fail(failing)
        turn()
        play.end(stopped, "stopped")
        turn()
        for worker in (one, two):
            play.finish(play.claim(worker))
        turn()
        assert world.paths.closed.exists()
        check_decided_once(world, trials=3)
        for number in world.paths.submissions():
            submitted = Submitted.read(world.paths.submitted(number))
            assert submitted is not None
        return sleeper.count

    effects = story(tmp_path / "awake", 0)
    assert effects > 40
    for at in range(1, effects + 1):
        story(tmp_path / str(at), at)


class Chaos:
    """Anything may happen in any order, but the laws of workers and schedulers."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        method = Waves(count=4, width=2, stop_above=0.9)
        requeue = self.rng.choice(["user", "none"])
        site = {"capabilities": {"requeue": requeue}}
        self.world = World.make(root, method, site, max_restarts=3)
        self.play = self.world.play()
        self.holder = self.world.holder()
        self.steps = [self.turn] * 4 + [
            *(self.start, self.start, self.work, self.work, self.work, self.die, self.pass_time),
            *(self.leave, self.vanish, self.stale, self.command, self.sleep),
        ]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.rng.choice(self.steps)()
            self.check()
        self.world.scheduler.stale = False
        commands.ask(self.world.paths, "resume") if not self.closed else None
        for _ in range(300):
            if self.closed:
                break
            self.pass_time()
            self.turn()
            self.start()
            self.work()
            self.check()
        assert self.closed
        check_decided_once(self.world, trials=4)

    @property
    def closed(self) -> bool:
        return self.world.paths.closed.exists()

    def check(self) -> None:
        assert len(self.world.scheduler.live) <= 2 + 1  # one may be lost without our knowing
        for trial in self.world.paths.trials():
            open_ = [a for a in trial.attempts() if a.claim.exists() and not a.end.exists()]
            assert len(open_) <= 1

    def turn(self) -> None:
        advance(self.world.paths, self.holder)

    def start(self) -> None:
        self.play.start_all()

    def running(self) -> list[WorkerPaths]:
        """Workers that live: their task runs and is theirs."""
        found = []
        for worker in self.world.paths.workers():
            intent = Intent.read(self.world.paths.intent(worker.submission))
            assert intent is not None
            for job in self.world.scheduler.jobs.values():
                if job.submission.tag != intent.tag:
                    continue
                mine = job.restarts[worker.index] == worker.incarnation
                if mine and job.states[worker.index] is TaskState.RUNNING:
                    found.append(worker)
        return [w for w in found if WorkerEnd.read(w.end) is None]

    def work(self) -> None:
        """A living worker goes on with its attempt, or takes one."""
        for worker in self.running():
            mine = None
            for trial in self.world.paths.trials():
                found = standing(trial)
                claim = Claim.read(trial.attempt(found.open_attempt).claim)
                if found.open_attempt and claim and claim.worker == worker.name:
                    mine = trial.attempt(found.open_attempt)
            if mine is None:
                if any(standing(t).state == "runnable" for t in self.world.paths.trials()):
                    self.play.claim(worker)
                continue
            match self.rng.randrange(6):
                case 0 | 1:
                    self.play.report(mine, self.rng.randrange(1, 100), self.rng.random())
                case 2 | 3:
                    self.play.finish(mine)
                case 4:
                    self.play.fail(mine)
                case 5:
                    self.play.end(mine, "preempted", progressed=True)

    def leave(self) -> None:
        for worker in self.running()[:1]:
            claims = [
                Claim.read(a.claim)
                for t in self.world.paths.trials()
                for a in t.attempts()
                if End.read(a.end) is None
            ]
            if worker.name not in [claim.worker for claim in claims if claim]:
                self.play.leave(worker, "idle")

    def vanish(self) -> None:
        """A node dies, a job is preempted: nobody says goodbye."""
        for worker in self.running()[:1]:
            requeue = self.rng.random() < 0.5
            if requeue and self.world.site.capabilities.requeue == "user":
                for job in self.world.scheduler.jobs.values():
                    if job.submission.name.endswith(f"-{worker.submission}"):
                        job.states[worker.index] = TaskState.PENDING
                        job.restarts[worker.index] += 1
            else:
                self.play.vanish(worker, self.rng.choice([TaskState.NODE_FAIL, TaskState.GONE]))

    def stale(self) -> None:
        self.world.scheduler.stale = not self.world.scheduler.stale

    def pass_time(self) -> None:
        self.world.clock.now += 11
        self.holder.lease.beat()

    def sleep(self) -> None:
        """The controller is stopped for long, wakes, and goes on under a new term."""
        self.world.clock.now += 80

    def die(self) -> None:
        self._die(self.holder)
        self.holder = self.world.holder()
        self.turn()
        self.world.clock.now += 101

    @staticmethod
    def _die(holder: Holder) -> None:
        if holder._log is not None:
            holder._log.chain.close()

    def command(self) -> None:
        if not self.closed:
            commands.ask(self.world.paths, self.rng.choice(["pause", "resume", "resume"]))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_in_any_order_each_thing_is_decided_once_and_the_search_ends(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    world = Chaos(tmp_path_factory.mktemp("chaos"), seed)
    world.run(steps=60)
    closed = Closed.read(world.world.paths.closed)
    assert closed is not None
    assert closed.state in ("COMPLETED", "ERROR")
