"""Whole searches on paper: what a turn of the crank does, one thing after the other."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.leader import trial_cache as sights
from hpcdet.control.leader.journal_cache import JournalFacts
from hpcdet.control.leader.leader import Fenced, Holder
from hpcdet.control.leader.retry_rules import BUDGETS, judge
from hpcdet.control.leader.trial_cache import Sight
from hpcdet.control.requests import commands
from hpcdet.control.turn import controller
from hpcdet.control.turn.controller import Turn, advance
from hpcdet.errors import UsageError
from hpcdet.schedulers.common.base import Capabilities, Refusal, Submission, TaskState
from hpcdet.search import registry
from hpcdet.search.api import events as api
from hpcdet.store.config import resolved_config
from hpcdet.store.cost import limits
from hpcdet.store.cost.spending import epoch
from hpcdet.store.decisions import chain, lease
from hpcdet.store.folder.layout import AttemptPaths
from hpcdet.store.folder.records import (
    Best,
    Claim,
    Closed,
    Control,
    End,
    Intent,
    RunLimits,
    Submitted,
    Trial,
    Verdict,
    WorkerEnd,
)
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import files, journal, packed
from hpcdet.store.trials.controls import in_force
from hpcdet.store.trials.standing import standing
from hpcdet.units import Length
from tests.builders import Builder, at
from tests.paper import Player, Promotion, Waves, World


def closed(world: World) -> tuple[str, str]:
    record = Closed.read(world.paths.closed)
    assert record is not None
    return record.state, record.why


def control(world: World, trial: int) -> Control:
    found = in_force(world.paths.trial(trial))
    assert found is not None
    return found


def end_of(attempt: AttemptPaths) -> str:
    end = End.read(attempt.end)
    assert end is not None
    return end.reason


def events(world: World) -> list[dict[str, Any]]:
    return [line["event"] for line in chain.read(world.paths) if line["kind"] == "event"]


def begun(world: World) -> tuple[Player, Holder, list[WorkerPaths]]:
    """The first turn of a holder, and every worker that it asked for."""
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    return play, holder, play.start_all()


def later(world: World, holder: Any, times: int = 2) -> Turn:
    """Turns far enough apart for the scheduler to be asked each time."""
    for _ in range(times):
        world.clock.now += 11
        holder.lease.beat()
        turn = advance(world.paths, holder)
    return turn


def test_a_search_runs_to_its_end_and_pays_the_queue_once(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=5, width=2))
    play, holder = world.play(), world.holder()
    first = advance(world.paths, holder)
    assert first.held
    assert first.state == "PENDING"
    [job] = world.scheduler.jobs.values()
    assert (job.submission.tasks, job.submission.throttle) == (2, 2)
    assert job.submission.name == "paper-0001-1"
    workers = play.start_all()
    for turn in range(5):
        play.finish(play.claim(workers[turn % 2]), loss=0.1 * turn)
        result = advance(world.paths, holder)
    assert len(world.scheduler.jobs) == 1
    assert result.closed
    assert closed(world) == ("COMPLETED", "5 of 5 trials succeeded")
    states = [line["state"] for line in chain.read(world.paths) if line["kind"] == "state"]
    assert states == ["PENDING", "RUNNING", "COMPLETED"]
    assert holder.lease.term == 0
    assert advance(world.paths, holder).closed
    with pytest.raises(UsageError, match="COMPLETED already"):
        commands.ask(world.paths, "cancel")


def test_the_searcher_hears_each_length_once_whatever_is_trained_again(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    play, holder, [worker] = begun(world)
    one = play.claim(worker)
    play.report(one, 30, 0.3)
    play.report(one, 60, "NaN")
    advance(world.paths, holder)
    play.end(one, "preempted", progressed=True)
    two = play.claim(worker)
    play.report(two, 60, 0.6)
    play.report(two, 90, 0.9)
    advance(world.paths, world.holder())  # a bystander decides nothing
    advance(world.paths, holder)
    heard = [(e["length"]["batches"], e["metrics"]["loss"]) for e in events(world) if "length" in e]
    assert heard == [(30, 0.3), (60, "NaN"), (90, 0.9)]


def test_what_looks_as_before_is_not_read_again_and_nothing_is_missed(tmp_path: Path) -> None:
    built, now = Builder(tmp_path / "digits-7f3a"), [0.0]
    trial = built.trial()
    sight = Sight(built.paths, lambda: now[0])

    def look(after: float) -> tuple[str, bool]:
        now[0] += after
        sight.begin()
        seen = sight.trial(1)
        assert sight.trial(1) is seen, "once in a turn"
        return seen.standing.state, seen.fresh

    # twice: what came within a tick of the file system's clock may look the same
    assert [look(15) for _ in range(3)] == [
        ("runnable", True),
        ("runnable", True),
        ("runnable", False),
    ]
    attempt = trial.attempt()
    assert [look(15) for _ in range(3)] == [
        ("running", True),
        ("running", True),
        ("running", False),
    ]
    attempt.line("progress", batches=1)
    assert look(15) == ("running", False)
    attempt.end("paused")
    trial.control("pause")
    sight.forget(1)
    assert [look(1), look(1), look(15)] == [("paused", True)] * 3
    sight.trial(1).dormant = True
    trial.attempt()  # by a worker that had not seen the control yet
    assert [look(15) for _ in range(3)] == [("paused", False)] * 3
    assert look(30) == ("running", True), "what nobody should do is seen within a minute"


def test_who_has_just_written_is_looked_at_only_if_there_was_word_of_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, now, looks, heard = Builder(tmp_path / "digits-7f3a"), [0.0], list[str](), list[int]()
    trial, facts = built.trial(), JournalFacts(built.paths, resolved_config.resolve({}))
    view = Sight(built.paths, lambda: now[0], facts.grows)
    real = sights.looks
    monkeypatch.setattr(sights, "looks", lambda names: looks.extend(names) or real(names))

    def look(*, calm: bool = True) -> tuple[str, bool]:
        now[0] += 15
        view.begin(calm=calm)
        looks.clear()
        seen = view.trial(1)
        told, running = max(heard, default=0), seen.standing.open_attempt
        if running:
            reports = facts.reports(trial.paths, "batches", told, running, only_running=True)
            heard.extend(report.length.value for report in reports)
        return seen.standing.state, bool(looks)

    attempt = trial.attempt()
    assert [look(), look()] == [("running", True)] * 2
    attempt.metrics("validation", 10, validation_loss=0.1)
    assert look() == ("running", False) and heard == [10]
    attempt.metrics("validation", 20, validation_loss=0.1)
    assert look(calm=False) == ("running", True) and heard == [10, 20]
    assert look() == ("running", True), "it is silent"
    attempt.line("progress", batches=25)
    attempt.end("lost")  # of which it could not write itself
    assert [look(), look()] == [("running", False), ("runnable", True)]
    attempt = trial.attempt()
    assert [look() for _ in range(2)] == [("running", True)] * 2
    attempt.metrics("validation", 30, validation_loss=0.1)
    attempt.line("end", verdict="done", cause="completed")
    assert look() == ("running", True) and heard == [10, 20, 30]
    attempt.line("progress", batches=30)
    assert look() == ("running", True), "it has begun to end"


def test_what_an_attempt_writes_while_a_turn_looks_at_it_is_heard_before_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    play, holder, [worker] = begun(world)
    holder.sight = Sight(world.paths, world.clock, holder.facts.grows)
    attempt = play.claim(worker)
    play.report(attempt, 50)
    os.utime(attempt.root, ns=(0, 0))  # whatever the tick of the clock is
    later(world, holder, 3)
    real = sights.looks

    def looks(folders: tuple[str, ...]) -> tuple[int, ...]:
        if End.read(attempt.end) is None:  # its journal was read a moment ago
            play.finish(attempt)
        return real(folders)

    monkeypatch.setattr(sights, "looks", looks)
    world.clock.now += 11
    assert advance(world.paths, holder, calm=True).closed
    heard = [(e["kind"], e.get("length", {}).get("batches", 0)) for e in events(world)]
    assert heard == [("start", 0), ("report", 50), ("report", 100), ("segment_end", 0)]


def test_a_report_says_what_its_trial_has_cost_so_far(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    trial, clock = built.trial(), []
    for steps in [(10,), (10, 20)]:
        attempt = trial.attempt()
        for step in steps:
            built.clock += 30
            attempt.metrics("validation", step, validation_loss=0.5)
            clock.append(built.clock)
        attempt.end("preempted")
        clock.append(built.clock)
        built.clock += 1000  # in the queue
    begun = [epoch(claim.at) for n in (1, 2) if (claim := Claim.read(trial.paths.attempt(n).claim))]
    first, end, _, second, _ = (epoch(at(seconds)) for seconds in clock)
    two_slots = resolved_config.resolve({"resources": {"slots_per_trial": 2}})
    facts = JournalFacts(built.paths, two_slots)
    said = {r.length.value: r.seconds for r in facts.reports(trial.paths, "batches", -1)}
    assert said == {
        10: 2 * (first - begun[0]),
        20: 2 * (end - begun[0] + second - begun[1]),
    }


def test_a_validation_is_heard_when_all_of_it_is_known(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    trial = built.trial()
    attempt, facts = trial.attempt(), JournalFacts(built.paths, resolved_config.resolve({}))
    told = [-1]

    def heard(running: int = 1) -> list[tuple[int, dict[str, Any]]]:
        reports = list(facts.reports(trial.paths, "batches", told[-1], running))
        told.extend(report.length.value for report in reports)
        return [(report.length.value, dict(report.metrics)) for report in reports]

    attempt.metrics("validation", 10, accuracy=0.5)
    assert heard() == []
    attempt.metrics("validation", 10, validation_loss=0.1)
    assert heard() == [(10, {"accuracy": 0.5, "validation_loss": 0.1})]
    attempt.metrics("validation", 20, accuracy=0.6)
    attempt.metrics("validation", 30, accuracy=0.7, validation_loss="small")
    assert heard() == [(20, {"accuracy": 0.6}), (30, {"accuracy": 0.7})]
    attempt.metrics("validation", 40, accuracy=0.8)
    assert heard() == []
    attempt.end("completed")
    assert heard(running=0) == [(40, {"accuracy": 0.8})]


@pytest.mark.parametrize("metrics", [{"accuracy": 0.9}, {"loss": "small"}, {"loss": "NaN"}])
def test_a_search_that_hears_nothing_it_can_compare_pauses(
    tmp_path: Path, metrics: dict[str, Any]
) -> None:
    searcher = {"name": "async_halving", "max_length": {"batches": 100}, "divisor": 2}
    settings = {**searcher, "num_rungs": 2, "max_trials": 3, "max_concurrent_trials": 3}
    world = World.make(tmp_path, searcher=settings)
    world.method = registry.searcher(world.resolved)
    play, holder, workers = begun(world)
    for attempt in [play.claim(worker) for worker in workers]:
        with journal.Writer(attempt.journal) as writer:
            for step in (50, 60):
                units = {"batches": step}
                said: dict[str, Any] = {
                    "group": "validation",
                    "step": step,
                    "metrics": metrics,
                    "units": units,
                }
                writer.append("metrics", **said)
    turn = later(world, holder, 1)
    state, why = holder.decided.state
    assert (turn.state, state) == ("PAUSED", "PAUSED")
    assert "no trial of 3 has shown a finite number as 'loss'" in why


def test_the_best_of_all_trials_is_known_to_all(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=2, width=2))
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    one, two = (play.claim(worker) for worker in play.start_all())
    known = []
    for attempt, step, loss in [(one, 10, "NaN"), (one, 20, 0.5), (two, 10, 0.7), (two, 20, 0.3)]:
        play.report(attempt, step, loss)  # type: ignore[arg-type]
        holder.close()
        holder = world.holder()  # whoever decides
        advance(world.paths, holder)
        best = Best.read(world.paths.best)
        known.append(best and (best.trial, best.metric, best.length.value))
    assert known == [None, (1, 0.5, 20), (1, 0.5, 20), (2, 0.3, 20)]


def test_journals_are_read_near_the_times_at_which_reports_are_expected(tmp_path: Path) -> None:
    attempt = Builder(tmp_path / "digits-7f3a").trial().attempt()
    trial, now = attempt.trial, 0.0
    read: list[float] = []
    facts = JournalFacts(attempt.experiment.paths, resolved_config.resolve({}), lambda: now)

    def heard(running: int = 1) -> list[int]:
        [reader] = facts._readers.values() or [None]
        before = reader.offset if reader else 0
        found = [r.length.value for r in facts.reports(trial, "batches", told[-1], running)]
        [reader] = facts._readers.values()
        read.append(reader.offset != before)
        told.extend(found)
        return found

    told = [0]
    for step in (100, 200):
        attempt.experiment.clock = 4 * step
        attempt.metrics("validation", step, validation_loss=0.5)
        assert heard() == [step]
    at = []
    for now in range(15, 400, 15):  # a turn every 15 s; reports came every 400 s
        attempt.line("progress", batches=200 + now)
        heard()
        if read[-1]:
            at.append(now)
    assert at == [60, 120, 180, 240, *range(300, 400, 15)]
    attempt.experiment.clock = 1200
    attempt.metrics("validation", 300, validation_loss=0.5)
    now = 400
    assert heard() == [300]
    attempt.metrics("validation", 400, validation_loss=0.5)
    now = 410
    assert heard() == []
    assert heard(running=0) == [400]  # what an attempt left when it ended is heard at once


@pytest.mark.parametrize(
    ("latest", "fails", "swept"), [(1, False, False), (0, False, True), (1, True, True)]
)
def test_what_the_trials_left_lying_is_swept_at_the_end(
    tmp_path: Path, latest: int, fails: bool, swept: bool
) -> None:
    keep = {"save_trial_latest": latest}
    world = World.make(tmp_path, Waves(count=2, width=2), checkpoint_storage=keep, max_restarts=0)
    found: list[bool] = []
    play, holder = world.play(), world.holder()
    holder.hands = dataclasses.replace(
        holder.hands, sweep=lambda paths: found.append(paths.closed.exists())
    )
    advance(world.paths, holder)
    one, two = (play.claim(worker) for worker in play.start_all())
    play.finish(one)
    play.fail(two) if fails else play.finish(two)
    assert advance(world.paths, holder).closed
    assert found == [True] * swept


def test_a_stop_of_the_searcher_reaches_the_trial_and_comes_back_as_its_end(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=2, width=2, stop_above=1.0))
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    one, two = (play.claim(worker) for worker in play.start_all())
    play.report(one, 10, 5.0)
    play.report(two, 10, 0.5)
    advance(world.paths, holder)
    assert control(world, 1).action == "stop"
    assert control(world, 2).action == "run"
    play.end(one, "stopped")
    play.finish(two)
    assert advance(world.paths, holder).closed
    assert [e["reason"] for e in events(world) if "reason" in e] == ["stopped", "target"]


def test_failures_of_the_code_are_retried_then_given_up_and_others_go_on(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=2, width=2), max_restarts=2)
    play, holder, (bad, good) = begun(world)
    play.finish(play.claim(good, 2))
    for attempt in (1, 2, 3):
        play.fail(
            play.claim(bad, 1), "ValueError: no", reason="oom" if attempt == 2 else "user_error"
        )
        assert standing(world.paths.trial(1)).state == "doubtful"
        advance(world.paths, holder)
    assert control(world, 1).action == "fail"
    assert "failed 3 times (max_restarts 2): ValueError: no" in control(world, 1).why
    assert closed(world) == ("COMPLETED", "1 of 2 trials succeeded")


def test_preemptions_cost_no_restart_and_all_failed_is_an_error(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1), max_restarts=0)
    play, holder, [worker] = begun(world)
    for reason in ("preempted", "walltime", "node_fail", "lost", "preempted"):
        play.end(play.claim(worker), reason, progressed=True)
        advance(world.paths, holder)
    play.fail(play.claim(worker), "ZeroDivisionError: division by zero")
    assert advance(world.paths, holder).closed
    state, why = closed(world)
    assert state == "ERROR"
    assert "ZeroDivisionError" in why


def test_ranks_that_cannot_prove_who_they_are_are_tried_again_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred times; here three."""
    error = "Unproven: rank 0 could not make sure"
    end = End("unproven", error=error)
    assert judge([end] * 99, None, 0).again and not judge([end] * 100, None, 0).again
    monkeypatch.setitem(BUDGETS, "unproven", 3)
    world = World.make(tmp_path, Waves(count=1, width=1), max_restarts=0)
    play, holder, [worker] = begun(world)
    for progressed in (False, False, True, False, False):
        play.end(play.claim(worker), "unproven", error=error, progressed=progressed)
        assert not advance(world.paths, holder).closed
    play.end(play.claim(worker), "unproven", error=error)
    assert advance(world.paths, holder).closed
    assert closed(world) == ("ERROR", f"no progress: unproven 3 times in a row: {error}")


