"""Turns that look only at what nudges tell of decide as turns that look at everything."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.leader.lost_workers import FleetView, Watch
from hpcdet.control.leader.trial_cache import ALL_S, Sight
from hpcdet.control.requests import commands
from hpcdet.control.turn import write_controls
from hpcdet.control.turn.controller import advance
from hpcdet.schedulers.common.base import TaskState
from hpcdet.store.decisions import chain, wakeup
from hpcdet.store.decisions.wakeup import Told
from hpcdet.store.folder.layout import TrialPaths
from hpcdet.store.folder.records import Best, Control
from hpcdet.store.fs import freshness, journal
from hpcdet.store.trials.standing import standing
from tests.builders import Builder
from tests.control.worlds import begun, control, end_of, events, later
from tests.paper import Promotion, Waves, World


class Looks:
    """What is opened to find out what is new: folders, and journals."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        looks, read = freshness.looks, journal.Reader.read

        def look(paths: Sequence[str]) -> list[freshness.Look]:
            self.count += len(paths)
            return looks(paths)

        def reads(reader: journal.Reader, *args: Any, **how: Any) -> list[journal.Line]:
            self.count += 1
            return read(reader, *args, **how)

        monkeypatch.setattr(freshness, "looks", look)
        monkeypatch.setattr(journal.Reader, "read", reads)

    def of(self, turn: Any) -> int:
        before = self.count
        turn()
        return self.count - before


def test_a_turn_looks_at_the_trials_that_it_was_told_of_and_at_all_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.make(tmp_path, Waves(count=9, width=9), searcher={"max_concurrent_trials": 9})
    play, holder, workers = begun(world)
    holder.sight = Sight(world.paths, world.clock)
    attempts = [play.claim(worker) for worker in workers]
    looks = Looks(monkeypatch)

    def turn(after: float = 11) -> None:
        world.clock.now += after
        holder.lease.beat()
        assert advance(world.paths, holder, everything=False).held

    def heard() -> list[tuple[int, int]]:
        return [(e["trial"], e["length"]["batches"]) for e in events(world) if "length" in e]

    turn()
    turn(ALL_S + 1)
    turn()
    assert [looks.of(turn) for _ in range(2)] == [0, 0]
    play.report(attempts[3], 10)
    assert looks.of(turn) == 1 and heard() == [(4, 10)]
    play.report(attempts[5], 10)
    wakeup.told(world.paths)  # it is lost
    assert looks.of(turn) == 0 and heard() == [(4, 10)]
    assert looks.of(turn) == 18 and heard() == [(4, 10), (6, 10)], "folders and journals of all"
    play.end(attempts[0], "preempted", progressed=True)
    play.report(attempts[1], 10)
    for name in ("report-77", "attempt-88", "report-0", "nonsense"):
        wakeup.give(world.paths, name)  # of trials that there are not, and of none at all
    assert 0 < looks.of(turn) < 9
    assert heard() == [(4, 10), (6, 10), (2, 10)]
    assert play.claim(workers[0]).number == 2
    turn()
    assert holder.sight.trial(1).standing.open_attempt == 2
    wakeup.tell(world.paths, 5, "report")
    play.report(attempts[6], 10)
    wakeup.told(world.paths)  # the holder took it, and died before it looked
    successor = world.holder()
    holder.close()
    advance(world.paths, successor, everything=False)
    assert heard()[-1] == (7, 10), "a new term looks at everything"


