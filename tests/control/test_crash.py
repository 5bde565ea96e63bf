"""A controller that dies at any effect on the file system or the scheduler changes nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.leader import decision_log
from hpcdet.control.leader.leader import Holder
from hpcdet.control.requests import commands
from hpcdet.control.requests.replay import Replay
from hpcdet.control.turn.controller import advance
from hpcdet.schedulers.common.base import TaskState
from hpcdet.search.api import events
from hpcdet.store.decisions import chain
from hpcdet.store.folder.records import Closed, Submitted, Trial
from hpcdet.store.trials import hard_links
from hpcdet.store.trials.controls import in_force
from hpcdet.store.trials.standing import checkpoints
from tests import dose
from tests.paper import Heir, Promotion, Waves, World

EFFECTS = ("link", "replace", "write", "fsync", "mkdir")
DECISIONS = ("event", "action", "retry", "fail", "state")


class Killed(BaseException):
    """As SIGKILL: no handler of ours catches it, and nothing is done after it."""


class Killer:
    """Counts effects and kills at one of them; a write is torn in the middle.

    With ``trouble`` only that effect fails, and the process lives on.
    """

    def __init__(self, at: int = 0) -> None:
        self.at, self.count, self.armed, self.dead = at, 0, False, False
        self.trouble = False

    def effect(self) -> None:
        if self.dead:
            raise Killed
        if self.armed:
            self.count += 1
            if self.count == self.at and self.trouble:
                raise OSError(28, "No space left on device")
            if self.count == self.at:
                self.dead = True
                raise Killed

    def wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                self.effect()
            except (Killed, OSError):
                if name == "write" and self.count == self.at:
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                raise
            return real(*args, **kwargs)

        return call

    def unlink(self, *args: Any, **kwargs: Any) -> None:
        if self.dead:
            raise Killed
        self.real_unlink(*args, **kwargs)

    real_unlink = staticmethod(os.unlink)


class Life:
    """An experiment whose controller is replaced by a new process whenever it is killed."""

    END = ("COMPLETED", "3 of 3 trials succeeded")
    LEAST = 220
    """Effects that there are at least to die at: a story that has lost its content has fewer."""

    def __init__(self, root: Path, killer: Killer) -> None:
        self.world = World.make(root, self.method(), max_restarts=1)
        self.killer = killer
        self.world.scheduler.effect = killer.effect
        self.holder = self.world.holder()
        self.deaths = 0

    def method(self) -> events.Searcher:
        return Waves(count=3, width=2, stop_above=1.0)

    def turn(self) -> None:
        """One turn that comes to its end, by this holder or the next."""
        for _ in range(10):
            self.world.clock.now += 11
            try:
                self.killer.armed = True
                if advance(self.world.paths, self.holder, everything=False).held:
                    return
                if self.world.paths.closed.exists():
                    return
                self.killer.armed = False
                self.world.clock.now += 101  # the dead one's term runs out
            except OSError:
                self.deaths += 1
            except Killed:
                self.killer.dead = False
                self.deaths += 1
                _drop(self.holder)
                self.holder = self.world.holder()
            finally:
                self.killer.armed = False
        raise AssertionError("no turn came to its end")

    def story(self) -> None:
        """A search with everything in it, from the first turn to the last."""
        world, play = self.world, self.world.play()
        self.turn()
        one, two = play.start_all()
        first, second = play.claim(one, 1), play.claim(two, 2)
        play.report(first, 10, 3.0)  # the searcher stops it
        play.report(second, 10, 0.5)
        self.turn()
        play.end(first, "stopped", progressed=True)
        self.turn()
        play.fail(second)
        self.turn()
        third, second = play.claim(one, 3), play.claim(two, 2)
        play.vanish(two, TaskState.PREEMPTED)
        for _ in range(10):
            if not two.end.exists():
                self.turn()
        commands.ask(world.paths, "pause")
        self.turn()
        play.end(third, "paused", progressed=True)
        self.turn()
        play.leave(one, "signal")
        self.turn()
        commands.ask(world.paths, "resume")
        self.turn()
        for worker in play.start_all():
            play.finish(play.claim(worker))
        self.turn()

    def outcome(self) -> dict[str, Any]:
        paths, jobs = self.world.paths, self.world.scheduler.jobs
        kept = {"event", "action", "trial", "attempts", "worker", "reason", "state", "why", "base"}
        closed = Closed.read(paths.closed)
        assert closed is not None
        return {
            "decisions": [
                {key: value for key, value in line.items() if key in kept}
                for line in chain.read(paths)
                if line["kind"] in DECISIONS
            ],
            # a successor may find it lost a look later, or record it again before it writes it
            "lost": {line["worker"] for line in chain.read(paths) if line["kind"] == "lost"},
            "closed": (closed.state, closed.why),
            "jobs": [(job.submission.name, job.submission.tasks) for job in jobs.values()],
            "known": [
                (n, submitted.job if (submitted := Submitted.read(paths.submitted(n))) else None)
                for n in paths.submissions()
            ],
            "controls": [
                (control.action, control.until, control.attempts)
                for trial in paths.trials()
                if (control := in_force(trial)) is not None
            ],
        }


class Promoted(Life):
    """Trials are paused, by their searcher and by a preemption besides, and one is promoted."""

    END = ("COMPLETED", "4 of 4 trials succeeded")
    LEAST = 230

    def method(self) -> events.Searcher:
        return Promotion(count=4, width=2, promoted=1)

    def story(self) -> None:
        world, play = self.world, self.world.play()
        self.turn()
        here, there = play.start_all()
        one, two = play.claim(here, 1), play.claim(there, 2)
        play.report(one, 50, 0.1)
        play.report(two, 50, 0.5)
        self.turn()
        play.report(two, 60, 0.01)  # trained on before it heard
        play.end(two, "paused", progressed=True)
        self.turn()
        three = play.claim(there, 3)
        play.report(three, 50, 0.4)
        self.turn()
        play.end(three, "preempted", progressed=True)
        play.leave(there, "signal")
        self.turn()
        [other] = play.start_all()
        four = play.claim(other, 4)
        play.report(four, 50, 0.3)
        self.turn()  # promoted while it leaves
        play.end(four, "paused", progressed=True)
        play.finish(one)
        self.turn()
        commands.ask(world.paths, "set", **{"searcher.max_concurrent_trials": 1})  # type: ignore[arg-type]
        self.turn()
        four = play.claim(here, 4)
        play.vanish(here, TaskState.NODE_FAIL)
        for _ in range(10):
            if not here.end.exists():
                self.turn()
        play.finish(play.claim(other, 4))
        self.turn()
        self.turn()


class Inherited(Life):
    """A trial goes on from a checkpoint of another one, which is removed at once."""

    END = ("COMPLETED", "2 of 2 trials succeeded")
    LEAST = 120

    def method(self) -> events.Searcher:
        return Heir()

    def story(self) -> None:
        world, play = self.world, self.world.play()
        self.turn()
        [worker] = play.start_all()
        one = play.claim(worker, 1)
        play.save(one, 40)
        play.report(one, 50)
        self.turn()  # it is about to save
        assert not world.paths.trial(2).record.exists()
        for name in ("00000050.g1", "00000060.g1"):
            play.save(one, int(name[:8]))
        self.turn()
        shutil.rmtree(world.paths.trial(1).checkpoints)
        play.end(one, "stopped", progressed=True)
        self.turn()
        play.finish(play.claim(worker, 2))
        self.turn()

    def outcome(self) -> dict[str, Any]:
        heir = self.world.paths.trial(2)
        record = Trial.read(heir.record)
        assert record is not None
        made = hard_links.manifest(heir.checkpoint(50, 0))
        clones = [line for line in chain.read(self.world.paths) if line["kind"] == "clone"]
        return {
            **super().outcome(),
            "checkpoints": checkpoints(heir),
            "origin": (record.parent, record.origin),
            "manifest": (made["digest"], made["meta"]),
            "clones": [(line["trial"], line["origin"], line["why"]) for line in clones],
        }


def _drop(holder: Holder) -> None:
    """What the kernel does for a killed process: close its files."""
    if holder._log is not None:
        holder._log.chain.close()


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Killer:
    killer = Killer()
    for name in EFFECTS:
        # nobody pulls the plug here: what was written is there without fsync, only faster
        real = (lambda _: None) if name == "fsync" else getattr(os, name)
        monkeypatch.setattr(os, name, killer.wrap(name, real))
    monkeypatch.setattr(os, "unlink", killer.unlink)
    return killer


@pytest.mark.parametrize(
    ("life", "trouble"),
    [(Life, False), (Life, True), (Promoted, False), (Promoted, True), (Inherited, False)],
)
def test_dying_at_every_effect_loses_and_doubles_nothing(
    tmp_path: Path,
    killer: Killer,
    monkeypatch: pytest.MonkeyPatch,
    life: type[Life],
    trouble: bool,
) -> None:
    monkeypatch.setattr(decision_log, "SNAPSHOT_EVERY", 1)
    calm = life(tmp_path / "calm", killer)
    calm.story()
    expected, effects = calm.outcome(), killer.count
    assert expected["closed"] == life.END
    assert any(calm.world.paths.snapshots.iterdir())
    assert effects >= life.LEAST
    assert sum(one.LEAST for one in (Life, Promoted, Inherited)) >= 500
    killer.trouble = trouble
    for at in range(1, effects + 1, 5 if trouble else dose.EFFECTS):
        killer.at, killer.count = at, 0
        one = life(tmp_path / f"{at}", killer)
        one.story()
        assert one.deaths == 1 or trouble, at
        outcome = one.outcome()
        for part, value in expected.items():
            assert outcome[part] == value, f"{part}, killed at effect {at} of {effects}"
        again = Replay(one.method(), {})
        lines = chain.read(one.world.paths)
        assert len(list(again.run(lines))) == len(lines), f"{again.difference}, killed at {at}"
