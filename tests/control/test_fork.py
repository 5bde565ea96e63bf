"""A search that goes on in a new experiment: what it has heard, its trials, and the old one."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdet.cli.run import fork as verb
from hpcdet.control.leader.trial_plan import TrialPlan
from hpcdet.control.requests import fork
from hpcdet.control.requests.replay import Replay
from hpcdet.control.turn.controller import advance
from hpcdet.errors import Unavailable, UsageError
from hpcdet.policy import governed_metrics
from hpcdet.policy.compiled import CompiledPolicy, DataSource, LayerGroup
from hpcdet.read.views import views
from hpcdet.search import searcher_factory
from hpcdet.search.api import codec, events
from hpcdet.site_files import load_site
from hpcdet.store.config import resolved_config
from hpcdet.store.decisions import chain
from hpcdet.store.folder.layout import INHERITED, ExperimentPaths
from hpcdet.store.folder.records import Best, Trial
from hpcdet.store.fs import files
from hpcdet.store.trials.controls import in_force
from hpcdet.store.trials.parents import Donation
from hpcdet.store.trials.standing import latest_checkpoint, standing
from hpcdet.units import Length
from tests.commands import Cli, cli  # noqa: F401
from tests.paper import World
from tests.ruled import Ruled, forge

RUNGS = (10, 20, 40)
SEARCH: dict[str, Any] = {
    "hyperparameters": {"x": {"type": "double", "minval": 0.0, "maxval": 1.0}},
    "searcher": {
        "name": "async_halving",
        "divisor": 2,
        "num_rungs": 3,
        "max_length": {"batches": 40},
        "max_trials": 8,
        "max_concurrent_trials": 1,
    },
    "reproducibility": {"experiment_seed": 3},
}


def searching(root: Path, **changes: Any) -> World:
    """An experiment on paper with everything that a fork takes from it."""
    world = World.make(root, **{**SEARCH, **changes})
    world.method = searcher_factory.searcher(world.resolved)
    paths = world.paths
    files.make_folder(paths.code)
    (paths.code / "train.py").write_text("print('hello')\n")
    files.write_once(paths.provenance, b"{}\n")
    files.write_once(paths.site, load_site.dump(world.site))
    files.write_once(paths.config, resolved_config.dump(world.resolved.raw))
    return world


def of(made: fork.Forked, world: World) -> World:
    return World(made.paths, world.resolved, world.site, searcher_factory.searcher(world.resolved))


def drive(world: World, enough: Callable[[], bool] = lambda: False) -> None:
    """One worker trains trial after trial, each until it has to leave, until the search is over."""
    play, holder = world.play(), world.holder()
    workers = list(world.paths.workers())
    try:
        for _ in range(200):
            world.clock.now += 11
            advance(world.paths, holder)
            if world.paths.closed.exists() or enough():
                return
            workers += play.start_all()
            if not any(standing(trial).state == "runnable" for trial in world.paths.trials()):
                continue
            attempt = play.claim(workers[0])
            trial = world.paths.trial(attempt.trial)
            begun = int(latest_checkpoint(trial).partition(".")[0] or 0)
            record = Trial.read(trial.record)
            assert record is not None
            for rung in (rung for rung in RUNGS if rung > begun):
                play.report(attempt, rung, loss := record.params["x"] + 1 / rung)
                world.clock.now += 11
                advance(world.paths, holder)
                control = in_force(trial)
                assert control is not None
                if control.action == "pause":
                    play.save(attempt, rung)
                    play.end(attempt, "paused", progressed=True)
                    break
            else:
                play.save(attempt, 40)
                play.finish(attempt, loss)
        raise AssertionError("it does not end")
    finally:
        holder.close()


def searched(paths: ExperimentPaths) -> list[Any]:
    """Events and actions, without what explains them."""
    found = [
        line[line["kind"]] for line in chain.read(paths) if line["kind"] in ("event", "action")
    ]
    return [{key: value for key, value in each.items() if key != "seconds"} for each in found]


def made_of(paths: ExperimentPaths) -> int:
    return sum(each["kind"] == "create" for each in searched(paths))


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_fork_goes_on_as_the_search_would_have(tmp_path: Path) -> None:
    world = searching(tmp_path)
    drive(world, lambda: made_of(world.paths) >= 5)
    before = snapshot(world.paths.root)
    made = fork.fork(world.paths, {})
    assert snapshot(world.paths.root) == before
    assert made.carried and made.going
    there = of(made, world)
    for number in made.carried:
        [mine, theirs] = [list(w.paths.trial(number).root.rglob("*.jsonl")) for w in (there, world)]
        assert [path.stat().st_ino for path in mine] == [path.stat().st_ino for path in theirs]
    for number, length in made.going.items():
        folder = there.paths.trial(number).checkpoint(length.value, INHERITED)
        [shard] = folder.glob("*.h5")
        assert shard.stat().st_nlink == 2
        assert shard.read_bytes().decode() == f"trial {number} after {length.value}"
    drive(there)
    drive(world)
    assert searched(there.paths) == searched(world.paths)
    going = Trial.read(there.paths.trial(min(made.going)).record)
    assert going is not None and going.parent.startswith(f"../{world.paths.id}/{going.number}@")
    again = Replay(searcher_factory.searcher(world.resolved), {})
    lines = chain.read(there.paths)
    assert len(list(again.run(lines))) == len(lines) and again.difference is None
    assert Best.read(there.paths.best) is not None


def test_a_search_that_is_over_goes_on_further_or_from_an_earlier_point(tmp_path: Path) -> None:
    world = searching(tmp_path)
    for _ in range(3):  # holders came and went: many terms, of which controls of trials tell
        holder = world.holder()
        advance(world.paths, holder)
        holder.close()
    drive(world)
    with pytest.raises(UsageError, match="over"):
        fork.fork(world.paths, {})
    with pytest.raises(UsageError, match="very beginning"):
        fork.fork(world.paths, {}, trials=0)
    half = of(fork.fork(world.paths, {}, trials=4), world)
    assert made_of(half.paths) == 4
    drive(half)
    assert searched(half.paths) == searched(world.paths)

    more = of(fork.fork(world.paths, {"searcher.max_trials": 12}), world)
    [command] = (json.loads(path.read_bytes()) for path in more.paths.commands.iterdir())
    assert command["arguments"] == {"searcher.max_trials": 12}
    drive(more)
    assert made_of(more.paths) == 12
    assert searched(more.paths)[: len(searched(world.paths))] == searched(world.paths)
    longer = of(fork.fork(world.paths, {"searcher.max_length": {"batches": 80}}), world)
    drive(longer, lambda: any(standing(t).state == "runnable" for t in longer.paths.trials()))
    runnable = [t for t in longer.paths.trials() if standing(t).state == "runnable"]
    assert all(latest_checkpoint(trial).startswith("00000040") for trial in runnable)
    # claims of carried trials name workers of the other one, whose cost is not that of new ones
    assert min(longer.paths.submissions()) > max(world.paths.submissions())


def test_trials_that_the_search_ended_early_are_stopped_there_and_in_a_fork(tmp_path: Path) -> None:
    world = searching(tmp_path)
    drive(world)
    more = of(fork.fork(world.paths, {"searcher.max_trials": 12}), world)
    drive(more)
    for paths in (world.paths, more.paths):
        found = {row.trial: (row.state, row.steps) for row in views.trials(paths)}
        assert {state for state, _ in found.values()} == {"STOPPED", "COMPLETED"}
        for number, (state, steps) in found.items():
            assert (state == "COMPLETED") == (steps == 40), f"{number} {state} {steps}"
    early = next(row for row in views.trials(world.paths) if row.state == "STOPPED")
    assert "rung" in early.why and early.why.endswith("the search is over")


def test_what_users_did_to_trials_that_had_ended_goes_along() -> None:
    """Three began again after a failure; one from an older checkpoint, one was canceled."""
    lines: list[dict[str, Any]] = [{"kind": "event", "event": {"kind": "start"}}]
    for trial in (1, 2, 3, 4):
        create = events.Create(trial, {"x": 0.1}, 7, Length("batches", 40))
        lines += [
            {"kind": "action", "action": codec.encode_action(create)},
            {"kind": "retry", "trial": trial, "attempts": 2},
            {"kind": "fail", "trial": trial, "why": "ValueError: x"},
            _ended(trial, "failed"),
        ]
    again = [[trial, 2] for trial in (1, 2, 3)]
    from_older = {"rewinds": [[1, "00000010.g1", 3]]}
    lines.append({"kind": "command", "seq": 1, "verb": "retry", "again": again, **from_older})
    lines.append({"kind": "command", "seq": 2, "verb": "cancel", "trial": 2})
    lines += [_ended(1, "target"), _ended(2, "canceled")]
    then = fork._folded(lines)
    heard = [line for line in lines if line["kind"] in fork._KINDS]
    adopt = {"kind": "adopt", "parents": {"3": ""}, "carried": fork._by_commands(lines, then)}
    there = fork._folded([*heard, adopt])
    for trial in (1, 2, 4):
        assert there.trials.plans[trial] == then.trials.plans[trial]
    assert there.control(there.trials.plans[1]).rewinds == [["00000010.g1", 3]]
    assert (
        there.trials.plans[1].base,
        there.trials.plans[2].killed,
        there.trials.plans[4].base,
    ) == (2, True, 0)
    assert not there.trials.plans[3].failed and there.trials.given_up == [4]


def test_a_trial_that_was_retried_goes_on_in_a_fork_and_the_lengths_go_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what breaks a constraint is no best of the fork either."""
    create = events.Create(1, {"x": 0.1}, 7, Length("batches", 40))
    lines: list[dict[str, Any]] = [
        {"kind": "event", "event": {"kind": "start"}},
        {"kind": "action", "action": codec.encode_action(create)},
        {"kind": "fail", "trial": 1, "why": "ValueError: x"},
        _ended(1, "failed"),
        {"kind": "command", "seq": 1, "verb": "retry", "again": [[1, 1]]},
    ]
    for seq, value in ((2, 80), (3, 160)):
        longer = {"searcher.max_length": {"batches": value}}
        lines.append({"kind": "command", "seq": seq, "verb": "set", "arguments": longer})
        told = codec.encode_event(events.Limits(1, 1, Length("batches", value)))
        lines.append({"kind": "event", "event": told})
    for loss, slow in ((0.5, 1.0), (0.1, 9.0)):
        report = events.Report(1, Length("batches", 10), {"validation_loss": loss, "slow": slow})
        lines.append({"kind": "event", "event": codec.encode_event(report)})
    limit = {"constraints": [{"metric": "slow", "upper": 2.0}]}
    searcher = {**SEARCH["searcher"], "metric": "validation_loss", **limit}
    world = searching(tmp_path, searcher=searcher)
    monkeypatch.setattr(fork.chain, "whole", lambda _: lines)
    made = fork.fork(world.paths, {})
    monkeypatch.undo()
    there = fork._folded(chain.read(made.paths))
    assert there.trials.open == {1} and not there.trials.plans[1].ended
    assert there.searcher.longer == fork._folded(lines).searcher.longer == [80, 160]
    best = Best.read(made.paths.best)
    assert best is not None and best.metric == 0.5


