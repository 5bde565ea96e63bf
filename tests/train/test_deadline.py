"""When saving has to begin, and what is given up in haste."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcdet.checkpoint.format import shard
from hpcdet.process import signals
from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import Ranks
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.records import Trial
from hpcdet.store.fs import journal
from hpcdet.train.attempt.session import Session
from hpcdet.train.checkpoints.deadline import Deadline
from hpcdet.train.telemetry.tracker import Tracker
from hpcdet.units import Units


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGUSR2, signal.SIGUSR1, signal.SIGCONT)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    signals.forget()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_saving_begins_in_time() -> None:
    now = [0.0]
    deadline = Deadline(100.0, wall=lambda: now[0])
    deadline.learn_save(10.0)
    deadline.learn_step(1.0)
    assert deadline.needed_s > 12
    now[0] = 100 - deadline.needed_s - 0.01
    assert not deadline.over()
    now[0] += 0.02
    assert deadline.over()
    assert not Deadline(None).over()


def test_a_save_under_way_needs_its_time_too() -> None:
    now = [0.0]
    deadline = Deadline(100.0, wall=lambda: now[0])
    deadline.learn_save(30.0)
    now[0] = 40.0
    assert not deadline.over()
    assert deadline.over(busy=True)
    assert deadline.fits(2)
    now[0] = 60.0
    assert deadline.fits(1)
    assert not deadline.fits(2)
    assert Deadline(None).fits(100)


@pytest.mark.parametrize("end", [None, 1000.0])
def test_after_a_term_the_end_is_as_near_as_schedulers_have_it(end: float | None) -> None:
    now = [0.0]
    deadline = Deadline(end, wall=lambda: now[0], grace_s=20.0)
    deadline.learn_save(15.0)
    deadline.hear("SIGUSR2")  # which is sent in time before an end that is known
    assert deadline.fits(2)
    now[0] = 4.0
    deadline.hear("SIGTERM", 0.0)  # ranks agree on it some steps later
    deadline.hear("SIGTERM")
    assert deadline.fits(1)
    assert not deadline.fits(2)
    assert not deadline.over()
    assert deadline.left_to_save_s == 16.0


def test_in_haste_the_save_under_way_counts_and_no_other_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, go = shard.persist, threading.Event()

    def held(*arguments: Any) -> Any:
        assert go.wait(120)
        return real(*arguments)

    now = [0.0]
    deadline = Deadline(100.0, wall=lambda: now[0])
    session = Session(
        Ranks(), AttemptLocation.alone(tmp_path), Trial(1, {}, 7), Resolved(), deadline
    )
    keeper, state = session.keeper, {"w": torch.ones(3)}
    keeper._tracker = Tracker(tmp_path / "journal.jsonl")
    assert keeper.save(1, state, None)
    deadline.learn_save(30.0)
    monkeypatch.setattr(shard, "persist", held)
    assert keeper.save(2, state, None, wait=False)
    assert keeper.busy
    assert not keeper.skips(3)
    now[0] = 60.0
    assert keeper.skips(3)
    assert [line["kind"] for line in journal.read(tmp_path / "journal.jsonl")] == [
        "checkpoint",
        "checkpoint_skipped",
    ]
    go.set()
    assert keeper.drain()
    assert keeper.latest == "00000002.g1"
    last = journal.read(tmp_path / "journal.jsonl")[-1]
    assert (last["kind"], last["step"]) == ("checkpoint", 2)


def test_what_could_not_be_written_beside_can_be_saved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(
        Ranks(), AttemptLocation.alone(tmp_path), Trial(1, {}, 7), Resolved(), Deadline(None)
    )
    keeper, state = session.keeper, {"w": torch.ones(3)}
    with monkeypatch.context() as patch:
        patch.setattr(shard, "persist", lambda *_: (_ for _ in ()).throw(OSError("no luck")))
        assert keeper.save(1, state, None, wait=False)
        assert not keeper.drain()
    assert keeper.latest == ""
    assert keeper.save(1, state, None)
    assert keeper.latest == "00000001.g1"


def test_the_first_step_which_compiles_says_nothing_of_the_others(tmp_path: Path) -> None:
    deadline = Deadline(None)
    session = Session(
        Ranks(), AttemptLocation.alone(tmp_path), Trial(1, {}, 7), Resolved(), deadline
    )
    for expected in (False, True):
        session.coordinator._timer._since -= 1000
        session.coordinator.poll(Units(1))
        assert (deadline.needed_s > 1000) is expected