def test_what_cannot_get_better_is_not_tried_again(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=3, width=1))
    play, holder, [worker] = begun(world)
    play.fail(play.claim(worker), "InvalidHP: rate", verdict="norestart")
    advance(world.paths, holder)
    play.fail(play.claim(worker), "damaged", verdict="norestart", unrecoverable=True)
    advance(world.paths, holder)
    assert [e["reason"] for e in events(world) if "reason" in e] == ["invalid_hp", "failed"]
    play.finish(play.claim(worker))
    assert advance(world.paths, holder).closed


def test_a_worker_that_vanishes_is_believed_lost_only_after_two_answers(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    play, holder, [worker] = begun(world)
    attempt = play.claim(worker)
    play.report(attempt, 10)
    later(world, holder, 1)
    play.vanish(worker, TaskState.NODE_FAIL)
    later(world, holder, 1)
    advance(world.paths, holder)  # the same answer, read again, proves nothing
    assert not attempt.end.exists()
    files.replace(worker.beat, b'{"at": "it lives after all"}')
    later(world, holder, 1)
    assert not attempt.end.exists()
    later(world, holder, 1)
    assert end_of(attempt) == "node_fail"
    end = WorkerEnd.read(worker.end)
    assert end is not None
    assert end.why == "lost"
    assert [job.submission.tasks for job in world.scheduler.jobs.values()] == [1, 1]
    play.finish(play.claim(play.start_all()[0]))
    assert advance(world.paths, holder).closed


def test_an_old_answer_seen_again_proves_nothing(tmp_path: Path) -> None:
    """The answer is shared by all processes of a user, and may be from before a worker began."""
    world = World.make(
        tmp_path, Waves(count=1, width=1), site={"capabilities": {"requeue": "user"}}
    )
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    later(world, holder, 1)
    world.scheduler.stale = True  # it goes on to say that the task waits
    attempt = play.claim(play.start_all()[0])
    later(world, holder, 5)
    world.scheduler.stale = False
    later(world, holder, 1)
    assert not attempt.end.exists()
    assert len(world.scheduler.jobs) == 1


def test_an_attempt_whose_worker_said_goodbye_is_closed(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    play, holder, [worker] = begun(world)
    attempt = play.claim(worker)
    Verdict("resume", "walltime", 40).write_once(attempt.verdict)
    play.leave(worker, "time")
    later(world, holder, 2)
    assert end_of(attempt) == "walltime"  # what it said itself counts
    assert standing(world.paths.trial(1)).state == "runnable"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (TaskState.PREEMPTED, "preempted"),
        (TaskState.TIMEOUT, "walltime"),
        (TaskState.OOM, "oom"),
        (TaskState.CANCELED, "canceled"),
        (TaskState.GONE, "lost"),
        (TaskState.FAILED, "lost"),
    ],
)
def test_why_it_ended_is_the_schedulers_truth(tmp_path: Path, said: TaskState, reason: str) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    play, holder, [worker] = begun(world)
    attempt = play.claim(worker)
    play.vanish(worker, said)
    later(world, holder, 2)
    assert end_of(attempt) == reason
    assert not holder.watch.suspects, "another look would tell no more"