def test_an_heir_without_its_link_yet_begins_in_a_fork_where_the_search_thinks_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, there = ExperimentPaths(tmp_path / "a"), ExperimentPaths(tmp_path / "b")
    held = {1: [200, 300, 400], 9: [300, 500], 12: [300], 13: [300]}
    monkeypatch.setattr(
        fork.parents,
        "donations",
        lambda trial, _: [
            Donation(trial.checkpoint(at, INHERITED if trial.number > 11 else 1), at, {})
            for at in held.get(trial.number, [])
        ],
    )
    until = Length("batches", 600)
    then = fork._folded([])
    then.trials.plans = {
        1: TrialPlan(1, {}, 1, until, told=450),
        2: TrialPlan(2, {}, 1, until, ended="target"),
    }
    found = fork.Forked(there, 1)
    named = {8: "1@300 batches", 9: "1@300 batches", 10: "2", 11: "origin/1"}
    named |= {12: "origin/1@300 batches", 13: "1@300 batches"}  # which have their links by now
    plans = [TrialPlan(number, {}, 1, until, parent) for number, parent in named.items()]
    given = [fork._begins(source, found, then, plan) for plan in plans]
    assert [one and one.at for one in given] == [300, 300, None, None, None, 300]
    assert found.named == {
        8: "../a/1@300 batches",
        9: "../a/9@300 batches",
        10: "2",
        11: "origin/1",
        12: "origin/1@300 batches",
        13: "../a/13@300 batches",
    }
    assert found.anew == [10, 11, 12]


