"""What is read on is what is read from nothing, whoever looks: the one rule of freshness."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from hpcdet.control.leader.trial_cache import Sight
from hpcdet.read.experiment.gather import Memory
from hpcdet.read.views import views
from hpcdet.read.views.items import encode
from hpcdet.store.config import resolved_config
from hpcdet.store.cost.spending import Spending
from hpcdet.store.fs import freshness
from hpcdet.store.trials import observer, standing
from hpcdet.store.trials.standing import Standing
from hpcdet.worker.claims.claimable import Outlook
from tests.read.plays import STEPS, Play


class Observers:
    """All who look at an experiment again and again, each look more than a tick after the last."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.now = 0.0
        paths = play.built.paths
        self.memory = Memory(paths, self._clock)
        self.outlook, self.sight = Outlook(paths, self._clock), Sight(paths, self._clock)
        self.spending = Spending(paths, resolved_config.load(paths.config))

    def _clock(self) -> float:
        return self.now

    def agree(self) -> None:
        """Compare what each of them sees with what the files hold."""
        self.now += 2 * freshness.TICK_S
        self.sight.begin()
        self.outlook.begin()
        paths = self.play.built.paths
        for trial in paths.trials():
            holds = _known(standing.standing(trial))
            assert _known(self.outlook.trial(trial.number).standing) == holds
            assert _known(self.sight.trial(trial.number).standing) == holds
        seen = self.memory.look()
        for view in (views.trials, views.attempts, views.checkpoints, views.events, views.jobs):
            assert _timeless(view(seen)) == _timeless(view(paths)), view.__name__
        costs = Spending(paths, self.spending.resolved).ledger.stretches()
        found = self.spending.ledger.stretches()
        assert {key: found[key] for key in costs} == costs


def _known(stands: Standing) -> Standing:
    """What is to be seen at once; checkpoints of a running trial are not watched."""
    return dataclasses.replace(stands, batches=0)


def _timeless(rows: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in encode(row).items() if key != "duration_s"} for row in rows
    ]


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
@example(steps=["end", "folder", "attempt", "folder", "checkpoint", "fail", "stop", "rewind"])
def test_who_looks_again_sees_what_is_there(
    steps: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = Path(tempfile.mkdtemp(dir=tmp_path_factory.getbasetemp()))
    play = Play(root)
    observers = Observers(play)
    for step in steps:
        if step != "update":
            play.do(step)
        if step in ("stop", "rewind"):  # the holder writes controls itself
            observers.sight.forget(play.trials[-1].paths.number)
        observers.agree()
        observers.agree()  # what looks as before a tick later is not read again
    shutil.rmtree(root)


def test_a_trial_that_is_packed_while_nothing_runs_is_read_again(tmp_path: Path) -> None:
    play = Play(tmp_path)
    for step in ("checkpoint", "end"):
        play.do(step)
    paths = play.built.paths.trial(1)
    watched = {Path(one) for one in observer.attempts(standing.TrialFiles(paths))}
    assert paths.root in watched  # where archives appear


def test_each_attempt_without_an_end_is_watched(tmp_path: Path) -> None:
    play = Play(tmp_path)
    play.trials[-1].attempt()  # the first one's end is not there yet
    paths = play.built.paths.trial(1)
    watched = {Path(one) for one in observer.attempts(standing.TrialFiles(paths))}
    assert watched == {paths.attempt(1).root, paths.attempt(2).root}


def test_what_has_just_changed_is_read_again_though_its_server_is_behind(tmp_path: Path) -> None:
    """The server's clock is two minutes late, and two files appear within one tick of it."""
    now, late = [100.0], time.time() - 120
    names = lambda: sorted(os.listdir(tmp_path))  # noqa: E731
    seen = freshness.Watched(names, lambda _: (str(tmp_path),), lambda: now[0])
    (tmp_path / "a").touch()
    os.utime(tmp_path, (late, late))
    seen.refresh()
    (tmp_path / "b").touch()
    os.utime(tmp_path, (late, late))
    now[0] += 1
    seen.refresh()
    now[0] += 2 * freshness.TICK_S
    seen.refresh()
    assert seen.value == ["a", "b"]


def test_what_is_written_during_a_reading_looks_new_to_the_next_one(tmp_path: Path) -> None:
    """The server's clock is minutes late, so that what was just written looks settled."""
    now, late = [100.0], time.time() - 1000
    during: list[str] = []

    def put(name: str) -> None:
        (tmp_path / name).touch()
        os.utime(tmp_path, (late + now[0], late + now[0]))

    def names() -> list[str]:
        found = sorted(os.listdir(tmp_path))
        for name in during:
            put(name)
        during.clear()
        return found

    put("a")
    seen = freshness.Watched(names, lambda _: (str(tmp_path),), lambda: now[0], may_rest=True)
    for _ in range(2):
        now[0] += 1
        seen.refresh()
    put("b")
    during.append("c")
    for expected in (["a", "b"], ["a", "b", "c"]):
        now[0] += 1
        assert seen.refresh()
        assert seen.value == expected


def test_what_was_read_together_is_not_read_again_together() -> None:
    seen = [freshness.Seen((f"/trials/{n}",), ((1, 1, 1),), 0.0, 100.0) for n in range(200)]
    due = [sum(one.is_due(100 + at) for one in seen) for at in (599, 700, 900, 1200)]
    assert due[0] == 0 and 0 < due[1] < due[2] < due[3] == 200
    assert all(one.is_due(99) for one in seen)  # the clock was set back
