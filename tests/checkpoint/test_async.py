"""Checkpoints that are written beside the training: what was copied is what is committed."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from hpcdet import checkpoint
from hpcdet.checkpoint import CheckpointFailed, Image, Saved
from hpcdet.checkpoint.format import host_image as image
from hpcdet.checkpoint.format import remove, shard
from hpcdet.checkpoint.io import direct_write, memory_limit
from hpcdet.checkpoint.state import tree
from hpcdet.checkpoint.write import sharded_digests
from hpcdet.errors import IntegrityError, UsageError
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Trial
from hpcdet.store.trials import hard_links
from hpcdet.train.checkpoints import parent
from hpcdet.train.checkpoints.pending import UnderWay
from hpcdet.train.comm import collectives
from hpcdet.train.process.location import AttemptLocation
from hpcdet.train.process.ranks import Ranks
from tests import ranks as processes
from tests.checkpoint.test_faults import Fault, is_whole, state
from tests.trees import TORCH_TYPES, ranks, same, swapping, tensor

GENEROUS_S = 120.0


def written(folder: Path, shared: Any, image: Image, **more: Any) -> Saved:
    saved = checkpoint.begin(folder, shared, image=image, **more).result()
    assert saved is not None
    return saved


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While this is cleared, nothing is written."""
    event = threading.Event()
    event.set()
    real = shard.persist

    def persist(*arguments: Any) -> Any:
        assert event.wait(GENEROUS_S)
        return real(*arguments)

    monkeypatch.setattr(shard, "persist", persist)
    yield event
    event.set()


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


def test_another_trials_checkpoint_is_taken_by_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "a" / "00000003.g2"
    saved = checkpoint.save(source, state(3), {"rng": 1}, meta={"metric": 0.5, "kind": "kept"})
    targets = [tmp_path / "b" / f"00000003.g{attempt}" for attempt in (1, 2)]
    linked = checkpoint.link(source, targets[0], meta={"kind": "resume"}, previous="before")
    file = shard.file_name(0, 1)
    assert (source / file).samefile(targets[0] / file)

    def refused(*_: Any) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refused)
    checkpoint.link(source, targets[1])
    remove.folder(source)
    for target in targets:
        assert checkpoint.verify(target).digest == saved.digest
        assert checkpoint.load(target).private == {"rng": 1}
    assert linked.prev_root == "before"
    assert linked.meta["metric"] == 0.5
    assert linked.meta["kind"] == "resume"
    assert linked.meta["linked"] == {"name": "00000003.g2", "root": saved.root}
    with pytest.raises(UsageError, match="not of the step"):
        checkpoint.link(targets[0], tmp_path / "b" / "00000004.g1")
    with pytest.raises(UsageError, match="exists"):
        checkpoint.link(targets[0], targets[1])
    with (targets[0] / file).open("r+b") as damaged:
        damaged.seek(5000)
        damaged.write(b"!")
    with pytest.raises(IntegrityError):
        checkpoint.link(targets[0], tmp_path / "c" / "00000003.g1")
    assert not (tmp_path / "c").exists()


def test_of_two_who_give_a_trial_its_checkpoint_one_does_and_no_other_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a holder of the lease was suspended before it linked, and went on much later."""
    trial = ExperimentPaths(tmp_path / "EXP").trial(2)
    sources = [tmp_path / "parent" / name for name in ("00000004.g1", "00000004.g2", "00000009.g2")]
    for number, source in enumerate(sources):
        checkpoint.save(source, state(number))
    target = trial.checkpoint(4, 0)
    real = hard_links._same

    def late(source: Path, there: Path) -> None:
        monkeypatch.setattr(hard_links, "_same", real)
        hard_links.link(sources[0], target)
        real(source, there)

    monkeypatch.setattr(hard_links, "_same", late)
    with pytest.raises(UsageError, match="exists"):
        hard_links.link(sources[1], target)
    assert is_whole(checkpoint.load(target)) == 0
    hard_links.link(sources[2], trial.checkpoint(9, 0))
    (trial.checkpoints / f"{hard_links.DRAFT}00000009.g0-cut-off").mkdir()
    checkpoint.save(trial.checkpoint(6, 1), state(6))
    place = AttemptLocation(trial, trial.attempt(1), ExperimentPaths(tmp_path / "EXP"))
    heir = Trial(2, {}, 1, parent="1", origin={"name": target.name})
    heir.write_once(trial.record)
    parent.see_to_it(place)
    assert sorted(os.listdir(trial.checkpoints)) == [target.name, "00000006.g1"]
    trial.record.unlink()
    dataclasses.replace(heir, origin={}).write_once(trial.record)  # its parent had none by then
    parent.see_to_it(place)
    parent.refuse_nothing(place)
    assert os.listdir(trial.checkpoints) == ["00000006.g1"]


WHOLE = {"plain": torch.ones(3), "w": torch.arange(30.0).reshape(10, 3), "few": torch.arange(2.0)}


def in_parts(rank: int, world: int) -> dict[str, Any]:
    """A rank's rows of two tensors, of one of which the last rank has none, and a whole one."""
    found: dict[str, Any] = {"plain": WHOLE["plain"].clone()}
    for name in ("w", "few"):
        first, last = tree.rows(len(WHOLE[name]), rank, world)
        mine = WHOLE[name][first:last].clone()
        found[name] = checkpoint.Sharded(mine, tuple(WHOLE[name].shape), first)
    return found


