"""Checkpoints whose tensors lie in parts on several ranks, and links to another trial's."""

from __future__ import annotations

import dataclasses
import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hpcdet import checkpoint
from hpcdet.checkpoint import CheckpointFailed, Image
from hpcdet.checkpoint.format import remove, shard
from hpcdet.checkpoint.state import tree
from hpcdet.checkpoint.write import sharded_digests
from hpcdet.errors import IntegrityError, UsageError
from hpcdet.process.ranks import Ranks
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Trial
from hpcdet.store.trials import hard_links
from hpcdet.train.checkpoints import parent
from hpcdet.train.checkpoints.pending import UnderWay
from hpcdet.train.comm import collectives
from tests import ranks as processes
from tests.checkpoint.background import GENEROUS_S, WHOLE, in_parts, written
from tests.checkpoint.test_faults import is_whole, state
from tests.trees import ranks, same, swapping


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
    heir = Trial(2, {}, 1, parent="1", origin={"name": target.name})
    parent.see_to_it(trial, heir)
    assert sorted(os.listdir(trial.checkpoints)) == [target.name, "00000006.g1"]
    nothing = dataclasses.replace(heir, origin={})  # its parent had none by then
    parent.see_to_it(trial, nothing)
    parent.refuse_nothing(trial, nothing)
    assert os.listdir(trial.checkpoints) == ["00000006.g1"]
    hard_links.link(sources[2], trial.checkpoint(9, 0))
    parent.see_to_it(trial, dataclasses.replace(nothing, parent=""))  # it never had one
    assert os.listdir(trial.checkpoints) == ["00000006.g1"]


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