def _ended(trial: int, reason: Any) -> dict[str, Any]:
    return {"kind": "event", "event": codec.encode_event(events.SegmentEnd(trial, reason))}


def test_the_verb_says_what_it_made(
    cli: Cli,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = searching(cli.root)
    drive(world, lambda: made_of(world.paths) >= 5)
    monkeypatch.setattr(verb, "turn_until_somebody_works", lambda _: None)
    asked = ("fork", world.paths.id, "--more-trials", "4", "--name", "on", "-o", "json")
    before = snapshot(cli.root)
    [planned] = cli(*asked, "-n").items
    assert snapshot(cli.root) == before
    [item] = cli(*asked).items
    assert planned == {**item, "id": "", "path": ""}
    assert item["id"].startswith("on-") and item["of"] == world.paths.id
    assert item["ended"] + item["going"] + item["anew"] == 5
    [verified] = cli("searcher", "replay", "--verify", item["id"], "-o", "json").items
    assert verified["events"] == item["events"]
    cli("fork", world.paths.id, "--longer", "10", code=2)


def test_nothing_remains_of_a_fork_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = searching(tmp_path)
    with pytest.raises(UsageError, match="not begun"):
        fork.fork(world.paths, {})
    drive(world, lambda: made_of(world.paths) >= 5)

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fork, "_write_records", fails)
    with pytest.raises(Unavailable, match="No space"):
        fork.fork(world.paths, {})
    assert [path.name for path in tmp_path.iterdir()] == [world.paths.id]


