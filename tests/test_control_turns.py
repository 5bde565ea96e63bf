"""Whole searches on paper: what a turn of the crank does, one thing after the other."""

from __future__ import annotations

from pathlib import Path

from hpcdet.control.controller import advance
from hpcdet.store.records import Closed
from tests.paper import Waves, World


def test_a_search_runs_to_its_end_and_pays_the_queue_once(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=5, width=2))
    play, holder = world.play(), world.holder()
    first = advance(world.paths, holder)
    assert first.held
    assert first.state == "PENDING"
    assert [j.submission.tasks for j in world.scheduler.jobs.values()] == [2]
    workers = play.start_all()
    for turn in range(5):
        attempt = play.claim(workers[turn % 2])
        play.finish(attempt)
        result = advance(world.paths, holder)
    assert len(world.scheduler.jobs) == 1
    assert result.closed
    closed = Closed.read(world.paths.closed)
    assert closed is not None
    assert (closed.state, closed.why) == ("COMPLETED", "5 of 5 trials succeeded")
