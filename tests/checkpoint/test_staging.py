"""Checkpoints that are committed on the node's own disk and copied to scratch afterwards."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcdet import checkpoint
from hpcdet.checkpoint import CheckpointFailed
from hpcdet.checkpoint.format import manifest as manifests
from hpcdet.checkpoint.format import shard
from hpcdet.checkpoint.keep import replicate
from hpcdet.errors import ConfigError
from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import Ranks
from hpcdet.read.views import views
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Claim, Trial
from hpcdet.store.fs import journal
from hpcdet.store.trials import progress, staged
from hpcdet.train.checkpoints.checkpointer import Keeper
from hpcdet.train.checkpoints.deadline import Deadline
from hpcdet.train.comm.collectives import Peers
from hpcdet.train.telemetry.tracker import Tracker
from hpcdet.worker.attempts import drain_staging as after
from tests import TOP, ranks
from tests.experiments import local_site

GENEROUS_S = 120.0
NOBODY = 65534
TRIAL = Trial(1, {}, 1)


def experiment(folder: Path, disk: str = "", **changes: Any) -> TrialPaths:
    (folder / "node").mkdir(parents=True)
    storage = {"local_staging": disk or str(folder / "node"), "save_trial_best": 0}
    trial = ranks.experiment(folder / "x-0001", checkpoint_storage=storage, **changes)
    paths_of(trial).provenance.write_text("{}")
    return trial


def paths_of(trial: TrialPaths) -> ExperimentPaths:
    return ExperimentPaths(trial.root.parent.parent)


def node(trial: TrialPaths) -> Path:
    """The folder of a trial's checkpoints on the node, or one that is not there."""
    paths = paths_of(trial)
    where = resolved_config.load(paths.config).checkpoint_storage.local_staging
    assert where is not None
    return staged.folder(where, paths, trial.number) or Path(where, "none")


def keeper(trial: TrialPaths, attempt: int = 1) -> Keeper:
    paths = paths_of(trial)
    place = AttemptLocation(paths.trial(1), paths.trial(1).attempt(attempt), paths)
    Claim(f"0001-0000.{attempt}", "here").write_once(place.attempt.claim)
    tracker = Tracker(place.attempt.journal)
    return Keeper(
        place, Peers(Ranks()), resolved_config.load(paths.config), tracker, Deadline(None)
    )


def state(step: int) -> dict[str, Any]:
    return {"w": torch.full((500,), float(step)), "step": step}


def steps(place: Path) -> list[int]:
    found = manifests.committed(place)
    for each in found:
        checkpoint.verify(place / each.name)
    return [each.step for each in found]


def kinds(trial: TrialPaths, attempt: int = 1) -> list[tuple[str, int]]:
    lines = journal.read(trial.attempt(attempt).journal)
    return [(line["kind"], line["step"]) for line in lines if "step" in line]