def test_a_requeued_task_frees_its_trial_for_any_worker(tmp_path: Path) -> None:
    world = World.make(
        tmp_path, Waves(count=2, width=2), site={"capabilities": {"requeue": "user"}}
    )
    play, holder, (first, second) = begun(world)
    killed = play.claim(first, 1)
    play.claim(second, 2)
    play.vanish(first, TaskState.PENDING)
    world.scheduler.jobs["1"].restarts[0] += 1
    later(world, holder, 1)
    assert holder.watch.suspects and not holder.watch.suspected, "its task comes back by itself"
    later(world, holder, 1)
    assert end_of(killed) == "preempted"
    assert standing(world.paths.trial(1)).state == "runnable"
    assert len(world.scheduler.jobs) == 1  # the task waits in the queue still
    holder.close()
    newest = lease.last(world.paths)
    assert newest is not None and newest[1] is not None and newest[1].waiting == 1
    holder = world.holder()
    advance(world.paths, holder)
    again = play.start("1", 0)
    assert again.incarnation == 1
    play.claim(again, 1)


def test_the_scheduler_is_asked_once_per_interval_and_never_for_nothing(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    play, holder = world.play(), world.holder()
    for _ in range(10):
        advance(world.paths, holder)
    assert world.scheduler.queries == 1
    [worker] = play.start_all()
    play.finish(play.claim(worker), 1)
    advance(world.paths, holder)
    assert world.scheduler.queries == 1

    quiet = World.make(tmp_path / "quiet", Waves(count=1, width=1))
    play, holder = quiet.play(), quiet.holder()
    advance(quiet.paths, holder)
    commands.ask(quiet.paths, "pause")
    [worker] = play.start_all()
    later(quiet, holder, 1)
    play.leave(worker)
    before = quiet.scheduler.queries
    later(quiet, holder, 5)
    assert quiet.scheduler.queries == before  # its worker said that it left


def test_pause_saves_frees_the_place_and_resume_goes_on(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=2, width=2))
    play, holder, workers = begun(world)
    attempts = [play.claim(worker) for worker in workers]
    commands.ask(world.paths, "pause")
    assert advance(world.paths, holder).state == "STOPPING"
    assert control(world, 1).action == "pause"
    assert len(world.scheduler.live) == 2
    for attempt in attempts:
        play.end(attempt, "paused", progressed=True)
    assert advance(world.paths, holder).state == "PAUSED"
    assert not world.scheduler.live
    for worker in workers:
        play.leave(worker, "signal")
    later(world, holder)
    assert len(world.scheduler.jobs) == 1
    commands.ask(world.paths, "resume")
    assert advance(world.paths, holder).state == "RUNNING"
    assert len(world.scheduler.live) == 2
    for worker in play.start_all():
        play.finish(play.claim(worker))
    assert advance(world.paths, holder).closed


