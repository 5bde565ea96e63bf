"""Checkpoints that are written beside the training: what was copied is what is committed."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcdet import checkpoint
from hpcdet.checkpoint import CheckpointFailed, Image, Saved
from hpcdet.checkpoint.format import host_image, remove, shard
from hpcdet.checkpoint.io import direct_write, memory_limit
from hpcdet.checkpoint.state import tree
from hpcdet.checkpoint.write import sharded_digests
from tests.checkpoint.background import GENEROUS_S, WHOLE, in_parts, written
from tests.checkpoint.test_faults import Fault, is_whole, state
from tests.trees import TORCH_TYPES, ranks, same, swapping, tensor


def test_what_is_changed_after_the_copy_does_not_count(
    tmp_path: Path, held: threading.Event
) -> None:
    base = torch.arange(24.0).reshape(2, 3, 4)
    tied = torch.randn(10)
    live: dict[str, Any] = {
        str(dtype): [tensor(dtype, shape, 3) for shape in [(), (0, 2), (7,), (3, 2)]]
        for dtype in TORCH_TYPES
    }
    live["views"] = [base.permute(2, 0, 1), base[:, 1], base[..., ::2], base.expand(2, 2, 3, 4)]
    live["tied"] = [tied, tied]
    live["numpy"] = [np.arange(5.0), np.arange(6).reshape(2, 3).T, np.float32(2)]
    live["conj"] = torch.tensor([1 + 2j]).conj()
    before = checkpoint.save(tmp_path / "00000001.g1", live)
    as_it_was = checkpoint.load(tmp_path / "00000001.g1").shared

    held.clear()
    saving = checkpoint.begin(tmp_path / "00000002.g1", live, image=Image())
    assert saving.copied
    assert not saving.done()
    del live["views"]  # of base
    for one in (base, live["conj"], *(one for dtype in TORCH_TYPES for one in live[str(dtype)])):
        one.zero_()
    tied.zero_()
    for one in live["numpy"][:2]:
        one[...] = 0
    live.clear()
    assert checkpoint.restore(tmp_path).manifest.name == "00000001.g1"  # type: ignore[union-attr]
    held.set()
    after = saving.result()
    assert after is not None
    assert after.digest == before.digest
    assert same(checkpoint.load(tmp_path / "00000002.g1").shared, as_it_was)


def test_an_image_is_used_again_whatever_the_structure(tmp_path: Path) -> None:
    image = Image()
    states = [
        {"a": torch.randn(30_000), "b": b"x" * 9000},
        {"a": torch.randn(30_000), "b": b"y" * 9000},
        {"c": [torch.randn(3) for _ in range(50)], "d": torch.ones(5, dtype=torch.bfloat16)},
        {"a": torch.randn(90_000)},
        {},
        {"a": torch.randn(30_000), "b": b"z" * 9000},
    ]
    for step, one in enumerate(states):
        saved = written(tmp_path / f"{step:08d}.g1", one, image)
        assert saved.digest == checkpoint.save(tmp_path / f"{step:08d}.g2", one).digest
        names = [tmp_path / f"{step:08d}.g{attempt}" / shard.file_name(0, 1) for attempt in (1, 2)]
        assert names[0].read_bytes() == names[1].read_bytes()  # no rest of what was there before
        assert same(checkpoint.load(names[0].parent).shared, one)


class Runtime:
    """Stands in for CUDA's."""

    def __init__(self, refuses: bool) -> None:
        self.refuses = refuses
        self.known: list[int] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        assert size >= 100_000 and not flags
        self.known += [] if self.refuses else [address]
        return 1 if self.refuses else 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self.known.remove(address)
        return 0


def test_memory_is_known_to_the_device_until_it_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = Runtime(refuses=False)
    monkeypatch.setattr(host_image, "_cuda", lambda: runtime)
    image = Image()
    image._take(100_000)
    for _ in range(2):
        image._pin()
    assert runtime.known == [image._bytes.data_ptr()]
    image.release()
    assert not runtime.known