def never() -> bool:
    return False


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While this is cleared, nothing leaves the node."""
    event, real = threading.Event(), replicate.copy
    event.set()

    def copy(*arguments: Any) -> None:
        assert event.wait(GENEROUS_S)
        real(*arguments)

    monkeypatch.setattr(replicate, "copy", copy)
    yield event
    event.set()


def test_training_waits_for_the_node_only_and_both_copies_serve(
    tmp_path: Path, held: threading.Event
) -> None:
    trial = experiment(tmp_path)
    held.clear()
    own = keeper(trial)
    assert own.save(1, state(1), None, kept=("user",))
    assert own.save(2, state(2), None)
    assert own.save(3, state(3), None, wait=False) and own.drain()
    assert own.save(4, state(4), None)
    assert steps(node(trial)) == [1, 2, 3, 4]
    assert steps(trial.checkpoints) == []
    assert kinds(trial) == [(staged.STAGED, step) for step in (1, 2, 3, 4)]
    [row] = views.checkpoints(paths_of(trial))
    assert (row.state, row.step, row.on) == ("staged", 4, [f"node {os.uname().nodename}"])
    again = keeper(trial, 2)  # on the same node
    assert again.places[0] == node(trial)
    loaded = again.restore(TRIAL)
    assert loaded is not None and loaded.shared["step"] == 4
    held.set()
    own.settle(never)
    again.settle(never)
    assert steps(trial.checkpoints) == [1, 4]  # of resume checkpoints the newest is worth the way
    assert steps(node(trial)) == [3, 4]
    assert {("checkpoint", 1), ("checkpoint", 4)} <= {*kinds(trial), *kinds(trial, 2)}
    assert [row.state for row in views.checkpoints(paths_of(trial))] == ["complete", "complete"]
    newest = next((node(trial) / "00000004.g1").glob("*.h5"))
    newest.write_bytes(newest.read_bytes()[:-1] + b"!")
    (trial.checkpoints / "00000001.g1" / "MANIFEST.json").write_text("{}")
    third = keeper(trial, 3)
    loaded = third.restore(TRIAL)  # the node's is damaged, that on scratch is whole
    assert loaded is not None and loaded.folder == trial.checkpoints / "00000004.g1"
    third.settle(never)
    shutil.rmtree(tmp_path / "node")
    elsewhere = keeper(trial, 4)
    loaded = elsewhere.restore(TRIAL)
    assert loaded is not None and loaded.shared["step"] == 4
    elsewhere.settle(never)
    elsewhere.leave(done=False)
    assert not node(trial).exists()


def test_what_was_not_copied_goes_with_the_node_and_nothing_else(
    tmp_path: Path, held: threading.Event
) -> None:
    trial = experiment(tmp_path)
    own = keeper(trial)
    assert own.save(1, state(1), None)
    own.settle(never)
    held.clear()
    assert own.save(2, state(2), None)
    own.settle(lambda: True)  # in haste it is left to the worker
    own.leave(done=False)
    assert steps(node(trial)) == [1, 2]  # what waits stays
    shutil.rmtree(tmp_path / "node")
    assert [row.state for row in views.checkpoints(paths_of(trial))] == ["complete", "staged"]
    loaded = checkpoint.restore(trial.checkpoints, staged=node(trial))
    assert loaded is not None and loaded.shared["step"] == 1


@pytest.mark.parametrize("wait", [True, False])
def test_a_full_disk_of_the_node_falls_back_to_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wait: bool
) -> None:
    trial = experiment(tmp_path)
    own, real = keeper(trial), shard.persist

    def full(folder: Path, *arguments: Any) -> Any:
        if node(trial) in folder.parents:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(folder, *arguments)

    with monkeypatch.context() as broken:
        broken.setattr(shard, "persist", full)
        assert own.save(1, state(1), None, wait=wait)
        assert own.drain() is wait  # beside the training it is the next one that is safe
        assert own.save(2, state(2), None, wait=wait)
        assert own.drain()
    assert steps(trial.checkpoints) == ([1, 2] if wait else [2])
    assert "saved on scratch from now on" in capsys.readouterr().err
    another = keeper(trial, 2)
    assert another.save(3, state(3), None)
    another.settle(never)
    with monkeypatch.context() as narrow:
        narrow.setattr(os, "statvfs", lambda _: os.statvfs_result((1,) * 10))
        assert another.save(4, state(4), None)
    assert steps(trial.checkpoints)[-1] == 4
    assert steps(node(trial)) == [3]


def test_what_cannot_be_copied_in_the_end_is_no_good_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = experiment(tmp_path)
    own = keeper(trial)

    def refused(*_: Any) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with monkeypatch.context() as broken:
        broken.setattr(replicate, "_copy_file", refused)
        assert own.save(1, state(1), None)
        with pytest.raises(CheckpointFailed, match=r"00000001\.g1 could not be copied.*quota"):
            own.settle(never)
    assert steps(node(trial)) == [1]
    following = keeper(trial, 2)
    assert following.restore(TRIAL) is not None
    following.settle(never)
    assert steps(trial.checkpoints) == [1]


def test_a_disk_on_which_others_may_exchange_the_folder_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = experiment(tmp_path)
    (tmp_path / "node").chmod(0o777)
    own = keeper(trial)
    assert own.places == trial.checkpoint_places
    assert own.save(1, state(1), None)
    assert steps(trial.checkpoints) == [1]
    said = capsys.readouterr().err
    assert "not staged on this node" in said and "put another folder in the place" in said
    monkeypatch.delenv("NOWHERE", raising=False)
    with pytest.raises(ConfigError, match="no folder"):
        staged.folder("$NOWHERE/x", paths_of(trial), 1)


@pytest.mark.skipif(os.getuid() != 0, reason="acts as another user")
@pytest.mark.parametrize("take", ["mkdir -pm 777 $1 $1/$2/00000009.g1", "touch $1", "ln -s $3 $1"])
def test_a_name_that_another_user_has_taken_stops_nobody(
    tmp_path: Path, held: threading.Event, take: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="node-", dir="/tmp") as disk:
        Path(disk).chmod(0o1777)
        trial = experiment(tmp_path, disk)
        paths = paths_of(trial)
        (victim := tmp_path / "own").mkdir(mode=0o700)
        taken, inner = Path(disk, f"hpcdet-{os.getuid()}"), staged._inner(paths, 1)
        argv = ["/bin/sh", "-ec", take, "sh", *map(str, (taken, inner, victim))]
        subprocess.run(argv, user=NOBODY, group=NOBODY, extra_groups=[], check=True)
        assert taken.lstat().st_uid == NOBODY and staged.folder(disk, paths, 1) is None
        held.clear()
        own = keeper(trial)
        assert own.save(1, state(1), None)
        own.settle(lambda: True)
        place = node(trial)
        base = place.parents[2]
        assert steps(place) == [1] and base != taken and base.stat().st_mode & 0o777 == 0o700
        assert not [*victim.iterdir()]
        subprocess.run(["rm", "-r", taken], user=NOBODY, group=NOBODY, extra_groups=[], check=True)
        (base.parent / f"hpcdet-{os.getuid()}").mkdir(mode=0o700)
        again = keeper(trial, 2)
        assert again.places[0] == place, "what waits for its copy is not left behind"
        assert steps(trial.checkpoints) == []
        held.set()
        assert again.restore(TRIAL) is not None
        again.settle(never)
        assert steps(trial.checkpoints) == [1]


KILLED_AT_EACH_CALL = """
import shutil, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from hpcdet import checkpoint
from hpcdet.checkpoint.keep import drain
from hpcdet.store.folder.layout import TrialPaths
from tests.checkpoint.test_faults import is_whole, killed_after, state
trial, node = TrialPaths(Path(sys.argv[1]), 1), Path(sys.argv[2])
checkpoint.save(trial.checkpoint(1, 1), state(1))
work = lambda: drain.drain(node, trial, 1)
nth, killed, found = 0, True, []
while killed:
    nth += 1
    if not (node / "00000002.g1").exists():
        checkpoint.save(node / "00000002.g1", state(2), meta={"kind": "resume"})
    killed = killed_after(nth, work, "rename", "read", "unlink", "rmdir")
    assert is_whole(checkpoint.restore(trial.checkpoints, staged=node)) == 2
    found.append(is_whole(checkpoint.restore(trial.checkpoints)))
    if killed:
        shutil.rmtree(trial.checkpoints / "00000002.g1", ignore_errors=True)