def test_one_trial_is_paused_and_another_canceled_alone(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=3, width=3), searcher={"max_concurrent_trials": 3})
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    one, two, three = (play.claim(worker) for worker in play.start_all())
    commands.ask(world.paths, "pause", 1)
    commands.ask(world.paths, "cancel", 2)
    commands.ask(world.paths, "cancel", 9)
    advance(world.paths, holder)
    assert [control(world, n).action for n in (1, 2, 3)] == ["pause", "kill", "run"]
    play.end(one, "paused")
    play.end(two, "canceled")
    play.finish(three)
    advance(world.paths, holder)
    assert [e["reason"] for e in events(world) if "reason" in e] == ["canceled", "target"]
    refused = [line["refused"] for line in chain.read(world.paths) if line["kind"] == "command"]
    assert refused == ["", "", "there is no trial 9"]
    commands.ask(world.paths, "resume", 1)
    advance(world.paths, holder)
    assert standing(world.paths.trial(1)).state == "runnable"


def test_cancel_lets_trials_save_then_ends_what_does_not_listen(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=4, width=2))
    play, holder, (first, second) = begun(world)
    listens, deaf = play.claim(first), play.claim(second)
    commands.ask(world.paths, "cancel")
    assert advance(world.paths, holder).state == "STOPPING"
    play.end(listens, "canceled", progressed=True)
    later(world, holder, 2)
    assert len(world.scheduler.live) == 2
    later(world, holder, 2)
    assert not world.scheduler.live  # after signal_lead_s + kill_wait_s
    later(world, holder, 2)
    assert end_of(deaf) == "canceled"
    assert closed(world)[0] == "CANCELED"
    assert len(world.paths.trials()) == 2