def test_the_error_of_memory_that_is_refused_meets_no_kernel_of_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pending = ["out of memory"]

    def kernel(*_: object, device: str) -> None:
        assert device == "cuda"
        raise RuntimeError(pending.pop())

    monkeypatch.setattr(host_image, "_cuda", lambda: Runtime(refuses=True))
    image = Image()
    image._take(100_000)
    monkeypatch.setattr(torch, "ones", kernel)
    image._pin()
    assert not pending and not image._pinned


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(("world", "room"), [(1, 1 << 40), (2, 1 << 40), (1, 0)])
def test_each_system_call_may_fail(tmp_path: Path, number: int, world: int, room: int) -> None:
    images = [Image(lambda: room) for _ in range(world)]
    old = checkpoint.save(tmp_path / "00000001.g1", state(1))
    folder = tmp_path / "00000002.g1"
    reached = nth = 0
    outcomes = set()
    while reached >= nth:
        nth += 1
        with pytest.MonkeyPatch.context() as monkeypatch:
            fault = Fault(monkeypatch, nth, OSError(number, os.strerror(number)))
            savings = [
                checkpoint.begin(
                    folder,
                    state(2),
                    rank=rank,
                    world=world,
                    previous=old.root,
                    image=images[rank],
                    patience_s=0.3,
                )
                for rank in range(world)
            ]
            assert all(saving.wait(GENEROUS_S) for saving in savings)
            failure: CheckpointFailed | None = None
            try:
                savings[0].result()
            except CheckpointFailed as error:
                failure = error
        reached = fault.count
        outcomes.add(failure is None)
        if failure is not None:
            assert os.strerror(number) in failure.what or "nothing heard" in failure.what
            assert not checkpoint.committed(folder.parent)[1:]
        assert is_whole(checkpoint.restore(tmp_path)) == (1 if failure else 2)
        assert not [path for path in tmp_path.rglob("*.tmp") if failure is None]
        remove.folder(folder)
    assert nth > 15  # the loop went through a whole save
    assert outcomes == {True, False}


@pytest.mark.parametrize("how", ["save", "begin"])
def test_without_memory_for_a_copy_it_is_written_from_where_it_lies(
    tmp_path: Path, how: str
) -> None:
    image = Image(room=lambda: 1000)
    if how == "save":
        saved = checkpoint.save(tmp_path / "00000001.g1", state(3), image=image)
    else:
        saving = checkpoint.begin(tmp_path / "00000001.g1", state(3), image=image)
        assert not saving.copied
        saved = saving.result()  # type: ignore[assignment]
    assert is_whole(checkpoint.restore(tmp_path)) == 3
    assert saved.digest == checkpoint.save(tmp_path / "00000002.g1", state(3)).digest


