"""Shortcuts of the tests of turns: controls, ends, events and records of a small world."""

from __future__ import annotations

from typing import Any

from hpcdet.control.leader.leader import Holder
from hpcdet.control.turn.controller import Turn, advance
from hpcdet.store.decisions import chain
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.records import (
    Closed,
    Control,
    End,
)
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.trials.controls import in_force
from tests.paper import Player, World


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