print(*found)
assert [path.name for path in trial.checkpoints.iterdir() if path.name[0] == "."] == []
"""


def test_kill_at_each_system_call_of_a_drain_leaves_what_there_was(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", KILLED_AT_EACH_CALL, str(tmp_path / "trial"), str(tmp_path / "n")]
    top = TOP
    done = subprocess.run(argv, cwd=top, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = list(map(int, done.stdout.split()))
    assert len(found) > 15
    assert found == sorted(found)  # on scratch the old one, and from its rename on the new one
    assert set(found) == {1, 2}


def test_the_worker_copies_what_the_ranks_had_no_time_for(
    tmp_path: Path, held: threading.Event
) -> None:
    trial = experiment(tmp_path)
    resolved = resolved_config.load(paths_of(trial).config)
    attempt = trial.attempt(1)
    attempt.logs.mkdir(parents=True)
    held.clear()
    own = keeper(trial)
    assert own.save(1, state(1), None)
    own.settle(lambda: True)
    after.drain(
        paths_of(trial), resolved, local_site(), attempt, lambda: 0.0
    )  # there is no time either
    assert steps(trial.checkpoints) == []
    after.drain(paths_of(trial), resolved, local_site(), attempt, lambda: GENEROUS_S)
    assert steps(trial.checkpoints) == [1], attempt.launcher_log.read_text()
    lines = journal.read(attempt.journal)
    assert [line["kind"] for line in lines] == [staged.STAGED, "checkpoint"]
    assert {"save_s", "digest", "bytes"} <= lines[1].keys()


def test_what_was_copied_without_a_word_is_progress_and_said_afterwards(tmp_path: Path) -> None:
    trial = experiment(tmp_path)
    attempt = trial.attempt(1)
    own = keeper(trial)
    assert own.save(3, state(3), None)
    own.settle(never)
    assert kinds(trial) == [(staged.STAGED, 3), ("checkpoint", 3)]
    told = attempt.journal.read_bytes().splitlines(keepends=True)[0]
    attempt.journal.write_bytes(told)  # its rank died between the copy and the word
    assert progress.of(attempt).progressed
    for _ in range(2):
        resolved = resolved_config.load(paths_of(trial).config)
        after.drain(paths_of(trial), resolved, local_site(), attempt, lambda: GENEROUS_S)
        assert kinds(trial) == [(staged.STAGED, 3), ("checkpoint", 3)]


def test_a_trial_is_preempted_and_goes_on_from_its_node_with_the_same_bits(tmp_path: Path) -> None:
    plain = ranks.experiment(tmp_path / "plain", ranks=2, until=6)
    trial = experiment(tmp_path / "staged", ranks=2, until=6)
    ranks.finish(plain, 2)

    def begun(attempt: ranks.Attempt) -> Callable[[], bool]:
        return lambda: any(line["kind"] == "first_step" for line in attempt.lines())

    with ranks.start(trial, 2) as attempt:
        attempt.wait_for(begun(attempt))
        attempt.signal(signal.SIGTERM)
        attempt.wait()
    if (verdict := attempt.verdict()) and verdict.verdict == "resume":
        assert steps(node(trial))[-1] == verdict.batches
    ranks.finish(trial, 2)
    assert ranks.result(trial).digest == ranks.result(plain).digest
    assert not node(trial).exists()