def test_cancel_before_anything_ran_leaves_nothing_in_the_queue(tmp_path: Path) -> None:
    world = World.make(tmp_path)
    holder = world.holder()
    advance(world.paths, holder)
    commands.ask(world.paths, "cancel")
    advance(world.paths, holder)
    assert advance(world.paths, holder).closed
    assert closed(world)[0] == "CANCELED"
    assert not world.scheduler.live


def test_retry_gives_a_failed_trial_all_its_restarts_again(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=2, width=2), max_restarts=0)
    play, holder, (bad, slow) = begun(world)
    play.fail(play.claim(bad, 1))
    play.claim(slow, 2)
    advance(world.paths, holder)
    assert standing(world.paths.trial(1)).state == "failed"
    commands.ask(world.paths, "retry", 1)
    advance(world.paths, holder)
    assert standing(world.paths.trial(1)).state == "runnable"
    play.fail(play.claim(bad, 1))
    advance(world.paths, holder)
    assert standing(world.paths.trial(1)).state == "failed"
    commands.ask(world.paths, "retry")
    advance(world.paths, holder)
    play.finish(play.claim(bad, 1))
    advance(world.paths, holder)
    assert standing(world.paths.trial(1)).state == "done"


def test_a_retry_is_not_forgotten_by_who_dies_over_it(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=2, width=2), max_restarts=0)
    play, holder, (bad, slow) = begun(world)
    play.fail(play.claim(bad, 1))
    play.claim(slow, 2)
    advance(world.paths, holder)
    commands.ask(world.paths, "retry", 1)
    record = holder.record

    def die_after_the_command(kind: str, **fields: Any) -> None:
        record(kind, **fields)
        if kind == "command":
            raise KeyboardInterrupt

    holder.record = die_after_the_command  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        advance(world.paths, holder)
    advance(world.paths, world.holder())
    assert standing(world.paths.trial(1)).state == "runnable"


