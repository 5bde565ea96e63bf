"""A policy that stops what breaks it: the experiment pauses with evidence until it is resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hpcdet.control.leader.decided_parts import SearcherPart
from hpcdet.control.leader.leader import Holder
from hpcdet.control.requests import commands
from hpcdet.control.turn.controller import advance
from hpcdet.read import report as html
from hpcdet.read.experiment.gather import gather
from hpcdet.read.views import timeline, views
from hpcdet.store.folder.records import Closed
from hpcdet.store.trials.controls import in_force
from tests.control.test_inputs import ends_by_itself, later, report, search
from tests.paper import World

GATE = {"metric": "gov.memorization", "upper": 0.2, "origin": "policy"}
LEARNED = {"gov.memorization": 0.5, "gov.advantage.notes": 0.5, "gov.p.notes": 2.8e-07}
SHOWN = "source notes: advantage 0.5, p 2.8e-07"


def begun(root: Path, told: Path, mode: str) -> tuple[World, Holder, list[Any]]:
    """Three trials that train side by side, each in a worker of its own."""
    gate = [{**GATE, "mode": mode}]
    world = search(root, told, constraints=gate, name="random", metric="loss", max_trials=3)
    holder = world.holder()
    advance(world.paths, holder)
    play = world.play()
    return world, holder, [play.claim(worker) for worker in play.start_all()[:3]]


def wanted(world: World) -> list[tuple[str, str]]:
    found = [in_force(world.paths.trial(number)) for number in (1, 2, 3)]
    return [(one.action, one.why) for one in found if one is not None]


def test_the_experiment_pauses_with_the_evidence_and_goes_on_when_it_is_resumed(
    tmp_path: Path,
) -> None:
    told = tmp_path / "told"
    world, holder, attempts = begun(tmp_path / "x", told, "stop")
    play = world.play()
    for attempt in attempts:
        report(attempt, 1, {"loss": 0.5})
    later(world, holder, 2)
    for attempt in (attempts[0], attempts[2]):
        report(attempt, 2, {"loss": 0.5, "gov.memorization": 0.0})
    report(attempts[1], 3, {"loss": 0.1, **LEARNED})
    world.clock.now += 1
    advance(world.paths, holder)
    why = f"trial 2 breaks constraint gov.memorization <= 0.2: gov.memorization is 0.5 ({SHOWN})"
    assert wanted(world) == [("pause", why)] * 3  # all of them save and leave
    assert holder.decided.state == ("STOPPING", why) and told.read_text() == "stuck\n"
    for n, attempt in enumerate(attempts):
        report(attempt, 4 + n, {"loss": 0.1, **LEARNED})  # nobody is asked about it meanwhile
        play.end(attempt, "paused", progressed=True)
    later(world, holder, 2)
    assert world.scheduler.live == []  # nothing is paid for meanwhile
    status = views.status(world.paths)
    assert (status.state, status.why, status.stuck) == ("PAUSED", why, True)
    assert any(
        f"pauses for its user to look at it: {why}" in e.text for e in views.events(world.paths)
    )
    assert why.replace("<", "&lt;") in html.render(gather(world.paths), world.clock.now)

    part = holder.decided.searcher
    known = json.loads(json.dumps(part.encode()))  # as a snapshot has it
    assert known["halts"] and SearcherPart(part.search).decode(known).halts
    holder.close()  # another holder finds it so
    holder = world.holder()
    later(world, holder, 1)
    assert wanted(world) == [("pause", why)] * 3 and holder.decided.searcher.halts
    commands.ask(world.paths, "resume")
    later(world, holder, 1)
    # trial 1 broke it, too, and is what the user is asked about next; trial 2 never again
    first = why.replace("trial 2", "trial 1")
    assert [action for action, _ in wanted(world)] == ["pause"] * 3
    assert holder.decided.state == ("PAUSED", first)
    for _ in range(2):
        commands.ask(world.paths, "resume")
        later(world, holder, 1)
    assert wanted(world) == [("run", "")] * 3 and holder.decided.state[0] == "RUNNING"
    later(world, holder, 2)
    play.start_all()
    workers = [worker for worker in world.paths.workers() if not worker.end.exists()]
    for worker in workers[:3]:
        attempt = play.claim(worker)
        report(attempt, 9, {"loss": 0.1, **LEARNED})
        ends_by_itself(play, attempt, 9)
    later(world, holder, 2)
    closed = Closed.read(world.paths.closed)
    assert closed is not None and closed.state == "COMPLETED"
    status = views.status(world.paths)
    assert status.best is None and status.nearest is not None  # infeasible, and called so
    assert [e.text for e in views.events(world.paths)].count(
        f"pauses for its user to look at it: {why}"
    ) == 1


def test_a_trial_is_pruned_with_the_evidence_and_others_go_on(tmp_path: Path) -> None:
    world, holder, attempts = begun(tmp_path / "x", tmp_path / "told", "hard")
    report(attempts[1], 3, {"loss": 0.1, **LEARNED})
    later(world, holder, 1)
    why = f"constraint gov.memorization <= 0.2: gov.memorization is 0.5 ({SHOWN})"
    assert wanted(world) == [("run", ""), ("stop", why), ("run", "")]
    assert holder.decided.state[0] == "RUNNING"
    found = gather(world.paths)
    assert timeline.decided(found)[2] == f"stop: {why}"  # what explain says, and the report
    assert why.replace("<", "&lt;") in html.render(found, world.clock.now)
    assert any(why in event.text for event in views.events(world.paths))


def test_where_all_trials_are_pruned_nobody_is_told_that_they_succeeded(tmp_path: Path) -> None:
    world, holder, attempts = begun(tmp_path / "x", tmp_path / "told", "hard")
    for attempt in attempts:
        report(attempt, 3, {"loss": 0.1, **LEARNED})
    later(world, holder, 1)
    for attempt in attempts:
        world.play().end(attempt, "stopped", progressed=True)
    later(world, holder, 2)
    status = views.status(world.paths)
    why = "3 of 3 trials ended without an error, and each broke a constraint; no trial succeeded"
    assert (status.state, status.why) == ("COMPLETED", why)
    assert status.best is None and status.nearest is not None
