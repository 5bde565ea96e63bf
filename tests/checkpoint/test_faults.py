"""Saving on disks that are full, broken or cut off leaves the old checkpoint or the new one."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcdet import checkpoint
from hpcdet.checkpoint import CheckpointFailed
from hpcdet.checkpoint.io import memory_limit
from tests import TOP, disks

CALLS = ["open", "ftruncate", "pwrite", "write", "fsync", "replace", "mkdir", "close"]


def state(step: int, size: int = 500) -> dict[str, Any]:
    return {"w": torch.full((size,), float(step)), "b": [torch.arange(step)], "step": step}


def is_whole(loaded: checkpoint.LoadedState | None) -> int:
    """The step of a state, after looking at all of it."""
    assert loaded is not None
    step: int = loaded.shared["step"]
    assert torch.equal(loaded.shared["w"], torch.full_like(loaded.shared["w"], float(step)))
    assert torch.equal(loaded.shared["b"][0], torch.arange(step))
    return step


class Fault:
    """Makes the n-th of the system calls that writing uses fail, or stop the process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nth: int, error: Exception | None) -> None:
        self.count = 0
        self.nth = nth
        self.error = error
        for name in CALLS:
            monkeypatch.setattr(os, name, self.wrap(name, getattr(os, name)))

    def wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self.nth and self.error is not None:
                if name == "close":
                    real(*arguments)
                raise self.error
            return real(*arguments, **options)

        return call


def kill_after(nth: int, also: Sequence[str]) -> None:
    """This process is killed by the n-th of these system calls, once that is done."""
    numbers = itertools.count(1)  # several threads call

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            number = next(numbers)
            try:  # a call that fails is one, too: a file that is looked for and is not there
                return real(*arguments, **options)
            finally:
                if number == nth:
                    os.kill(os.getpid(), signal.SIGKILL)

        return call

    for name in (*CALLS, *also):
        setattr(os, name, wrap(getattr(os, name)))


def killed_after(nth: int, work: Callable[[], object], *also: str) -> bool:
    """Have a child do the work, killed by its n-th system call; False if there are not so many.

    What it raises is shown on standard error, and then fails this process.
    """
    child = os.fork()
    if child == 0:
        try:
            kill_after(nth, also)
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL)
    return bool(status)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_each_system_call_of_a_save_may_fail(tmp_path: Path, number: int) -> None:
    old = checkpoint.save(tmp_path / "00000001.g1", state(1))
    reached = nth = 0
    while reached >= nth:
        nth += 1
        folder = tmp_path / "00000002.g1"
        with pytest.MonkeyPatch.context() as monkeypatch:
            fault = Fault(monkeypatch, nth, OSError(number, os.strerror(number)))
            failure: CheckpointFailed | None = None
            try:
                checkpoint.save(folder, state(2), previous=old.root)
            except CheckpointFailed as error:
                failure = error
        reached = fault.count
        if failure:
            assert os.strerror(number) in failure.what
            assert failure.hint
            assert not folder.exists()
        assert is_whole(checkpoint.restore(tmp_path)) == (1 if failure else 2)
        assert not list(tmp_path.rglob("*.tmp"))
        shutil.rmtree(folder, ignore_errors=True)
    assert nth > 15  # the loop went through a whole save