def test_a_checkpoint_that_its_ledger_does_not_attest_begins_no_fork(
    cli: Cli,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verb, "turn_until_somebody_works", lambda _: None)
    policy = CompiledPolicy(
        "p", 1, "sha256:0", (LayerGroup("all", ""),), (DataSource("a"),), ((1,),)
    )
    ruled = Ruled(cli.root / "ruled-7f3a", policy)
    folder = ruled.attempt(policy, {"a": 4})
    raw = dict(resolved_config.load(ruled.paths.config).raw)
    raw["searcher"] = {**raw["searcher"], "constraints": governed_metrics.constraints(policy)}
    ruled.paths.config.write_bytes(resolved_config.dump(raw))
    method = searcher_factory.searcher(resolved_config.load(ruled.paths.config))
    state = method.initial()
    for event in (events.Start(), events.Report(1, Length("batches", 10), {"validation_loss": 1})):
        ruled.built.decide("event", event=codec.encode_event(event))
        state, actions = method.on_event(state, event)
        for action in actions:
            ruled.built.decide("action", action=codec.encode_action(action))
    [item] = cli("fork", ruled.paths.id, "-o", "json").items
    assert item["begins"] == {"1": "10 batches"}
    there = sorted(cli.root.iterdir())
    ledger = ruled.trial.paths.attempt(1).ledger
    whole = ledger.read_bytes()
    ledger.write_bytes(whole.replace(b'"a":4', b'"a":5', 1))
    for options in ((), ("-n",)):
        err = " ".join(cli("fork", ruled.paths.id, *options, code=9).err.split())
        assert "G104: attempt 1, record " in err and "put the ledger back" in err
    ledger.write_bytes(whole)
    forge(folder, lambda said: said.update(rows={"a": 3}))
    assert "G102" in cli("fork", ruled.paths.id, code=9).err
    assert sorted(cli.root.iterdir()) == there
