"""How an attempt ends, and what goes wrong before: nothing is lost, nobody waits for ever."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcdet import checkpoint, core
from hpcdet.checkpoint.format import shard
from hpcdet.checkpoint.write import reports
from hpcdet.core import _files
from hpcdet.errors import Unavailable, UsageError
from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import Ranks
from hpcdet.pytorch.gradients import accumulated
from hpcdet.store.config import resolved_config as configs
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.records import Trial, Verdict
from hpcdet.train.attempt.session import Session
from hpcdet.train.checkpoints.background import Background
from hpcdet.train.checkpoints.checkpointer import Keeper
from hpcdet.train.checkpoints.deadline import Deadline
from hpcdet.train.comm.agreement import Cause
from hpcdet.train.telemetry.tracker import Tracker
from hpcdet.units import Units
from tests import ranks, trees


@pytest.mark.parametrize("cause", ["completed", "signal"])
def test_the_end_waits_for_the_checkpoint_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: Cause
) -> None:
    trial = ranks.experiment(tmp_path / "digits-7f3a", code="")
    place = AttemptLocation.of(trial.root.parent.parent, 1, 1)
    config = configs.load(tmp_path / "digits-7f3a" / "experiment.yaml")
    record = Trial.read(trial.record)
    assert record is not None
    session = Session(Ranks(), place, record, config, Deadline(None))
    session.begin(None, Units())
    real, go = shard.persist, threading.Event()
    monkeypatch.setattr(shard, "persist", lambda *given: (go.wait(120), real(*given))[1])
    assert session.save(Units(1), {"w": torch.ones(3)}, None, kept=("user",), wait=False)
    threading.Timer(0.2, go.set).start()
    session.finish(cause, Units(1))
    verdict = Verdict.read(place.attempt.verdict)
    assert verdict is not None and verdict.checkpoint == "00000001.g1"
    assert (trial.checkpoints / verdict.checkpoint / "MANIFEST.json").exists()


def test_a_folder_that_rank_0_stored_alone_stays_the_newest(tmp_path: Path) -> None:
    session = Session(
        Ranks(), AttemptLocation.alone(tmp_path), Trial(1, {}, 7), Resolved(), Deadline(None)
    )
    keeper, state = session.keeper, {"w": torch.ones(3)}
    assert keeper.save(1, state, None, wait=False)
    assert keeper.save(2, {"files": {}}, None, alone=True)
    keeper.conclude(lost=False)
    assert keeper.latest == "00000002.g1"
    assert keeper.take_written() == ["00000001.g1"]
    with pytest.raises(UsageError, match="would be older"):
        keeper.save(1, state, None)


class Threads:
    """Two ranks that talk to each other, as threads."""

    def __init__(self, rank: int, exchange: checkpoint.Exchange) -> None:
        self.ranks, self.allgather = Ranks(rank=rank, world=2, local_world=2), exchange
        self.swap = trees.swapping(rank, exchange)

    def broadcast(self, value: Any) -> Any:
        return self.allgather(value)[0]


def test_what_rank_0_stored_alone_counts_for_all(tmp_path: Path) -> None:
    """Else the others would save a step that is there, and wait for rank 0 for ever."""
    place = AttemptLocation.alone(tmp_path)  # one attempt for both

    def work(rank: int, exchange: checkpoint.Exchange) -> list[str]:
        peers: Any = Threads(rank, exchange)
        state = {"w": torch.ones(3)}
        keeper = Keeper(place, peers, Resolved(), Tracker(None), Deadline(None))
        names = list[str]()
        for step in (2, 2, 3):
            if rank == 0 and not names:
                assert keeper.save(step, {"files": {}}, None, alone=True)
            assert keeper.save(step, state, {"rank": rank})
            names.append(keeper.latest)
        with pytest.raises(UsageError, match="would be older"):
            keeper.save(2, state, None)
        if rank:  # rank 0 would find out by its end
            with pytest.raises(UsageError, match="rank 1 saves a checkpoint of step 5, rank 0 of"):
                keeper.save(5, state, None)
        else:
            peers.broadcast((4, 3, ""))
        return names

    expected = ["00000002.g1", "00000002.g1", "00000003.g1"]
    assert trees.ranks(2, work) == [expected, expected]
    assert checkpoint.load(tmp_path / "checkpoints" / expected[0]).shared == {"files": {}}


class FullDisk:
    """A log that takes nothing."""

    def write(self, _: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


def test_a_complaint_that_no_log_takes_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(
        Ranks(), AttemptLocation.alone(tmp_path), Trial(1, {}, 7), Resolved(), Deadline(None)
    )
    tracker = Tracker(tmp_path / "no" / "such" / "folder" / "journal.jsonl")
    (tmp_path / "no").touch()

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", FullDisk())
    monkeypatch.setattr(shard, "persist", fails)
    tracker.record("metrics", step=1)
    tracker.look_for_nan("training", 1, {"loss": "NaN"})
    core.Context(session).alert("a word")
    assert not session.keeper.save(1, {"w": torch.ones(3)}, None)
    assert session.fail(ValueError("the code's")) == 1


def test_work_that_raises_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda given: raised.append(given.exc_type))

    def work(_: Callable[[], bool]) -> int:
        if not raised:
            raise ValueError
        return 1

    background = Background(work)
    background.request()
    assert background.wait(120)
    while not raised:  # by a thread that is about to end
        pass
    background.request()
    assert background.wait(120)
    assert background.results() == [1]


ENDS = """
import atexit, sys
from sys import exit as leave
from hpcdet.train.attempt import exit_hook
exit_hook.watch()
atexit.register(lambda: print(exit_hook.failed(), end=""))
"""


@pytest.mark.parametrize(
    ("code", "failed"),
    [
        ("sys.exit(3)", True),
        ("sys.exit('why')", True),
        ("leave(3)", True),
        ("exit(code=3)", True),
        ("sys.exit(0)", False),
        ("try: sys.exit(3)\nexcept SystemExit: pass", False),
        ("try: sys.exit(3)\nexcept SystemExit: sys.exit()", False),
    ],
)
def test_a_script_is_known_to_fail_only_if_it_does(code: str, failed: bool) -> None:
    done = subprocess.run([sys.executable, "-c", ENDS + code], capture_output=True, text=True)
    assert (done.stdout, done.returncode != 0) == (str(failed), failed)


class Nodes:
    """Peers of rank 0; rank 1 is on another node."""

    def __init__(self, others: Iterator[Any]) -> None:
        self.others = others

    def allgather(self, value: Any) -> list[Any]:
        return [value, next(self.others)]


def test_files_of_other_nodes_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").write_bytes(b"123")

    def looks() -> Iterator[Any]:
        yield {}, False
        yield {"deep/a": 1, "b": 2}, False
        (tmp_path / "b").write_bytes(b"12")
        yield {"deep/a": 3, "b": 2}, False  # beside what was here before
        yield {"deep/a": 3, "b": 2}, False

    peers: Any = Nodes(looks())
    _files.seen_by_all(tmp_path, peers)
    assert list(peers.others) == []
    monkeypatch.setattr(_files, "PATIENCE_S", 0.0)
    with pytest.raises(Unavailable, match="same deep/a"):
        _files.seen_by_all(tmp_path, Nodes(iter([({"b": 2}, False)])))  # type: ignore[arg-type]


def test_a_rank_without_gradients_gets_none_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    mean, peers = torch.full((2,), 0.5), Nodes(iter([["digest", ["w"]]]))
    monkeypatch.setattr(accumulated, "_mean", lambda _: mean)
    shared, own = accumulated.waiting({"w": weight}, peers)  # type: ignore[arg-type]
    accumulated.restore({"w": weight}, shared, own)
    assert weight.grad is None
    accumulated.restore({"w": weight}, shared, {"w": 2 * mean})
    assert weight.grad is not None and weight.grad[0] == 1.0
    accumulated.restore({"w": weight}, shared, {})  # all had the same, or were of another number
    assert weight.grad[0] == 0.5


def test_a_report_that_is_missing_says_how_long_it_was_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "_IF_FAILED_S", 0.0)
    found = reports.collect(tmp_path, {"error": "disk full"}, 2, 600.0)
    assert found[1] == {"error": "nothing heard for 0 s"}
