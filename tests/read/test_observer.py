"""What is read on is what is read from nothing, whoever looks: the one rule of freshness."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
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
from hpcdet.store.trials import standing
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
            assert _known(self.outlook.standing(trial.number)) == holds
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