def test_a_trial_that_was_canceled_alone_may_be_tried_again(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=2, width=2))
    play, holder, (first, second) = begun(world)
    one, two = play.claim(first, 1), play.claim(second, 2)
    commands.ask(world.paths, "cancel", 1)
    advance(world.paths, holder)
    play.end(one, "canceled")
    advance(world.paths, holder)
    commands.ask(world.paths, "retry", 1)
    advance(world.paths, holder)
    assert standing(world.paths.trial(1)).state == "runnable"
    play.finish(play.claim(first, 1))
    play.finish(two)
    assert advance(world.paths, holder).closed
    assert [e["reason"] for e in events(world) if "reason" in e] == ["canceled", "target", "target"]


def test_a_canceled_experiment_is_not_brought_back_by_a_retry(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    attempt = play.claim(play.start_all()[0])
    commands.ask(world.paths, "cancel")
    commands.ask(world.paths, "retry", 1)
    advance(world.paths, holder)
    assert control(world, 1).action == "kill"
    play.end(attempt, "canceled")
    assert advance(world.paths, holder).closed


def test_a_trial_canceled_before_its_files_were_made_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    world = World.make(tmp_path, Waves(count=2, width=2))
    with monkeypatch.context() as patch:
        patch.setattr(controller.write_controls, "apply", full)
        with pytest.raises(OSError, match="no space"):
            advance(world.paths, world.holder())
    commands.ask(world.paths, "cancel", 1)
    holder = world.holder()
    advance(world.paths, holder)
    advance(world.paths, holder)
    assert [e["reason"] for e in events(world) if "reason" in e] == ["canceled"]


def test_a_searcher_that_raises_pauses_the_search_and_loses_nothing(tmp_path: Path) -> None:
    method = Waves(count=2, width=1, breaks_at=1)
    world = World.make(tmp_path, method)
    play, holder, [worker] = begun(world)
    play.finish(play.claim(worker))
    turn = advance(world.paths, holder)
    assert turn.state == "PAUSED"
    assert not turn.closed
    [said] = [ln["why"] for ln in chain.read(world.paths) if ln.get("by") == "searcher"]
    assert said == "searcher waves: ValueError: the searcher does not like trial numbers"
    method.breaks_at = 0
    commands.ask(world.paths, "resume")
    advance(world.paths, holder)
    assert holder.decided.searcher.search["heard"] == 1, (
        "what it changed before it failed is forgotten"
    )
    play.finish(play.claim(worker))
    advance(world.paths, holder)
    assert closed(world) == ("COMPLETED", "2 of 2 trials succeeded")


def test_a_paused_trial_frees_its_worker_and_is_promoted_on_any_other(tmp_path: Path) -> None:
    world = World.make(tmp_path, Promotion(count=4, width=2))
    play, holder, [here, there] = begun(world)
    one, two = play.claim(here), play.claim(there)
    play.report(one, 50, 0.1)
    play.report(two, 50, 0.5)
    play.report(two, 60, 0.05)  # trained on before it could hear
    later(world, holder)
    assert control(world, 2).action == "pause" and control(world, 2).why == "0.5 is not the best"
    assert len(world.scheduler.live) == 2, "the third takes the worker that becomes free"
    play.end(two, "paused", progressed=True)
    three = play.claim(there)
    assert three.trial == 3
    play.report(three, 50, 0.4)
    advance(world.paths, holder)
    play.end(three, "preempted", progressed=True)  # asked to pause, and its node taken besides
    play.leave(there, "signal")
    later(world, holder)
    assert standing(world.paths.trial(3)).state == "paused"
    [other] = play.start_all()
    four = play.claim(other)
    play.report(four, 50, 0.3)
    advance(world.paths, holder)
    # promoted while it still leaves: the fourth is the best of those that are paused
    told = [e["trial"] for e in events(world) if e["kind"] == "report"]
    assert told == [1, 2, 2, 3, 4]
    assert [control(world, n).action for n in (2, 3, 4)] == ["pause", "pause", "run"]
    play.end(four, "paused", progressed=True)
    assert standing(world.paths.trial(4)).state == "runnable"
    play.finish(one)
    holder.close()
    holder = world.holder()
    later(world, holder)
    play.finish(play.claim(here, 4))
    assert not later(world, holder, 1).closed
    assert later(world, holder, 1).closed
    assert closed(world) == ("COMPLETED", "4 of 4 trials succeeded")
    assert [control(world, n).action for n in (2, 3)] == ["stop", "stop"]
    ends = {e["trial"]: e["reason"] for e in events(world) if "reason" in e}
    assert ends == {1: "target", 2: "stopped", 3: "stopped", 4: "target"}


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


def test_a_hook_hears_of_each_thing_once_and_cannot_hurt(tmp_path: Path) -> None:
    notify = {"command": 'echo "$HPCDET_EVENT $HPCDET_EXPERIMENT" >> heard; exit 3'}
    world = World.make(tmp_path, Waves(count=1, width=1), max_restarts=0, notify=notify)
    play, holder, [worker] = begun(world)
    play.fail(play.claim(worker))
    advance(world.paths, holder)
    advance(world.paths, holder)
    heard = (world.paths.root / "heard").read_text().splitlines()
    assert heard == ["failure paper-0001", "end paper-0001"]


def test_a_trials_record_that_was_never_decided_stops_the_search_visibly(tmp_path: Path) -> None:
    world = World.make(tmp_path)
    Trial(1, {"rate": 9}, 1).write_once(world.paths.trial(1).record)
    turn = advance(world.paths, world.holder())
    assert turn.state == "PAUSED"
    assert any("not what the searcher decided" in action for action in turn.actions)


def test_a_term_that_ends_while_that_is_told_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fenced(*_: object) -> None:
        raise Fenced

    monkeypatch.setattr(controller.experiment_state, "notify", fenced)
    world = World.make(tmp_path)
    Trial(1, {"rate": 9}, 1).write_once(world.paths.trial(1).record)
    assert not advance(world.paths, world.holder()).held


def test_terms_that_a_full_disk_ends_leave_no_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    world = World.make(tmp_path)
    holder = world.holder()
    monkeypatch.setattr(journal.Writer, "flush", full)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no space"):
        advance(world.paths, holder)
    assert len(os.listdir("/proc/self/fd")) == before


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


def test_settings_of_a_user_narrow_the_search_while_it_runs(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=4, width=4), searcher={"max_concurrent_trials": 4})
    commands.ask(world.paths, "set", max_concurrent_trials=1)
    commands.ask(world.paths, "set", max_concurrent_trials="many")
    commands.ask(world.paths, "set", entrypoint="rm")
    advance(world.paths, world.holder())
    assert [j.submission.tasks for j in world.scheduler.jobs.values()] == [1]