def test_data_are_durable_before_they_have_a_name(tmp_path: Path) -> None:
    """What a power cut would need: each file synced behind its last write, before its rename."""
    calls: list[tuple[str, str]] = []
    names: dict[int, str] = {}
    with pytest.MonkeyPatch.context() as monkeypatch:

        def watch(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                result = real(*arguments, **options)
                if name == "open":
                    names[result] = Path(arguments[0]).name
                what = names.get(arguments[0], "") if name != "replace" else Path(arguments[1]).name
                calls.append((name, what))
                return result

            return call

        for name in ("open", "pwrite", "write", "fsync", "replace"):
            monkeypatch.setattr(os, name, watch(name, getattr(os, name)))
        checkpoint.save(tmp_path / "trial" / "00000001.g1", state(1))
    renames = [at for at, (name, _) in enumerate(calls) if name == "replace"]
    assert [calls[at][1] for at in renames] == ["rank-00000-of-00001.h5", "MANIFEST.json"]
    for at in renames:
        assert calls[at - 1][0] == "fsync"
        assert calls[at][1] in calls[at - 1][1]
        assert ("fsync", "00000001.g1") in calls[at:]
    assert ("fsync", "00000001.g1") in calls[renames[0] : renames[1]]
    assert ("fsync", "trial") in calls[renames[1] :]


@pytest.mark.parametrize("most", [7, 512, 4608, 8192, 0])
@pytest.mark.parametrize("room", [memory_limit.available, lambda: 0])
def test_short_writes_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, room: Callable[[], int]
) -> None:
    """Past the page cache, too: whole pages, sectors, which leave the rest of a page, or bytes."""
    real, direct = os.pwrite, []

    def short(fd: int, data: Any, offset: int) -> int:
        written = real(fd, data[:most], offset) if most else 0
        direct.append(bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT))
        return written

    old = checkpoint.save(tmp_path / "00000001.g1", state(3))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", short)
        how: dict[str, Any] = {"image": checkpoint.Image(room), "previous": old.root}
        if most:
            checkpoint.save(tmp_path / "00000002.g1", state(4, 5000), **how)
        else:
            with pytest.raises(CheckpointFailed, match="takes no more"):
                checkpoint.save(tmp_path / "00000002.g1", state(4, 5000), **how)
    assert len(direct) > 1 or not most
    assert len(set(direct)) == 1 or most < 8192  # after whole pages it goes on as it began
    assert is_whole(checkpoint.restore(tmp_path)) == (4 if most else 3)
    for manifest in checkpoint.committed(tmp_path):
        checkpoint.verify(tmp_path / manifest.name)


def test_a_rank_that_fails_is_told_to_all(tmp_path: Path) -> None:
    from tests.trees import ranks

    (tmp_path / "00000002.g1").mkdir()
    (tmp_path / "00000002.g1" / "rank-00001-of-00002.h5").mkdir()  # rank 1 cannot put its file

    def work(rank: int, exchange: checkpoint.Exchange) -> str:
        checkpoint.save(tmp_path / "00000001.g1", state(1), rank=rank, world=2, exchange=exchange)
        with pytest.raises(CheckpointFailed) as caught:
            checkpoint.save(
                tmp_path / "00000002.g1", state(2), rank=rank, world=2, exchange=exchange
            )
        return caught.value.what

    assert all(what.startswith("rank 1: ") for what in ranks(2, work))
    assert is_whole(checkpoint.restore(tmp_path)) == 1


SAVES_FOR_EVER = """
import sys
from pathlib import Path
from hpcdet import checkpoint
from tests.checkpoint.test_faults import state
folder, step, attempt = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
while True:
    checkpoint.save(folder / f"{step:08d}.g{attempt}", state(step, 1 << 18))
    step += 1
"""


def test_kill_at_any_time_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    dice = random.Random(seed)
    checkpoint.save(tmp_path / "00000000.g1", state(0, 1 << 18))
    for attempt in range(2, 5):
        first = is_whole(checkpoint.restore(tmp_path)) + 1
        target = tmp_path / f"{first + dice.randrange(3):08d}.g{attempt}"
        argv = [sys.executable, "-c", SAVES_FOR_EVER, str(tmp_path), str(first), str(attempt)]
        child = subprocess.Popen(argv, cwd=TOP)
        try:
            deadline = time.monotonic() + 180
            while not target.exists() and child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(dice.random() * 0.01)
        finally:
            child.kill()
            child.wait()
        assert child.returncode == -signal.SIGKILL
        assert target.exists()
        assert is_whole(checkpoint.restore(tmp_path)) >= first - 1
        assert not list(tmp_path.glob(".bad-*"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    with disks.small_disk(tmp_path / "disk", megabytes=4) as why_not:
        if why_not:
            pytest.skip(f"no small file system can be mounted here: {why_not}")
        yield tmp_path / "disk"


def test_a_full_disk_keeps_the_old_checkpoint(small_disk: Path) -> None:
    size = 700_000  # 2.8 MB: one fits, two do not
    checkpoint.save(small_disk / "00000001.g1", state(1, size))
    with pytest.raises(CheckpointFailed, match="No space left") as caught:
        checkpoint.save(small_disk / "00000002.g1", state(2, size))
    assert caught.value.exit_code == 5
    assert [path.name for path in small_disk.iterdir()] == ["00000001.g1"]
    assert is_whole(checkpoint.restore(small_disk)) == 1
    checkpoint.save(small_disk / "00000002.g1", state(2, 1000))
    assert is_whole(checkpoint.restore(small_disk)) == 2
