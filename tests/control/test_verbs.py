"""What users ask of a running experiment with the flags of cancel, resume, retry and set."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import click
import pytest

from hpcdet.checkpoint.format import manifest as manifests
from hpcdet.cli.control import change
from hpcdet.cli.request import extending, send_commands
from hpcdet.config.load import changing
from hpcdet.control.leader.leader import Holder
from hpcdet.control.requests import commands
from hpcdet.control.turn.controller import advance
from hpcdet.errors import ConfigError, UsageError
from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import Ranks
from hpcdet.read.experiment import gather
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.schedulers.common.base import TaskState
from hpcdet.search import searcher_factory
from hpcdet.search.api import codec, events
from hpcdet.store.config import overrides, resolved_config
from hpcdet.store.decisions import chain, lease
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Closed, Command, Control, Intent, Trial
from hpcdet.store.fs import files
from hpcdet.store.trials.controls import in_force
from hpcdet.store.trials.standing import checkpoints, latest_checkpoint, standing
from hpcdet.train.attempt.session import Session
from hpcdet.train.checkpoints.deadline import Deadline
from hpcdet.worker.claims import claims
from tests.builders import Builder
from tests.commands import Cli, cli  # noqa: F401
from tests.paper import Waves, World


def intents(world: World) -> list[Intent]:
    found = [Intent.read(world.paths.intent(n)) for n in world.paths.submissions()]
    return [intent for intent in found if intent is not None]


def wanted(world: World, trial: int) -> Control:
    found = in_force(world.paths.trial(trial))
    assert found is not None
    return found


def later(world: World, holder: Any, times: int = 3) -> None:
    for _ in range(times):
        world.clock.now += world.site.limits.poll_min_s + 1
        advance(world.paths, holder)


def test_changes_reach_what_is_submitted_later_and_outlive_every_holder(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    files.write_once(world.paths.config, resolved_config.dump(world.resolved.raw))
    first = world.holder()
    advance(world.paths, first)
    worker = world.play().start("1")
    attempt = world.play().claim(worker)
    walltime = {"resources.walltime_s": "2h"}  # as a person might write the file by hand
    commands.ask(world.paths, "pause")
    commands.ask(world.paths, "resume", set=walltime)
    commands.ask(world.paths, "resume", set={"hyperparameters.rate": 1})
    advance(world.paths, first)
    first.close()
    world.play().end(attempt, "preempted", progressed=True)
    world.play().leave(worker)
    later(world, world.holder())

    old, new = intents(world)
    assert (old.overrides, new.overrides) == ({}, {"resources.walltime_s": 7200})
    assert overrides.of_submission(world.paths, 1).resources.walltime_s is None
    again = world.play().claim(world.play().start("2"))
    held = overrides.of_attempt(world.paths, again)
    assert (held.resources.walltime_s, held.raw["resources"]["walltime_s"]) == (7200, 7200)


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("hyperparameters.rate=1", "cannot be changed"),
        ("reproducibility.virtual_ranks=4", "cannot be changed"),
        ("resources.slots_per_trial=0", "greater than or equal to 1"),
        ("resources.walltime=2h", "did you mean 'resources.walltime_s'"),
        ("resources.walltime_s=soon", "no time"),
        ("worker.mode=other", "'shared' or 'per_trial'"),
        ("max_concurrent=many", "whole number|valid integer"),
    ],
)
def test_what_would_change_the_result_or_is_no_value_is_refused(assignment: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        changing.changes([assignment])


def test_changes_that_do_not_go_with_the_rest_are_refused() -> None:
    resolved = resolved_config.resolve({"entrypoint": "x", "worker": {"lanes": 2}})
    changing.fits(overrides.lay(resolved, {"resources.cpus_per_slot": 2}))
    with pytest.raises(ConfigError, match="no use for several lanes"):
        changing.fits(overrides.lay(resolved, {"worker.mode": "per_trial"}))
    former = resolved_config.resolve({"entrypoint": "x", "searcher": {"stopping_version": 1}})
    changing.fits(overrides.lay(former, {"resources.cpus_per_slot": 2}))
    exact = {"elastic": "exact", "virtual_ranks": 2}
    resolved = resolved_config.resolve({"entrypoint": "x", "reproducibility": exact})
    changing.fits(overrides.lay(resolved, {"resources.slots_per_trial": 2}))
    with pytest.raises(ConfigError, match="4 slots cannot share 2 virtual ranks"):
        changing.fits(overrides.lay(resolved, {"resources.slots_per_trial": 4}))


def test_other_numbers_of_slots_are_spread_and_paid_for_as_they_were_submitted(
    tmp_path: Path,
) -> None:
    need = {"slots_per_trial": 4, "nodes": 2, "slots_per_node": 2}
    paths = ExperimentPaths(tmp_path)
    paths.config.write_bytes(resolved_config.dump({"resources": need}))
    now = overrides.lay(resolved_config.load(paths.config), {"resources.slots_per_trial": 2})
    assert (now.resources.slots_per_node, now.raw["resources"]["slots_per_node"]) == (1, 1)
    fewer = {"resources.slots_per_trial": 2, "resources.nodes": 1}
    assert overrides.lay(now, fewer).resources.slots_per_node == 2
    for number, changed in ((1, {}), (2, fewer)):
        intent = Intent(number, "name", "tag", 1, 1, 1, overrides=changed)
        intent.write_once(paths.intent(number))
    slots = overrides.Slots(paths, now)
    assert [slots.of(f"{n:04}-0000.0", ["a", "b"]) for n in (1, 2, 3)] == [4, 2, 2]


def test_a_trial_that_takes_what_there_is_pays_for_what_it_got(tmp_path: Path) -> None:
    need = {"slots_per_trial": 6, "nodes": 3, "slots_per_node": 2, "min_slots_per_trial": 4}
    paths = ExperimentPaths(tmp_path)
    paths.config.write_bytes(resolved_config.dump({"resources": need}))
    resolved = resolved_config.load(paths.config)
    Intent(1, "name", "tag", 1, 1, 1).write_once(paths.intent(1))
    slots = overrides.Slots(paths, resolved)
    assert [slots.of("0001-0000.0", ["n"] * nodes) for nodes in (2, 3)] == [4, 6]
    assert (resolved.resources.least_nodes, resolved.resources.granted(2).nodes) == (2, 2)
    asked = dataclasses.replace(resolved.resources, min_slots_per_trial=None)
    assert asked.least_nodes == 3 and asked.granted(2) == asked


def test_every_key_that_may_change_exists_and_is_the_same_for_reader_and_writer() -> None:
    for key in (*overrides.AT_ONCE, *overrides.LATER):
        changed = overrides.lay(resolved_config.Resolved(), {key: "new"})
        value: Any = changed
        for part in key.split("."):
            value = getattr(value, part)
        assert value == "new"
        with pytest.raises(ConfigError, match=r"invalid value|expected a reference"):
            changing.checked(key, {"neither": None})


def saved(trial: TrialPaths, *names: str) -> None:
    """Committed checkpoints, as far as their names tell."""
    for name in names:
        files.write_once(trial.checkpoints / name / "MANIFEST.json", b"{}")


def test_one_trial_of_a_paused_experiment_goes_on_alone(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=3, width=2))
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    commands.ask(world.paths, "pause")
    advance(world.paths, holder)
    commands.ask(world.paths, "resume", 2)
    later(world, holder)
    assert [wanted(world, n).action for n in (1, 2)] == ["pause", "run"]
    assert holder.decided.state == ("RUNNING", "paused by its user, but for trial 2")
    assert len(world.scheduler.live) == 1
    play.finish(play.claim(play.start_all()[0]))
    holder.close()
    holder = world.holder()  # whoever comes next knows it, too
    later(world, holder)
    # the third trial, made meanwhile, stays paused with the first
    assert [wanted(world, n).action for n in (1, 3)] == ["pause", "pause"]
    assert holder.decided.state[0] == "PAUSED" and not world.scheduler.live
    commands.ask(world.paths, "resume")
    later(world, holder)
    assert len(world.scheduler.live) == 2


def test_cancel_now_does_not_wait_for_trials_to_save(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=2, width=2))
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    attempts = [play.claim(worker) for worker in play.start_all()]
    commands.ask(world.paths, "cancel")
    advance(world.paths, holder)
    assert len(world.scheduler.live) == 2, "they may save"
    commands.ask(world.paths, "cancel", now=True)
    advance(world.paths, holder)
    assert not world.scheduler.live
    controls = [wanted(world, n) for n in (1, 2)]
    assert [(c.action, c.now) for c in controls] == [("kill", True)] * 2
    for attempt in attempts:
        play.end(attempt, "canceled")
    assert advance(world.paths, holder).state == "CANCELED"


def test_only_trials_that_failed_so_are_tried_again_where_nobody_minds(tmp_path: Path) -> None:
    method, searcher = Waves(count=3, width=3), {"max_concurrent_trials": 3}
    world = World.make(tmp_path, method, max_restarts=0, searcher=searcher)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    first, second, third = play.start_all()
    play.fail(play.claim(first, 1), reason="oom")
    play.fail(play.claim(second, 2))
    busy = play.claim(third, 3)
    advance(world.paths, holder)
    play.leave(second)
    more: dict[str, Any] = {"resources.memory_per_slot": 2**33, "resources.exclude_nodes": ["n7"]}
    commands.ask(world.paths, "retry", reasons=["walltime"])
    commands.ask(world.paths, "retry", reasons=["oom"], set=more)
    record = holder.record

    def die_after(kind: str, **fields: Any) -> None:
        record(kind, **fields)
        if kind == "command" and not fields["refused"]:
            raise KeyboardInterrupt

    holder.record = die_after  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        advance(world.paths, holder)
    holder = world.holder()
    later(world, holder)

    lines = [line for line in chain.read(world.paths) if line["kind"] == "command"]
    assert [line["refused"] for line in lines] == ["none of its trials failed so", ""]
    assert [standing(world.paths.trial(n)).state for n in (1, 2, 3)] == [
        *("runnable", "failed", "running"),
    ]
    # the first worker idles in an allocation that is too small; a new one comes with more
    new = intents(world)[1:]
    assert [(intent.tasks, intent.exclude) for intent in new] == [(1, ["n7"])]
    assert new[0].overrides == more
    allocation = Allocation("1", ("n1",))
    assert claims.next_attempt(world.paths, first, allocation) is None
    taken = claims.next_attempt(world.paths, play.start("2"), allocation)
    assert taken is not None and (taken.trial, taken.number) == (1, 2)
    later(world, holder)
    assert len(intents(world)) == 2, "and not one after the other"
    play.finish(busy)


def test_tasks_that_wait_are_replaced_where_their_trials_want_others(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=2, width=2))
    holder = world.holder()
    advance(world.paths, holder)
    commands.ask(world.paths, "resume", 1, set={"resources.walltime_s": 60})
    later(world, holder)
    assert [len(intents(world)), len(world.scheduler.live)] == [2, 2]
    assert world.scheduler.live[1][0] == "2", "the other one keeps its place in the queue"


def test_a_trial_begins_again_from_an_older_checkpoint(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    play, holder = world.play(), world.holder()
    trial = world.paths.trial(1)
    advance(world.paths, holder)
    [worker] = play.start_all()
    attempt = play.claim(worker)
    saved(trial, "00000030.g1", "00000060.g1")
    commands.ask(world.paths, "resume", 1, **{"from": "00000030.g1"})  # type: ignore[arg-type]
    advance(world.paths, holder)
    commands.ask(world.paths, "pause")
    advance(world.paths, holder)
    play.end(attempt, "paused", progressed=True)
    for name in ("00000040.g1", "00000030.g1"):
        commands.ask(world.paths, "resume", **{"from": name, "from_trial": 1})  # type: ignore[arg-type]
    later(world, holder)
    said = [line["refused"] for line in chain.read(world.paths) if line["kind"] == "command"]
    assert said == ["trial 1 is running, not paused", "", *said[2:]]
    assert said[2:] == ["trial 1 has no checkpoint 00000040.g1", ""]
    assert (latest_checkpoint(trial), standing(trial).batches) == ("00000030.g1", 30)
    attempt = play.claim(worker)
    saved(trial, "00000040.g2", "00000050.g2")
    assert manifests.current(trial.checkpoints) == ["00000030.g1", "00000040.g2", "00000050.g2"]
    # and back to what was left behind
    commands.ask(world.paths, "pause")
    advance(world.paths, holder)
    play.end(attempt, "paused", progressed=True)
    commands.ask(world.paths, "resume", 1, **{"from": "00000060.g1"})  # type: ignore[arg-type]
    holder.close()
    later(world, world.holder())
    assert manifests.current(trial.checkpoints) == ["00000030.g1", "00000060.g1"]
    assert checkpoints(trial)[-1] == "00000060.g1" and len(checkpoints(trial)) == 4


def test_a_trial_that_failed_may_begin_again_from_before_it_went_wrong(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=2, width=2), max_restarts=0)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    one, two = play.start_all()
    saved(world.paths.trial(1), "00000030.g1", "00000060.g1")
    play.fail(play.claim(one, 1), error="ValueError: the loss is NaN")
    play.claim(two, 2)
    advance(world.paths, holder)
    commands.ask(world.paths, "resume", 1, **{"from": "00000030.g1"})  # type: ignore[arg-type]
    advance(world.paths, holder)
    assert standing(world.paths.trial(1)).state == "runnable"
    assert latest_checkpoint(world.paths.trial(1)) == "00000030.g1"


def test_free_lanes_of_former_allocations_do_not_count_for_trials_that_want_new_ones(
    tmp_path: Path,
) -> None:
    method, searcher = Waves(count=2, width=2), {"max_trials": 2}
    lanes = {"worker": {"lanes": 2}}
    world = World.make(tmp_path, method, max_restarts=0, searcher=searcher, **lanes)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    [worker] = play.start_all()
    play.fail(play.claim(worker, 1), reason="oom")
    play.claim(worker, 2)
    advance(world.paths, holder)
    commands.ask(world.paths, "retry", 1, set={"resources.memory_per_slot": 2**33})
    later(world, holder)
    assert len(intents(world)) == 2 and len(world.scheduler.live) == 2


def test_what_failed_is_tried_again_though_the_experiment_was_over(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=2, width=2), max_restarts=0)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    one, two = play.start_all()
    play.fail(play.claim(one, 1), reason="oom")
    play.finish(play.claim(two, 2))
    assert advance(world.paths, holder).state == "COMPLETED"
    play.leave(one, "closed")
    play.leave(two, "closed")
    with pytest.raises(UsageError, match="COMPLETED already"):
        commands.ask(world.paths, "resume")
    more: dict[str, Any] = {"resources.memory_per_slot": 2**33}
    commands.ask(world.paths, "retry", reopen=True, reasons=["oom"], set=more)
    later(world, holder)
    assert holder.decided.state[0] == "RUNNING" and not world.paths.closed.exists()
    assert [standing(world.paths.trial(n)).state for n in (1, 2)] == ["runnable", "done"]
    [worker] = play.start_all()
    play.finish(play.claim(worker))
    assert advance(world.paths, holder).state == "COMPLETED"
    closed = Closed.read(world.paths.closed)
    assert world.paths.closed.name == "closed-2.json"
    assert closed is not None and closed.why == "2 of 2 trials succeeded"
    assert intents(world)[-1].overrides == more


def test_a_search_that_is_over_goes_on_when_it_is_extended(tmp_path: Path) -> None:
    searcher = {"max_trials": 2, "max_length": {"batches": 100}}
    world = World.make(tmp_path, Waves(count=2, width=2), searcher=searcher)
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    for worker in play.start_all():
        play.finish(play.claim(worker))
        play.leave(worker, "closed")
    assert advance(world.paths, holder).state == "COMPLETED"
    commands.ask(world.paths, "set", reopen=True, **{"searcher.max_trials": 3})
    holder.close()
    holder = world.holder()
    later(world, holder)
    told = [line["event"] for line in chain.read(world.paths) if line["kind"] == "event"]
    length = {"batches": 100}
    limits = {"max_trials": 3, "max_concurrent": 2, "max_length": length}
    assert [event for event in told if event["kind"] == "limits"] == [{"kind": "limits", **limits}]
    assert holder.decided.state[0] == "RUNNING" and not world.paths.closed.exists()
    [worker] = play.start_all()
    play.finish(play.claim(worker))
    assert advance(world.paths, holder).state == "COMPLETED"
    closed = Closed.read(world.paths.closed)
    assert closed is not None and closed.why == "3 of 3 trials succeeded"


def test_a_search_that_reached_its_target_says_so_and_goes_on_when_more_is_asked_for(
    tmp_path: Path,
) -> None:
    asked = {"name": "random", "max_length": {"batches": 100}, "max_trials": 2}
    target = {"stopping": {"target": {"value": 0.2}}, "stopping_version": 2}
    world = World.make(tmp_path, searcher={**asked, **target, "max_concurrent_trials": 1})
    world.method = searcher_factory.searcher(world.resolved)
    files.write_once(world.paths.config, resolved_config.dump(world.resolved.raw))
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    [worker] = play.start_all()
    play.finish(play.claim(worker), loss=0.1)
    assert advance(world.paths, holder).state == "COMPLETED"
    closed = Closed.read(world.paths.closed)
    reached = "target: trial 1 reached the target with 0.1"
    assert closed is not None and closed.why == f"1 of 1 trials succeeded; {reached}"
    gathered = gather.gather(world.paths)
    assert extending.wanted(gathered, 1, None) == {"searcher.max_trials": 3}
    searcher = dataclasses.replace(gathered.config.searcher, stopping_version=1)
    vars(gathered)["config"] = dataclasses.replace(gathered.config, searcher=searcher)
    with pytest.raises(UsageError, match="its version of the policies"):
        extending.wanted(gathered, 1, None)
    commands.ask(world.paths, "set", reopen=True, **{"searcher.max_trials": 3})
    holder.close()
    later(world, holder := world.holder(), 1)
    assert holder.decided.state[0] != "COMPLETED" and sorted(holder.decided.trials.open) == [2]
    commands.ask(world.paths, "set", **{"searcher.max_length": {"batches": 200}})  # type: ignore[arg-type]
    later(world, holder, 1)  # the first trial had come to its end with the report that ended it
    assert sorted(holder.decided.trials.open) == [1, 2]
    assert standing(world.paths.trial(1)).state == "runnable"
    again = gather.gather(world.paths)
    assert [extending.further(again, {"searcher.max_trials": n}) for n in (2, 3, 4)] == [
        False,
        False,
        True,
    ]


def test_a_search_made_longer_again_and_again_is_compared_at_each_of_its_lengths(
    tmp_path: Path,
) -> None:
    asked = {"name": "async_halving", "max_length": {"batches": 9}, "divisor": 3, "max_trials": 4}
    world = World.make(tmp_path, searcher={**asked, "num_rungs": 2})
    world.method = searcher_factory.searcher(world.resolved)
    files.write_once(world.paths.config, resolved_config.dump(world.resolved.raw))
    advance(world.paths, holder := world.holder())
    for length in (27, 18, 81):
        commands.ask(world.paths, "set", **{"searcher.max_length": {"batches": length}})  # type: ignore[arg-type]
        later(world, holder, 1)
        holder.close()
        holder = world.holder()
    refused = [line["refused"] for line in chain.read(world.paths) if line["kind"] == "command"]
    assert [bool(why) for why in refused] == [False, True, False]
    assert "until 27 batches; that can only be made longer" in refused[1]
    later(world, holder, 1)
    assert holder.decided.searcher.search.brackets[0].rungs == [3, 9, 27, 81]

    def rungs() -> list[int]:
        session = Session(
            Ranks(),
            AttemptLocation.of(world.paths.root, 1, 1),
            Trial(1, {}, 7),
            overrides.of_submission(world.paths, 1),  # an allocation from before all that
            Deadline(None),
        )
        session.length.read()
        session.tracker.close()
        return [rung.value for rung in session.length.rungs]

    assert rungs() == [3, 9, 27, 81]


def test_a_search_is_extended_from_where_it_is_now(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    gathered = gather.gather(built.paths)
    more: dict[str, Any] = {"searcher.max_trials": 6, "searcher.max_length": {"batches": 400}}
    assert extending.wanted(gathered, 2, "400batches") == more
    built.command("set", **more)
    again = gather.gather(built.paths)
    assert extending.wanted(again, 2, None) == {"searcher.max_trials": 8}
    for longer, why in (("400", "until 400 batches already"), ("9 epochs", "no length in")):
        with pytest.raises(UsageError, match=why):
            extending.wanted(again, None, longer)
    single = {"searcher": {"name": "single", "max_trials": 1}}
    with pytest.raises(UsageError, match="no more trials"):
        extending.wanted(gather.gather(Builder(tmp_path / "one-1", **single).paths), 2, None)
    steps = {"searcher": {"name": "schedule", "max_length": {"batches": 9}}}
    with pytest.raises(UsageError, match="until its last step"):
        extending.wanted(gather.gather(Builder(tmp_path / "two-2", **steps).paths), None, "20")
    assert changing.changes(["max_trials=8"]) == {"searcher.max_trials": 8}


@pytest.mark.parametrize("name", ["single", "pbt"])
def test_a_search_whose_only_trials_a_policy_has_stopped_is_not_made_longer(
    tmp_path: Path, name: str
) -> None:
    stopping = {"stopping": {"target": {"value": 0.1}}, "stopping_version": 2}
    searcher = {"name": name, "max_length": {"batches": 100}, **stopping}
    built = Builder(tmp_path / "digits-7f3a", searcher=searcher)

    def asked() -> dict[str, Any]:
        return extending.wanted(gather.gather(built.paths), None, "200")

    assert asked() == {"searcher.max_length": {"batches": 200}}
    built.decide("action", action=codec.encode_action(events.Shutdown(why="target: reached")))
    with pytest.raises(UsageError, match=f"by {name} makes no others .target: reached"):
        asked()
    others = [] if name == "single" else [events.SegmentEnd(2, "stopped")]
    for end in (events.SegmentEnd(1, "target"), *others):
        built.decide("event", event=codec.encode_event(end))
    assert asked() == {"searcher.max_length": {"batches": 200}}  # trial 1 can go on
    built.decide("event", event=codec.encode_event(events.SegmentEnd(1, "stopped")))
    with pytest.raises(UsageError, match=f"by {name} makes no others"):
        asked()


@pytest.mark.parametrize("holds", [False, True], ids=["", "one had the lease"])
def test_who_resumes_turns_until_those_that_were_killed_have_been_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holds: bool
) -> None:
    """As after a full disk, on which none could write that it left."""
    world = World.make(tmp_path, Waves(count=2, width=2))
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    for worker in play.start_all():
        play.claim(worker)
        files.replace(worker.beat, b"{}")
        play.vanish(worker, TaskState.FAILED)
        if holds:  # then the scheduler is not asked for long
            os.utime(worker.beat, (0, 0))
    if holds:
        monkeypatch.delitem(lease._held, world.paths.root)  # as of another process
    else:
        holder.close()

    def pause(_: float) -> None:
        world.clock.now += 11

    monkeypatch.setattr(Holder, "open", lambda _, kind, **__: world.holder(kind))
    monkeypatch.setattr(send_commands.follow, "pause", pause)
    monkeypatch.setattr(send_commands.time, "monotonic", world.clock)
    commands.ask(world.paths, "resume")
    with click.Context(click.Command("resume")):
        send_commands.turn_until_somebody_works(world.paths)
    assert len(world.scheduler.jobs) == 2


def test_a_search_that_had_nothing_more_to_do_is_not_reopened_by_a_limit_that_it_had(
    cli: Cli,  # noqa: F811
) -> None:
    built = Builder(cli.root / "digits-7f3a")
    built.close("COMPLETED")
    now = gather.gather(built.paths).config.searcher.max_trials
    for fewer in (now, now - 1):
        for verb in (("set",), ("resume", "--set")):
            said = cli(verb[0], built.paths.id, *verb[1:], f"max_trials={fewer}", code=2).err
            assert "COMPLETED" in said
    assert not built.paths.reopening.exists()
    cli("set", built.paths.id, f"max_trials={now + 1}", "-n")


def test_two_who_ask_for_more_trials_at_once_get_both(
    cli: Cli,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built, wanted = Builder(cli.root / "digits-7f3a"), extending.wanted
    now = gather.gather(built.paths).config.searcher.max_trials

    def outrun(*asked: Any) -> dict[str, Any]:
        found = wanted(*asked)
        if not built.paths.command(1).exists():
            built.command("set", **{"searcher.max_trials": now + 1})
        return found

    monkeypatch.setattr(extending, "wanted", outrun)
    monkeypatch.setattr(change, "_turn", lambda _: None)
    cli("set", built.paths.id, "--more-trials", "1")
    second = Command.read(built.paths.command(2))
    assert second is not None and second.arguments == {"searcher.max_trials": now + 2}


def test_what_nobody_obeyed_before_an_experiment_was_over_may_be_asked_for_again(
    tmp_path: Path,
) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    for most in (6, 8):
        built.command("set", **{"searcher.max_trials": most})
    built.decide("command", seq=1, verb="set", arguments={"searcher.max_trials": 6})
    built.close("COMPLETED")  # by a holder that had not seen the second
    gathered = gather.gather(built.paths)
    asked = [extending.further(gathered, {"searcher.max_trials": n}) for n in (6, 7, 8)]
    assert asked == [False, True, True]
    assert extending.wanted(gathered, 1, None) == {"searcher.max_trials": 9}


def test_a_search_is_forked_from_before_a_former_rule_had_ended_it(tmp_path: Path) -> None:
    stopping = {"stopping": {"target": {"value": 0.1}}, "stopping_version": 1}
    built = Builder(tmp_path / "digits-7f3a", searcher={"name": "random", **stopping})
    for n in (1, 2, 3):
        create = events.Create(n, {}, n, None)
        built.decide("action", action=codec.encode_action(create))
    built.decide("action", action=codec.encode_action(events.Shutdown(why="target: reached")))
    gathered = gather.gather(built.paths)
    more = extending.wanted(gathered, 4, None, trials=2)
    extending.possible(gathered, more, trials=2)
    for trials in (None, 3):
        with pytest.raises(UsageError, match="its version of the policies"):
            extending.possible(gathered, more, trials)