def test_the_arrays_in_the_queue_follow_a_change_of_how_many_run_at_once(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=6, width=4), searcher={"max_concurrent_trials": 4})
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    play.start("1", 0)
    play.start("1", 1)
    assert world.scheduler.throttled == []
    commands.ask(world.paths, "set", max_concurrent_trials=2)
    later(world, holder)
    assert world.scheduler.throttled == [("1", 2)]
    assert len(world.scheduler.live) == 2  # those that waited and are too many have left
    assert RunLimits.read(world.paths.limits(1)) is not None
    # a holder that died may have been about to tell: its successor tells once more, and no more
    holder.close()
    holder = world.holder()
    commands.ask(world.paths, "set", max_concurrent_trials=3)
    later(world, holder, 3)
    assert world.scheduler.throttled == [("1", 2), ("1", 3)]
    found = limits.in_force(world.paths, world.resolved)
    assert (found.max_concurrent_trials, world.scheduler.live[-1]) == (3, ("2", 0))


def test_one_wrong_record_keeps_nothing_from_the_other_trials(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=3, width=3), searcher={"max_concurrent_trials": 3})
    Trial(1, {"rate": 9}, 1).write_once(world.paths.trial(1).record)
    assert advance(world.paths, world.holder()).state == "PAUSED"
    assert [control(world, number).action for number in (1, 2, 3)] == ["run"] * 3
    assert all(world.paths.trial(number).record.exists() for number in (2, 3))


def test_what_cannot_be_read_of_the_decisions_takes_no_term_again_and_again(
    tmp_path: Path,
) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    for _ in range(2):
        holder = world.holder()
        advance(world.paths, holder)
        holder.close()
    journal_of_one = world.paths.decisions(1)
    whole = journal_of_one.read_bytes()
    journal_of_one.write_bytes(whole.splitlines(keepends=True)[0])
    holder = world.holder()
    turns = [advance(world.paths, holder) for _ in range(4)]
    assert not any(turn.held for turn in turns)
    assert all("put the file back" in " ".join(turn.actions) for turn in turns)
    assert max(packed.numbers(world.paths.terms, ".json")) == 3
    assert "000001.jsonl" in chain.gap(world.paths)
    journal_of_one.write_bytes(whole)
    assert advance(world.paths, holder).held
    assert chain.gap(world.paths) == ""


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


def test_where_nobody_submits_per_trial_there_is_a_task_for_each_trial(tmp_path: Path) -> None:
    search = {"max_concurrent_trials": 2, "max_trials": 9}
    site = {"capabilities": NOBODY, "limits": {"max_submit": 14}}
    worker = {"mode": "per_trial"}
    for limit, tasks in ((None, 2 + 7 + 2 * 5), (14, 13)):
        site["limits"] = {"max_submit": limit}
        made = tmp_path / str(limit)
        world = World.make(made, Waves(9, 2), site, searcher=search, worker=worker)
        advance(world.paths, world.holder())
        [job] = world.scheduler.jobs.values()
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