def test_a_folder_that_looks_as_before_for_a_while_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As caches of a network file system show it: the nudge is seen, the end not yet."""
    built, now = Builder(tmp_path / "digits-7f3a"), [0.0]
    trial, sight = built.trial(), Sight(built.paths, lambda: now[0])
    attempt = trial.attempt()

    def look(told: Told = wakeup.NOTHING, after: float = 15) -> str:
        now[0] += after
        sight.begin(told, everything=False)
        return sight.trial(1).standing.state

    assert [look(), look(), look(after=ALL_S), look()] == ["running"] * 4
    real, [stale], caches = freshness.looks, freshness.looks([str(attempt.paths.root)]), [True]
    monkeypatch.setattr(freshness, "looks", lambda paths: [stale] if caches[0] else real(paths))
    attempt.end("preempted")
    assert look(Told(attempts={1})) == "running"
    assert look() == "running"
    caches[0] = False
    assert look() == "runnable", "and not only when all are looked at"


@pytest.mark.parametrize("completes", [True, False])
def test_a_worker_whose_last_nudge_was_lost_has_left_and_is_not_lost(
    tmp_path: Path, completes: bool
) -> None:
    world = World.make(tmp_path, Waves(count=3, width=2))
    play, holder, workers = begun(world)
    holder.sight = Sight(world.paths, world.clock)
    attempts = [play.claim(worker) for worker in workers]
    for after in (11, 11, ALL_S + 1, *[11] * 5):
        world.clock.now += after
        holder.lease.beat()
        assert advance(world.paths, holder, everything=False).held
        if after > ALL_S:
            play.finish(attempts[0], 0.5)
            wakeup.told(world.paths)  # it is lost
            play.leave(workers[0])
            if not completes:  # the scheduler is slower
                play.vanish(workers[0], TaskState.RUNNING)
                holder.watch.files._asked_end.clear()
    assert holder.sight.trial(1).standing.state == "done"
    assert not [line for line in chain.read(world.paths) if line["kind"] == "lost"]
    assert control(world, 3).action == "run", "within the minute"


def test_a_job_is_not_canceled_whose_worker_has_claimed_a_trial_unheard(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=2, width=2))
    play, holder, workers = begun(world)
    holder.sight = Sight(world.paths, world.clock)
    advance(world.paths, holder, everything=False)
    attempt = play.claim(workers[0])
    wakeup.told(world.paths)  # it is lost
    commands.ask(world.paths, "pause")
    for _ in range(2):
        world.clock.now += 11
        holder.lease.beat()
        assert advance(world.paths, holder, everything=False).state == "STOPPING"
    assert len(world.scheduler.live) == len(workers), "it is to save first"
    play.end(attempt, "paused", progressed=True)
    advance(world.paths, holder, everything=False)
    assert not world.scheduler.live


def test_who_has_left_a_nudge_is_answered_before_jobs_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.make(tmp_path, Promotion(4, 2, 1))
    play, holder, workers = begun(world)
    one, two = [play.claim(worker) for worker in workers]
    advance(world.paths, holder)
    play.report(one, 50, 0.1)
    play.report(two, 50, 0.5)
    look, heard = Watch.look, list[tuple[str, Best | None]]()

    def looking(watch: Watch, *args: Any) -> FleetView:
        heard.append((control(world, 2).action, Best.read(world.paths.best)))
        return look(watch, *args)

    monkeypatch.setattr(Watch, "look", looking)
    advance(world.paths, holder, everything=True)
    [(action, best)] = heard
    assert action == "pause" and best is not None and best.trial == 1


def test_who_is_gone_is_closed_though_a_trial_that_leaves_nudges_cannot_be_read(
    tmp_path: Path,
) -> None:
    world = World.make(tmp_path, Waves(count=2, width=2))
    play, holder, workers = begun(world)
    one, two = [play.claim(worker) for worker in workers]
    advance(world.paths, holder)
    one.journal.mkdir()
    play.vanish(workers[1], TaskState.NODE_FAIL)
    for _ in range(4):
        wakeup.tell(world.paths, 1, "report")
        turn = later(world, holder, 1)
        assert turn.state == "PAUSED" and "a folder instead of a file" in " ".join(turn.actions)
    assert end_of(two) == "node_fail"


def test_a_control_is_read_again_when_its_trial_has_changed_and_not_for_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    play, holder, [worker] = begun(world)
    attempt = play.claim(worker)
    play.report(attempt, 5)  # its journal begins
    holder.sight = Sight(world.paths, world.clock)
    for after in (ALL_S + 1, 11, ALL_S + 1, 11):  # what has just changed is read twice
        world.clock.now += after
        holder.lease.beat()
        advance(world.paths, holder)
    in_force, read = write_controls.in_force, list[TrialPaths]()

    def reading(trial: TrialPaths) -> Control | None:
        read.append(trial)
        return in_force(trial)

    monkeypatch.setattr(write_controls, "in_force", reading)
    play.report(attempt, 10)
    advance(world.paths, holder)
    assert not read and [e["trial"] for e in events(world) if "length" in e] == [1, 1]
    trial = world.paths.trial(1)
    stale = dataclasses.replace(control(world, 1), action="pause")  # by who slept over its term
    assert stale.write_once(trial.control(len(list(trial.controls.iterdir())) + 1))
    play.end(attempt, "paused", progressed=True)
    advance(world.paths, holder)
    assert control(world, 1).action == "run"


def test_a_control_by_who_slept_over_its_term_is_found_when_a_user_resumes(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    _, holder, _ = begun(world)
    holder.sight = Sight(world.paths, world.clock)
    for after in (ALL_S + 1, 11, ALL_S + 1, 11):  # what has just changed is read twice
        world.clock.now += after
        holder.lease.beat()
        advance(world.paths, holder)
    trial, said = world.paths.trial(1), control(world, 1)
    assert dataclasses.replace(said, action="pause").write_once(trial.control(2))
    commands.ask(world.paths, "resume")
    later(world, holder, 1)
    assert control(world, 1).action == "run"


@pytest.mark.parametrize("seed", range(3))
def test_what_is_decided_by_nudges_is_what_is_decided_by_looking_at_everything(
    tmp_path: Path, seed: int
) -> None:
    def run(name: str, *, everything: bool) -> list[dict[str, Any]]:
        dice = random.Random(seed)
        world = World.make(
            tmp_path / name, Promotion(6, 3, 2), searcher={"max_concurrent_trials": 3}
        )
        play, holder = world.play(), world.holder()
        running: dict[str, Any] = {}
        for _ in range(50):
            if advance(world.paths, holder, everything=everything).closed:
                break
            world.clock.now += 11
            holder.lease.beat()
            play.start_all()
            for worker in holder.watch.files.newest.values():
                one = running.get(worker.name)
                if one is None:
                    waits = [
                        trial.number
                        for trial in world.paths.trials()
                        if standing(trial).state == "runnable"
                    ]
                    if waits:
                        running[worker.name] = play.claim(worker, waits[0])
                elif (fate := dice.random()) < 0.4:
                    play.report(one, 50, round(dice.random(), 3))
                elif fate < 0.5:
                    play.end(one, "preempted", progressed=True)
                    del running[worker.name]
                elif control(world, one.trial).action == "pause":
                    play.end(one, "paused", progressed=True)
                    del running[worker.name]
                elif fate < 0.9:
                    play.finish(one, 0.5)
                    del running[worker.name]
        kinds = ("event", "action", "state", "retry", "fail")
        lines = [line for line in chain.read(world.paths) if line["kind"] in kinds]
        return [{k: v for k, v in line.items() if k not in ("t", "crc", "n")} for line in lines]

    decided = run("told", everything=False)
    assert decided == run("all", everything=True)
    assert sum(line["kind"] == "event" for line in decided) > 12
