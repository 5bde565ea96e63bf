"""What users ask for while a search runs: pause, resume, cancel, retry, settings."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.requests import commands
from hpcdet.control.turn import controller
from hpcdet.control.turn.controller import advance
from hpcdet.store.cost import limits
from hpcdet.store.cost.cost_records import RunLimits
from hpcdet.store.decisions import chain
from hpcdet.store.trials.standing import standing
from tests.control.worlds import begun, closed, control, end_of, events, later
from tests.paper import Waves, World


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