class Rungs:
    """Two trials to 50 batches; both are paused there, and the better one goes on to 100."""

    name = "rungs"
    version = 1

    def initial(self) -> api.State:
        return {"losses": {}, "done": 0}

    def on_event(self, state: api.State, event: api.Event) -> tuple[api.State, list[api.Action]]:
        state = {"losses": dict(state["losses"]), "done": state["done"]}
        match event:
            case api.Start():
                return state, [api.Create(n, {}, n, Length("batches", 50)) for n in (1, 2)]
            case api.Report(trial, Length(value=50), metrics):
                state["losses"][str(trial)] = metrics["loss"]
                if len(state["losses"]) == 1:
                    return state, [api.Pause(trial)]
                best = min(state["losses"], key=state["losses"].__getitem__)
                [worst] = set(state["losses"]) - {best}
                more = api.Continue(int(best), Length("batches", 100))
                return state, [more, api.Stop(int(worst), "not promoted")]
            case api.SegmentEnd(_, reason):
                state["done"] += reason == "target"
                return state, [api.Shutdown()] if state["done"] == 3 else []
        return state, []


def test_trials_are_paused_continued_and_stopped_by_rungs(tmp_path: Path) -> None:
    world = World.make(tmp_path, Rungs(), searcher={"max_concurrent_trials": 1})
    play, holder, [worker] = begun(world)
    play.finish(play.claim(worker), 0.2)
    advance(world.paths, holder)
    assert control(world, 1).action == "pause"
    play.finish(play.claim(worker), 0.7)
    advance(world.paths, holder)
    assert [standing(world.paths.trial(n)).state for n in (1, 2)] == ["runnable", "done"]
    again = play.claim(worker)
    assert (again.trial, again.number) == (1, 2)
    play.finish(again, 0.1)
    advance(world.paths, world.holder())
    assert advance(world.paths, holder).closed
    lengths = [(e["trial"], e["length"]["batches"]) for e in events(world) if "length" in e]
    assert lengths == [(1, 50), (2, 50), (1, 100)]
    assert len(world.scheduler.jobs) == 1


def test_a_trial_continued_by_its_own_report_ends_once_and_later(tmp_path: Path) -> None:
    world = World.make(tmp_path, Rungs(), searcher={"max_concurrent_trials": 1})
    play, holder, [worker] = begun(world)
    for loss in (0.7, 0.2):
        play.finish(play.claim(worker), loss)
        advance(world.paths, holder)
    again = play.claim(worker)
    assert (again.trial, again.number) == (2, 2)
    play.finish(again, 0.1)
    advance(world.paths, holder)
    told = [(e["trial"], e.get("length", {}).get("batches")) for e in events(world) if "trial" in e]
    assert told == [(1, 50), (1, None), (2, 50), (2, 100), (2, None)]


class Epochs:
    """A searcher: one trial of three epochs."""

    name, version = "epochs", 1

    def initial(self) -> api.State:
        return {}

    def on_event(self, state: api.State, event: api.Event) -> tuple[api.State, list[api.Action]]:
        if isinstance(event, api.Start):
            return state, [api.Create(1, {}, 1, Length("epochs", 3))]
        return state, [api.Shutdown()] if isinstance(event, api.SegmentEnd) else []


@pytest.mark.parametrize(("epochs", "reason"), [(2, "user_exit"), (3, "target")])
def test_code_that_ends_before_its_target_in_epochs_ended_by_itself(
    tmp_path: Path, epochs: int, reason: str
) -> None:
    world = World.make(tmp_path, Epochs())
    play, holder, [worker] = begun(world)
    attempt = play.claim(worker)
    with journal.Writer(attempt.journal) as writer:
        units = {"batches": 20, "epochs": epochs}
        writer.append("metrics", group="validation", step=20, metrics={"loss": 0.5}, units=units)
    Verdict("done", "completed", 20).write_once(attempt.verdict)
    play.end(attempt, "completed", progressed=True)
    later(world, holder)
    assert [each["reason"] for each in events(world) if "reason" in each] == [reason]


class Pair:
    """A searcher: trial 2 begins from trial 1, which has not begun itself."""

    name, version = "pair", 1

    def initial(self) -> api.State:
        return {}

    def on_event(self, state: api.State, event: api.Event) -> tuple[api.State, list[api.Action]]:
        until = Length("batches", 10)
        child = api.Create(2, {}, 2, Length("batches", 20), parent="1")
        pair = [api.Create(1, {}, 1, until), child]
        return state, [*pair] if isinstance(event, api.Start) else []


def test_a_pause_does_not_take_a_parent_from_its_child(tmp_path: Path) -> None:
    world = World.make(tmp_path, Pair())
    holder = world.holder()
    advance(world.paths, holder)
    for verb in ("pause", "resume"):
        commands.ask(world.paths, verb)
        world.clock.now += 11
        advance(world.paths, holder)
        assert not world.paths.trial(2).record.exists()
    play = world.play()
    [worker] = play.start_all()  # none for who cannot begin yet, however long that takes
    attempt = play.claim(worker, 1)
    advance(world.paths, holder)
    assert not play.start_all()
    play.save(attempt, 10)
    play.finish(attempt, 0.2)
    world.clock.now += 11
    advance(world.paths, holder)
    record = Trial.read(world.paths.trial(2).record)
    assert record is not None and record.origin["checkpoint"] == "00000010.g1"
    holder.close()
