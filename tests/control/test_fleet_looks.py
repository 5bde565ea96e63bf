"""What is kept of the last look at workers and jobs is what a look at all of them would find."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.fleet import failed_submissions
from hpcdet.control.leader.lost_workers import FleetView, Watch
from hpcdet.control.turn.controller import advance
from hpcdet.schedulers.common.base import TaskState
from hpcdet.store.folder.records import Claim, Final, WorkerEnd
from hpcdet.store.fs import files, packed
from tests.control.worlds import later
from tests.paper import Waves, World


class Fleet:
    """Workers that come, are busy, leave and vanish, and the names of those that are busy."""

    def __init__(self, world: World, dice: random.Random) -> None:
        self.world, self.play, self.dice = world, world.play(), dice
        self.busy = frozenset[str]()

    def step(self) -> None:
        dice, jobs, play = self.dice, self.world.scheduler.jobs, self.play
        workers = [one for one in self.world.paths.workers() if WorkerEnd.read(one.end) is None]
        match dice.choice(["start", "busy", "idle", "leave", "final", "vanish", "again", "pass"]):
            case "start":
                waits = [
                    (job, index)
                    for job, index in self.world.scheduler.live
                    if jobs[job].states[index] is TaskState.PENDING
                ]
                for job, index in waits[: dice.randint(1, 3)]:
                    play.start(job, index)
            case "busy":
                self.busy |= {one.name for one in workers}
            case "idle" if self.busy:
                self.busy -= {dice.choice(sorted(self.busy))}
            case "leave" if workers:
                one = dice.choice(workers)
                why = dice.choice(["idle", "signal", "time"])
                WorkerEnd(why, one.name, files.now()).write_once(one.end)
                self.busy -= {one.name}
            case "final":
                for one in self.world.paths.workers():
                    if WorkerEnd.read(one.end) is not None and dice.random() < 0.5:
                        Final(0, files.now()).write_once(one.final)
            case "vanish" if workers:
                play.vanish(dice.choice(workers), TaskState.FAILED)
            case "again" if workers:
                one = dice.choice(workers)
                [paper] = jobs.values()
                paper.states[one.index] = TaskState.PENDING
                paper.restarts[one.index] = one.incarnation + 1

    def bury(self, seen: FleetView) -> None:
        """As ``close_gone`` does."""
        for gone in seen.gone:
            WorkerEnd("lost", "term 1", files.now()).write_once(gone.worker.end)
            self.busy -= {gone.worker.name}


@pytest.mark.parametrize("requeue", ["user", "none"])
def test_a_look_that_is_kept_is_what_a_new_one_finds(tmp_path: Path, requeue: Any) -> None:
    kept = 0
    for seed in range(20):
        dice = random.Random(seed)
        world = World.make(
            tmp_path / str(seed),
            Waves(count=5, width=5),
            site={
                "limits": {"poll_min_s": dice.choice([5, 40])},
                "capabilities": {"requeue": requeue},
            },
            searcher={"max_concurrent_trials": 5},
        )
        assert advance(world.paths, world.holder()).held
        fleet = Fleet(world, dice)
        watch, fresh = (
            Watch(world.paths, world.site, world.scheduler, world.clock) for _ in range(2)
        )
        for _ in range(60):
            fleet.step()
            fresh._seen = None
            seen, wanted = watch.look(fleet.busy), fresh.look(fleet.busy)
            assert (seen.places, seen.gone) == (wanted.places, wanted.gone)
            kept += watch.settled
            fleet.bury(seen)
            world.clock.now += 7
    assert kept > 40


def test_claims_are_read_once_however_many_submissions_took_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.make(tmp_path, Waves(count=4, width=1), searcher={"max_concurrent_trials": 1})
    play, holder = world.play(), world.holder()
    advance(world.paths, holder)
    worker = play.start("1")
    for _ in range(3):
        play.finish(play.claim(worker))
        advance(world.paths, holder)
    read: list[Path] = []
    monkeypatch.setattr(failed_submissions, "Claim", Counted(read))
    play.leave(worker, "spent")
    later(world, holder)
    for job in ("2", "3", "4"):
        play.vanish(play.start(job), TaskState.FAILED)
        later(world, holder, 3)
    assert [*world.scheduler.jobs] == ["1", "2", "3", "4", "5"]
    assert len(read) == len({*read}) == 3


class Counted:
    """Reads claims, and keeps the paths."""

    def __init__(self, found: list[Path]) -> None:
        self.found = found

    def read(self, path: Path) -> Claim | None:
        self.found.append(path)
        return Claim.read(path)


def test_what_is_compared_and_what_is_kept_are_of_one_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.make(tmp_path, Waves(count=2, width=2))
    assert advance(world.paths, world.holder()).held
    watch = Watch(world.paths, world.site, world.scheduler, world.clock)
    listed, names = list[Path](), packed.names

    def listing(folder: Path) -> list[str]:
        listed.append(folder)
        return names(folder)

    monkeypatch.setattr(packed, "names", listing)
    for worker in world.play().start_all():
        listed.clear()
        assert worker in {place.worker for place in watch.look().places}
        assert listed.count(world.paths.root / "workers") == 1