def test_a_checkpoint_whose_tensors_lie_in_parts_is_taken_by_link(tmp_path: Path) -> None:
    source, target = tmp_path / "a" / "00000003.g1", tmp_path / "b" / "00000003.g2"

    def work(rank: int, exchange: checkpoint.Exchange) -> None:
        how: dict[str, Any] = {"exchange": exchange, "swap": swapping(rank, exchange)}
        checkpoint.save(source, in_parts(rank, 2), {"r": rank}, rank=rank, world=2, **how)

    ranks(2, work)
    origin = checkpoint.verify(source)
    assert checkpoint.link(source, target).schema == 2
    remove.folder(source)
    assert checkpoint.verify(target).digest == origin.digest
    assert same(checkpoint.load(target).shared, WHOLE)
    rows = checkpoint.load(target, 1, 2, sharded=True).shared["w"]
    assert torch.equal(rows.local, WHOLE["w"][5:])


class Broken(Image):
    def arrange(self, plan: Any) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


@pytest.mark.parametrize("second", [Image, lambda: Image(lambda: 0), Broken])
def test_parts_are_hashed_as_they_were_while_training_goes_on(
    tmp_path: Path, held: threading.Event, second: Callable[[], Image]
) -> None:
    """Rank 1 has memory for a copy, or none, or fails: then nobody waits for it in vain."""
    images = [Image(), second(), Image()]
    folder = tmp_path / "00000002.g1"

    def work(rank: int, exchange: checkpoint.Exchange) -> checkpoint.Saving:
        mine = in_parts(rank, 3)
        saving = checkpoint.begin(
            folder, mine, rank=rank, world=3, image=images[rank], swap=swapping(rank, exchange)
        )
        for one in mine.values():
            (one.local if isinstance(one, checkpoint.Sharded) else one).fill_(-1)
        return saving

    if second is Image:
        held.clear()
    savings = ranks(3, work)
    held.set()
    assert [saving.wait(GENEROUS_S) for saving in savings] == [True] * 3
    if second is Broken:
        with pytest.raises(CheckpointFailed, match=r"rank 1: .*Cannot allocate"):
            savings[0].result()
        return
    saved = savings[0].result()
    whole = written(tmp_path / "00000003.g1", WHOLE, Image())
    assert saved is not None and saved.digest == whole.digest == checkpoint.verify(folder).digest
    assert same(checkpoint.load(folder).shared, WHOLE)


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
    monkeypatch.setattr(image, "_LARGE", 1000)
    monkeypatch.setattr(image, "_MOVE", 3000)
    monkeypatch.setattr(image, "_CHUNK", 40_000)
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
    assert image._is_plain(shared["0"], place)
    assert not image._is_plain(shared["0"].as_subclass(Other), place)


class Other(torch.Tensor):
    """As one that a collective still fills: its bytes may be nowhere yet."""


FAILURES = {
    **dict.fromkeys(("no memory", "no copy", "at once", "hashing"), "MemoryError"),
    **dict.fromkeys(("private", "shared"), "object cannot be saved"),
    "image": "Cannot allocate memory",  # which comes first
}