def test_a_file_system_without_direct_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces go through the page cache, are sent on, and a failure of the disk is not missed."""
    real, direct, sent = os.pwrite, [], []

    def pwrite(fd: int, data: Any, offset: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            direct.append(offset)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    for module in (direct_write, shard):
        monkeypatch.setattr(module, "PIECE", 1 << 14)
    monkeypatch.setattr(direct_write, "_BEHIND", 1 << 16)
    monkeypatch.setattr(direct_write, "_library", lambda: lambda *call: sent.append(call) or 0)
    written(tmp_path / "00000001.g1", state(1, 100_000), Image())
    assert len(direct) == 1
    assert {call[3] for call in sent} == {2, 7}
    assert is_whole(checkpoint.restore(tmp_path)) == 1

    def broken(*_: Any) -> int:
        direct_write.ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(direct_write, "_library", lambda: broken)
    with pytest.raises(CheckpointFailed, match="Input/output error"):
        written(tmp_path / "00000002.g1", state(2, 100_000), Image())
    assert is_whole(checkpoint.restore(tmp_path)) == 1


def test_ranks_commit_without_talking(tmp_path: Path, held: threading.Event) -> None:
    images = [Image() for _ in range(3)]

    def work(rank: int, _: Any) -> checkpoint.Saving:
        return checkpoint.begin(
            tmp_path / "00000001.g1",
            {"w": [torch.full((100,), float(n)) for n in range(9)]},
            {"rank": rank},
            rank=rank,
            world=3,
            meta=lambda: {"metric": 0.5},
            image=images[rank],
        )

    held.clear()
    savings = ranks(3, work)
    assert not checkpoint.committed(tmp_path)
    held.set()
    assert [saving.wait(GENEROUS_S) for saving in savings] == [True] * 3
    saved = savings[0].result()
    assert [saving.result() for saving in savings[1:]] == [None, None]
    loaded = checkpoint.load(tmp_path / "00000001.g1", 2, 3)
    assert loaded.private == {"rank": 2}
    assert loaded.manifest.meta["metric"] == 0.5
    assert saved is not None
    assert loaded.manifest.root == saved.root
    there = sorted(os.listdir(tmp_path / "00000001.g1"))
    assert there == ["MANIFEST.json", *(shard.file_name(rank, 3) for rank in range(3))]


def test_a_rank_that_never_reports_costs_the_checkpoint(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "00000001.g1", state(1))
    folder = tmp_path / "00000002.g1"
    saving = checkpoint.begin(folder, state(2), world=2, image=Image(), patience_s=0.1)
    with pytest.raises(CheckpointFailed, match="rank 1: nothing heard for"):
        saving.result()
    assert not folder.exists()
    late = checkpoint.begin(folder, state(2), rank=1, world=2, image=Image())
    assert late.result() is None  # nobody is there to commit what it writes
    assert is_whole(checkpoint.restore(tmp_path)) == 1


def test_what_memory_is_left(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable:    500 kB\n")
    assert memory_limit.available(proc, groups) == 500 << 10
    (proc / "self" / "cgroup").write_text("0::/job/step\n")
    step = groups / "job" / "step"
    step.mkdir(parents=True)
    (step / "memory.max").write_text("max\n")
    (step / "memory.current").write_text("10000\n")
    (step.parent / "memory.max").write_text("60000\n")
    (step.parent / "memory.current").write_text("50000\n")
    (step.parent / "memory.stat").write_text("anon 1\ninactive_file 30000\n")
    assert memory_limit.available(proc, groups) == 40_000
    (proc / "self" / "cgroup").write_text("4:cpu:/\n3:memory:/old\n")
    old = groups / "memory" / "old"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("2000")
    (old / "memory.usage_in_bytes").write_text("9000")
    assert memory_limit.available(proc, groups) == 0


def test_a_limit_on_threads_costs_time_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under ``ulimit -u`` or a cgroup's ``pids.max``."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    real, asked = threading.Thread.start, 0

    def start(thread: threading.Thread) -> None:
        nonlocal asked
        if thread.name == "checkpoint digests":
            asked += 1
            if asked > 2:  # the one that hashes, and one of three that help it
                raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    shared = {str(n): torch.randn(1000) for n in range(20)}
    written(tmp_path / "1.g0", shared, Image())
    assert asked == 3
    assert same(checkpoint.load(tmp_path / "1.g0").shared, shared)


@pytest.mark.parametrize("beside", [True, False])
def test_without_any_thread_a_save_does_all_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """Also where tensors lie in parts, which the other rank waits for."""
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("checkpoint"):
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    folder = tmp_path / "00000001.g1"

    def work(rank: int, exchange: checkpoint.Exchange) -> Saved | None:
        how: dict[str, Any] = {"rank": rank, "world": 2, "swap": swapping(rank, exchange)}
        if beside:
            return checkpoint.begin(folder, in_parts(rank, 2), image=Image(), **how).result()
        return checkpoint.save(folder, in_parts(rank, 2), exchange=exchange, **how)

    saved = ranks(2, work)[0]
    assert saved is not None and saved.digest == checkpoint.verify(folder).digest
    assert same(checkpoint.load(folder).shared, WHOLE)


def test_large_tensors_are_copied_by_several_threads_whatever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those whose bytes lie otherwise than they are to lie go another way."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(host_image, "_LARGE", 1000)
    monkeypatch.setattr(host_image, "_MOVE", 3000)
    monkeypatch.setattr(host_image, "_CHUNK", 40_000)
    whole = torch.randn(80, 90, dtype=torch.complex64)
    shared = {
        **{str(n): torch.randn(2000 + n) for n in range(9)},
        "rows": whole,
        "columns": whole.T,
        "conjugate": whole.conj(),
        "negative": whole.conj().imag,
        "half": torch.randn(777).bfloat16(),
        "trained": torch.nn.Parameter(torch.randn(3000)),
        "byte": torch.ones(2001, dtype=torch.bool),
    }
    written(tmp_path / "1.g0", shared, Image())
    assert not [one for one in threading.enumerate() if one.name.startswith("checkpoint copy")]
    loaded = checkpoint.load(tmp_path / "1.g0").shared
    assert all(torch.equal(loaded[name], one) for name, one in shared.items())
    place = torch.empty(2000)
    assert host_image._is_plain(shared["0"], place)
    assert not host_image._is_plain(shared["0"].as_subclass(Other), place)


class Other(torch.Tensor):
    """As one that a collective still fills: its bytes may be nowhere yet."""


@pytest.mark.parametrize("room", [memory_limit.available, lambda: 0])
def test_of_what_lies_on_an_accelerator_one_batch_at_a_time_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: Callable[[], int]
) -> None:
    monkeypatch.setattr(sharded_digests, "_BATCH", 1)
    fetched: list[int] = []
    most: list[int] = []
    real = tree.data

    def data(source: Any) -> memoryview:
        fetched.append(0)
        return real(source)

    def swap(pieces: Any, _: Any) -> Any:
        most.append(len(fetched))
        fetched.clear()
        return pieces

    monkeypatch.setattr(sharded_digests, "data", data)
    whole = {n: checkpoint.Sharded(torch.ones(4), (4,), 0) for n in "abc"}
    checkpoint.save(tmp_path / "1.g1", whole, swap=swap, image=Image(room))
    checkpoint.begin(tmp_path / "2.g1", whole, swap=swap, image=Image(room)).result()
    assert most == ([1] * 6 if room() == 0 else [0] * 6)  # there is a copy already
