"""Who takes over knows from a snapshot what the records say; deciding again decides the same."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.leader import decision_log
from hpcdet.control.leader.decided_state import Decided, program
from hpcdet.control.leader.leader import Holder
from hpcdet.control.requests.replay import Replay
from hpcdet.control.turn.controller import advance
from hpcdet.search import searcher_factory
from hpcdet.search.api import codec
from hpcdet.search.api.events import (
    Action,
    Ask,
    Create,
    Event,
    Pause,
    Report,
    SegmentEnd,
    Shutdown,
    Start,
    State,
    Stop,
)
from hpcdet.store.config import resolved_config
from hpcdet.store.decisions import chain, snapshots
from hpcdet.store.decisions.chain import Chain, Point
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.units import Length
from tests import RECORDED
from tests.commands import Cli
from tests.paper import Promotion, World

RULE_4 = RECORDED / "searches" / "rule-4.jsonl"


def searched(world: World, after: Callable[[Holder], None] = lambda _: None) -> None:
    """A search by promotion, to its end; ``after`` is told of each turn's holder."""
    play, holder = world.play(), world.holder()

    def turn() -> None:
        world.clock.now += 11
        advance(world.paths, holder)
        after(holder)

    turn()
    here, there = play.start_all()
    one = play.claim(here)
    play.report(one, 50, 0.1)
    for loss in (0.5, 0.4, 0.3):
        attempt = play.claim(there)
        play.report(attempt, 50, loss)
        turn()
        play.end(attempt, "paused", progressed=True)
        turn()
    play.finish(one)
    turn()
    play.finish(play.claim(here))
    turn()
    turn()
    assert world.paths.closed.exists()


def folded(world: World) -> Decided:
    decided = Decided(world.method)
    for line in chain.read(world.paths):
        decided.take(line)
    return decided


def test_a_snapshot_is_what_the_records_fold_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_log, "SNAPSHOT_EVERY", 1)
    world = World.make(tmp_path, Promotion())
    read: list[int] = []

    def another(busy: Holder) -> None:
        """A new holder begins from the newest snapshot, and knows what the last one knew."""
        if world.paths.closed.exists():
            return
        busy.close()
        fresh = world.holder()
        assert fresh.begin()
        assert fresh.decided.encode() == folded(world).encode()
        read.append(fresh._log.chain.since.n if fresh._log and fresh._log.chain.since else 0)
        fresh.close()

    searched(world, another)
    assert all(read), "each began from a snapshot"
    assert len(list(world.paths.snapshots.iterdir())) == snapshots.KEEP
    again = Replay(world.method, {s.point: s.state for s in _snapshots(world)})
    assert len(list(again.run(lines := chain.read(world.paths)))) == len(lines)
    assert again.difference is None and not again.failed
    assert list(again.points.values()) == [True] * snapshots.KEEP


def test_a_searcher_may_keep_what_is_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_log, "SNAPSHOT_EVERY", 1)
    method = Promotion()
    first = method.initial
    monkeypatch.setattr(method, "initial", lambda: {**first(), "mean": math.nan})
    world = World.make(tmp_path, method)
    searched(world)
    taken = _snapshots(world)
    assert [math.isnan(one.state["search"]["mean"]) for one in taken] == [True] * snapshots.KEEP
    again = Replay(method, {one.point: one.state for one in taken})
    assert len(list(again.run(lines := chain.read(world.paths)))) == len(lines)
    assert list(again.points.values()) == [True] * snapshots.KEEP


def _snapshots(world: World) -> list[snapshots.Snapshot]:
    return list(snapshots.read(world.paths, program(world.method)))


def test_a_snapshot_that_is_damaged_or_another_versions_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_log, "SNAPSHOT_EVERY", 1)
    world = World.make(tmp_path, Promotion())
    searched(world)
    newest, *older = _snapshots(world)
    file = world.paths.snapshot(newest.point.term, newest.point.n)
    file.write_bytes(file.read_bytes().replace(b'"killed"', b'"kilted"').replace(b"0.3", b"0.2"))
    assert _snapshots(world) == older
    for known in (older, [dataclasses.replace(s, point=s.point) for s in older[-1:]]):
        found = Chain.open(world.paths, 90 + len(known), "test", [s.point for s in known])
        assert found.since == known[0].point
        found.close()
    world.method.version = 2
    assert _snapshots(world) == []
    holder = world.holder()
    world.paths.closed.unlink()
    assert holder.begin()
    assert holder.decided.encode() == folded(world).encode()
    holder.close()