@pytest.mark.parametrize("way", FAILURES)
def test_a_rank_that_fails_alone_does_not_keep_others_waiting_for_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    folder = tmp_path / "00000001.g1"
    monkeypatch.setattr(
        sharded_digests, "_BATCH", 1
    )  # so that there is something to swap afterwards
    real = sharded_digests.Wholes._rows

    def rows(self: sharded_digests.Wholes, number: int, own: sharded_digests.Own) -> torch.Tensor:
        if self._rank and way in ("no memory", "no copy", "at once", "image"):
            raise MemoryError
        return real(self, number, own)

    def hashed(self: sharded_digests.Wholes, mine: Any, *received: Any) -> dict[str, str]:
        if self._rank and mine and way == "hashing":
            raise MemoryError
        return real_hashed(self, mine, *received)

    real_hashed = sharded_digests.Wholes._hashed
    monkeypatch.setattr(sharded_digests.Wholes, "_rows", rows)
    monkeypatch.setattr(sharded_digests.Wholes, "_hashed", hashed)

    def work(rank: int, exchange: checkpoint.Exchange) -> str:
        how: dict[str, Any] = {"rank": rank, "world": 2, "swap": swapping(rank, exchange)}
        shared, image = in_parts(rank, 2), Image()
        private: dict[str, Any] = {}
        if rank:
            shared |= {"odd": object()} if way == "shared" else {}
            private |= {"odd": object()} if way == "private" else {}
            image = Image(lambda: 0) if way == "no copy" else image
            image = Broken() if way == "image" else image
        try:
            if way == "at once":
                checkpoint.save(folder, shared, private, image=image, exchange=exchange, **how)
            else:
                checkpoint.begin(folder, shared, private, image=image, **how).result()
        except (CheckpointFailed, tree.StateError) as error:
            return str(error)
        return ""

    first, second = ranks(2, work)
    assert "rank 1: " in first and FAILURES[way] in first and FAILURES[way] in second


def test_a_rank_without_memory_for_what_others_send_tells_them(tmp_path: Path) -> None:
    """Two processes over gloo: beside the training, at once, and then with memory again."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: processes.elsewhere(_swaps, rank, tmp_path), range(2)))
    assert [one.name for one in checkpoint.committed(tmp_path)] == ["00000003.g1"]
    whole = written(tmp_path / "whole" / "00000003.g1", WHOLE, Image())
    assert checkpoint.verify(tmp_path / "00000003.g1").digest == whole.digest


def _swaps(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    both = collectives.Peers(Ranks(rank, 2))
    both.open_swap()

    def full(*_: Any, **__: Any) -> Any:
        raise MemoryError("no room")

    how: dict[str, Any] = {"rank": rank, "world": 2, "swap": both.swap, "image": Image()}
    with pytest.MonkeyPatch.context() as patch:
        if rank:
            without = SimpleNamespace(
                cat=torch.cat, split=torch.split, uint8=torch.uint8, empty=full
            )
            patch.setattr(collectives, "torch", without)
        saving = checkpoint.begin(folder / "00000001.g1", in_parts(rank, 2), **how)
        assert saving.wait(GENEROUS_S)
        with pytest.raises(CheckpointFailed, match=r"no room" if rank else r"rank 1: .*no room"):
            saving.result()
        saving.check()  # they still hear each other
        with pytest.raises(CheckpointFailed, match=r"rank 1: .*no room"):
            checkpoint.save(
                folder / "00000002.g1", in_parts(rank, 2), exchange=both.allgather, **how
            )
    assert checkpoint.begin(folder / "00000003.g1", in_parts(rank, 2), **how).wait(GENEROUS_S)
    both.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("beside", [False, True])
def test_a_rank_whose_swap_fails_says_nothing_more_to_those_that_are_still_in_it(
    tmp_path: Path, beside: bool
) -> None:
    """They wait for its part, not for a report: only that it ends tells them."""
    reports: list[Any] = []

    def fail(*_: Any) -> Any:
        raise ConnectionError("lost a peer")

    def exchange(report: Any) -> list[Any]:
        reports.append(report)
        return [report, report]  # the other rank is as well so far

    how: dict[str, Any] = {"rank": 1, "world": 2, "swap": fail}
    if beside:
        saving = checkpoint.begin(tmp_path / "1.g1", in_parts(1, 2), image=Image(), **how)
        assert saving.wait(GENEROUS_S)
        for look in (UnderWay(1, saving, False).busy, UnderWay(1, saving, False).wait):
            with pytest.raises(ConnectionError, match="lost a peer"):
                look()
        return
    with pytest.raises(ConnectionError, match="lost a peer"):
        checkpoint.save(tmp_path / "1.g1", in_parts(1, 2), exchange=exchange, **how)
    assert len(reports) == 1 and "error" not in reports[0]


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
