"""Whole searches on paper: what a turn of the crank does, one thing after the other."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.leader.journal_cache import JournalFacts
from hpcdet.control.leader.leader import Fenced, Holder
from hpcdet.control.leader.trial_cache import Sight
from hpcdet.control.requests import commands
from hpcdet.control.turn import best_validation, controller
from hpcdet.control.turn.controller import advance
from hpcdet.errors import IntegrityError, UsageError
from hpcdet.search import searcher_factory
from hpcdet.search.api import events as api
from hpcdet.store.config import resolved_config
from hpcdet.store.cost.spending import epoch
from hpcdet.store.decisions import chain
from hpcdet.store.folder.records import (
    Best,
    Claim,
    End,
    Trial,
    Verdict,
)
from hpcdet.store.fs import freshness, journal
from hpcdet.store.trials import observer
from hpcdet.store.trials.standing import standing
from hpcdet.units import Length
from tests.builders import Builder, at
from tests.control.worlds import begun, closed, control, events, later
from tests.paper import Promotion, Waves, World


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


def test_what_looks_as_before_is_not_read_again_and_nothing_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, now = Builder(tmp_path / "digits-7f3a"), [0.0]
    trial = built.trial()
    sight = Sight(built.paths, lambda: now[0])

    def look(after: float) -> tuple[str, bool]:
        now[0] += after
        sight.begin()
        seen = sight.trial(1)
        assert sight.trial(1).files is seen.files, "once in a turn"
        sight.learnt(1)
        return seen.standing.state, seen.fresh

    # twice: what came within a tick of the file system's clock may look the same
    assert [look(15)[1] for _ in range(3)] == [True, True, False]
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
    look(60)
    monkeypatch.setattr(observer, "A_ROUND", 0.25)  # a fifth of the turns
    sight.rest(1, at_rest=True)
    trial.attempt()  # by a worker that had not seen the control yet
    seen = [look(15) for _ in range(5)]
    assert seen.count(("running", True)) == 1, "what nobody should do is seen in its turn"
    assert len(set(seen)) > 1, "but not at once"


def test_what_turns_have_read_that_failed_is_heard_by_the_next_that_does_not(
    tmp_path: Path,
) -> None:
    """Each of them looks at every trial, and none comes as far as telling the searcher of it."""
    world = World.make(tmp_path, Waves(count=2, width=2))
    play, holder, workers = begun(world)
    holder.sight = Sight(world.paths, world.clock)
    one, two = play.claim(workers[0]), play.claim(workers[1])
    later(world, holder, 3)
    aside = one.journal.with_name("aside")
    play.report(one, 50)
    one.journal.rename(aside)
    one.journal.mkdir()  # no file, which ends the turn
    play.finish(two)
    for _ in range(3):
        assert later(world, holder, 1).state == "PAUSED"
    one.journal.rmdir()
    aside.rename(one.journal)
    later(world, holder, 1)
    heard = [(e["trial"], e["kind"]) for e in events(world) if "trial" in e]
    assert heard == [(1, "report"), (2, "report"), (2, "segment_end")]


def test_reports_that_a_failed_turn_had_read_are_told_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    play, holder, [worker] = begun(world)
    holder.sight = Sight(world.paths, world.clock)
    attempt = play.claim(worker)
    later(world, holder, 3)
    for step in (30, 60, 90):
        play.report(attempt, step)
    real, fails = best_validation.remember, [60]

    def remember(holder: Holder, report: api.Report) -> None:
        if fails and report.length.value == fails[0]:
            raise IntegrityError("a file is damaged", where="best.json")
        real(holder, report)

    monkeypatch.setattr(best_validation, "remember", remember)
    for _ in range(3):
        assert later(world, holder, 1).state == "PAUSED"
    fails.clear()
    later(world, holder, 1)
    heard = [e["length"]["batches"] for e in events(world) if "length" in e]
    assert heard == [30, 60, 90]


def test_a_trial_is_fresh_until_its_news_are_passed_on_whoever_has_looked(tmp_path: Path) -> None:
    built, now = Builder(tmp_path / "digits-7f3a"), [0.0]
    trial, sight = built.trial(), Sight(built.paths, lambda: now[0])

    def look() -> bool:
        now[0] += 15
        sight.begin()
        return sight.trial(1).fresh

    assert [look() for _ in range(4)] == [True] * 4
    sight.learnt(1)
    assert not look()
    trial.attempt()
    assert look()
    # a control is written in this turn, which reads the trial again, and takes its time over it
    sight.learnt(1)
    sight.forget(1)
    now[0] += 2 * freshness.TICK_S
    assert sight.trial(1).fresh
    assert look() and look()
    sight.learnt(1)
    assert not look()


def test_how_a_trial_ended_is_told_by_the_reading_that_showed_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its verdict is not asked for again: a released claim after it has none."""
    world = World.make(tmp_path, Waves(count=1, width=1))
    play, holder, [worker] = begun(world)
    play.finish(play.claim(worker))
    real = Verdict.read
    read: list[Path] = []
    monkeypatch.setattr(Verdict, "read", lambda path: read.append(path) or real(path))
    assert advance(world.paths, holder).closed
    assert len(read) == len({*read}) == 1
    [end] = [e for e in events(world) if e["kind"] == "segment_end"]
    assert end["reason"] == "target"


def test_what_an_attempt_writes_while_a_turn_looks_at_it_is_heard_before_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    play, holder, [worker] = begun(world)
    holder.sight = Sight(world.paths, world.clock)
    attempt = play.claim(worker)
    play.report(attempt, 50)
    os.utime(attempt.root, ns=(0, 0))  # whatever the tick of the clock is
    later(world, holder, 3)
    real = freshness.looks

    def looks(folders: Sequence[str]) -> list[freshness.Look]:
        if End.read(attempt.end) is None:  # its journal was read a moment ago
            play.finish(attempt)
        return real(folders)

    monkeypatch.setattr(freshness, "looks", looks)
    world.clock.now += 11
    assert advance(world.paths, holder).closed
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
    world.method = searcher_factory.searcher(world.resolved)
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
    assert later(world, holder, 1).closed, "those that are paused go in the same turn"
    assert closed(world) == ("COMPLETED", "4 of 4 trials succeeded")
    assert [control(world, n).action for n in (2, 3)] == ["stop", "stop"]
    ends = {e["trial"]: e["reason"] for e in events(world) if "reason" in e}
    assert ends == {1: "target", 2: "stopped", 3: "stopped", 4: "target"}


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