def test_what_no_later_term_accepted_is_not_begun_from(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    old = Chain.open(paths, 1, "old")
    old.append("decided", what=1)
    accepted = old.point
    new = Chain.open(paths, 2, "new", [accepted])
    assert (new.since, [line["kind"] for line in new.history]) == (accepted, ["term"])
    old.append("decided", what="stale")
    new.append("decided", what=2)
    lost = Point(2, 5, 10_000)  # of records that never became durable
    last = Chain.open(paths, 3, "last", [lost, old.point, accepted])
    assert last.since == accepted
    assert [line.get("what") for line in last.history] == [None, 2, None]
    for each in (old, new, last):
        each.close()


def test_the_first_decision_that_would_be_another_is_told(tmp_path: Path) -> None:
    world = World.make(tmp_path, Promotion())
    searched(world)
    lines = chain.read(world.paths)
    eager = Replay(Promotion(width=3), {})
    list(eager.run(lines))
    difference = eager.difference
    assert difference is not None and difference.after == {"kind": "start"}
    assert difference.recorded is None and difference.wanted is not None
    assert difference.wanted["trial"] == 3
    patient = Replay(Promotion(promoted=0), {})
    list(patient.run(lines))
    difference = patient.difference
    assert difference is not None and difference.recorded is not None
    assert difference.recorded["kind"] == "continue" and difference.wanted is None
    assert str(difference).endswith("decided again it is nothing")


def test_a_search_goes_on_by_the_rules_of_the_version_that_began_it() -> None:
    """Recorded by version 4: trial 2 was stopped and had trained to its end, and is continued."""
    raw, *lines = map(json.loads, RULE_4.read_text().splitlines())
    again = Replay(searcher_factory.searcher(resolved_config.resolve(raw)), {})
    assert len(list(again.run(lines))) == len(lines) and not again.failed
    assert (again.decisions, again.difference) == (13, None)
    raw["searcher"]["rule_version"] = 5
    newer = Replay(searcher_factory.searcher(resolved_config.resolve(raw)), {})
    list(newer.run(lines))
    assert newer.difference is not None and newer.difference.recorded is not None
    assert newer.difference.recorded["kind"] == "continue" and newer.difference.wanted is None


LOSS = [{"loss": math.nan}, {}, {}]


@pytest.mark.parametrize(
    ("name", "asked", "events", "recorded"),
    [
        (
            "async_halving",
            {"rule": "stopping", "divisor": 3},
            [Report(n, Length("batches", 1), shown) for n, shown in enumerate(LOSS, 1)],
            [[], [Stop(2), 4], [Stop(3), 5]],
        ),
        (
            "random",
            {},
            [
                *(Report(n, Length("batches", 9), {}) for n in (1, 2, 3)),
                *(SegmentEnd(n, "target") for n in (1, 2, 3)),
            ],
            [[], [], [], [4], [5], [6]],
        ),
    ],
)
def test_what_searchers_decided_before_they_asked_folds_into_what_it_was(
    name: str, asked: dict[str, Any], events: list[Event], recorded: list[list[Any]]
) -> None:
    """Nobody was asked where nobody shows a number: that is new, and all else as recorded."""
    search = {"name": name, "metric": "loss", "max_length": {"batches": 9}, **asked}
    search |= {"max_trials": 9, "max_concurrent_trials": 3}
    decided = Decided(searcher_factory.searcher(resolved_config.resolve({"searcher": search})))
    told = zip([Start(), *events], [[1, 2, 3], *recorded], strict=True)
    for event, actions in told:
        decided.take({"kind": "event", "event": codec.encode_event(event)})
        wants = [action for action in decided.searcher.owed if not isinstance(action, Ask)]
        for action in actions:
            until = Length("batches", 9)
            one = Create(action, {}, 1, until) if isinstance(action, int) else action
            decided.take({"kind": "action", "action": codec.encode_action(one)})
        assert [type(want) for want in wants] == [
            Create if isinstance(action, int) else type(action) for action in actions
        ]
    [left] = decided.searcher.owed
    assert isinstance(left, Ask), "nothing is decided a second time, and the user is asked now"


class Wants:
    """A searcher that wants these actions after the first report, of four trials."""

    name = "wants"
    version = 1

    def __init__(self, *actions: Action) -> None:
        self.actions = list(actions)

    def initial(self) -> State:
        return {}

    def on_event(self, state: State, event: Event) -> tuple[State, list[Action]]:
        if isinstance(event, Start):
            return state, [Create(n, {}, 1, Length("batches", 9)) for n in (1, 2, 3, 4)]
        return state, self.actions


def test_what_was_done_instead_of_what_is_wanted_today_takes_its_place() -> None:
    new = Create(5, {}, 1, Length("batches", 9))
    question, end = Ask("is it so?"), Shutdown()

    def left(*wanted: Action, recorded: Action) -> list[Action]:
        decided = Decided(Wants(*wanted))
        decided.hear(Start())
        for create in list(decided.searcher.owed):
            decided.take({"kind": "action", "action": codec.encode_action(create)})
        decided.hear(Report(1, Length("batches", 1), {}))
        decided.take({"kind": "action", "action": codec.encode_action(recorded)})
        return decided.searcher.owed

    assert left(Pause(1), new, recorded=Stop(1)) == [new]
    assert left(Pause(2), Pause(1), new, recorded=Stop(1)) == [Pause(2), new]
    assert left(question, Pause(2), new, recorded=Stop(1)) == [question, new]
    assert left(Stop(1), end, recorded=new) == [end]
    assert left(Stop(1), new, recorded=question) == [Stop(1), new]
    assert left(question, Pause(2), new, recorded=new) == [question]


def test_a_searcher_that_fails_now_is_told_too(tmp_path: Path) -> None:
    world = World.make(tmp_path, Promotion())
    searched(world)

    class Forgetful(Promotion):
        def initial(self) -> dict[str, Any]:
            return {}

    broken = Replay(Forgetful(), {})
    assert list(broken.run(chain.read(world.paths)))[-1]["kind"] == "term"
    assert broken.failed == "searcher promotion: KeyError: 'runs'"


def test_the_command_says_whether_all_is_decided_again(cli: Cli) -> None:
    search = {"name": "random", "max_trials": 2, "max_length": {"batches": 100}}
    space = {"rate": {"type": "double", "minval": 0.0, "maxval": 1.0}}
    world = World.make(cli.root, searcher=search, hyperparameters=space)
    world.method = searcher_factory.searcher(world.resolved)
    world.paths.config.write_bytes(resolved_config.dump(world.resolved.raw))
    holder = world.holder()
    advance(world.paths, holder)
    holder.close()
    [row] = cli("searcher", "replay", "--verify", world.paths.id, "-o", "json").items
    assert (row["events"], row["decisions"], row["verified"]) == (1, 2, True)
    rows = cli("searcher", "replay", world.paths.id, "-o", "json").items
    assert [(row["what"], row["trial"]) for row in rows] == [
        *(("start", None), ("create", 1), ("create", 2)),
    ]
    assert cli("-q", "searcher", "replay", world.paths.id).out.split() == ["2", "3", "4"]
    other = {**world.resolved.raw, "reproducibility": {"experiment_seed": 8}}
    world.paths.config.write_bytes(resolved_config.dump(other))
    said = cli("searcher", "replay", "--verify", world.paths.id, code=1)
    assert 'after {"kind": "start"}: recorded is {"kind": "create", "trial": 1' in said.err
    assert holder.begin()
    holder.close()
    first = world.paths.decisions(1)
    first.write_bytes(first.read_bytes().splitlines(keepends=True)[0])
    for options in ([], ["--verify"]):
        said = cli("searcher", "replay", *options, world.paths.id, code=9 if options else 0)
        assert "000001.jsonl" in said.err and "cannot be read" in said.err


STATES = (RECORDED / "searches" / "states.jsonl").read_text().splitlines()


@pytest.mark.parametrize("number", range(len(STATES)))
def test_a_state_is_the_json_that_former_versions_wrote(number: int) -> None:
    recorded = json.loads(STATES[number])
    method = searcher_factory.searcher(resolved_config.resolve(recorded["config"]))
    state = method.initial()
    for value in recorded["events"]:
        event = codec.decode_event(value)
        assert event is not None
        state, _ = method.on_event(state, event)
    read = codec.decode_state(method.initial(), json.loads(recorded["state"]))
    for one in (state, read):
        assert json.dumps(codec.encode_state(one), separators=(",", ":")) == recorded["state"]
