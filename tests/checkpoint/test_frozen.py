"""What does not change between checkpoints is written once, and no checkpoint needs another."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcdet import checkpoint
from hpcdet.checkpoint import Frozen, Image
from hpcdet.checkpoint.format import manifest, remove
from hpcdet.checkpoint.read import load
from hpcdet.checkpoint.state import tree
from hpcdet.checkpoint.write import unchanged
from hpcdet.errors import IntegrityError
from tests.checkpoint.test_faults import CALLS, Fault
from tests.trees import ranks, same, swapping

SIZE = 20_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unchanged, "WORTH", 1000)
    monkeypatch.setattr(unchanged, "WORTH_ALL", 2000)


def state(step: int, body: float = 1.0) -> dict[str, Any]:
    """Two layers that are frozen, tied ones among them, and a head that is not."""
    first = torch.full((SIZE,), body)
    return {
        "body": [first, torch.arange(SIZE).bfloat16(), first],
        "head": torch.full((SIZE // 10,), float(step)),
        "step": step,
    }


def trial(folder: Path, world: int, states: list[Any], known: list[Frozen], first: int = 1) -> None:
    """One checkpoint after the other, every other one beside the training."""

    def work(rank: int, exchange: checkpoint.Exchange) -> None:
        image = Image()
        for step, one in enumerate(states, first):
            at = folder / f"{step:08d}.g1"
            more: Any = {"rank": rank, "world": world, "image": image, "frozen": known[rank]}
            if step % 2:
                checkpoint.save(at, one, {"rank": rank}, exchange=exchange, **more)
            else:
                checkpoint.begin(at, one, {"rank": rank}, **more).result()
                exchange(None)

    ranks(world, work)


def files_of(folder: Path, step: int) -> dict[str, int]:
    """The files of what stays the same, with their inodes."""
    at = folder / f"{step:08d}.g1"
    return {path.name: path.stat().st_ino for path in sorted(at.glob("*.frozen.h5"))}


@pytest.mark.parametrize("world", [1, 2])
def test_what_stays_the_same_is_linked_into_every_second_checkpoint(
    tmp_path: Path, world: int
) -> None:
    states = [state(step) for step in range(1, 7)]
    states += [state(7, body=2.0), state(8, body=2.0), state(9, body=2.0)]
    trial(tmp_path, world, states, [Frozen() for _ in range(world)])
    found = {step: files_of(tmp_path, step) for step in range(1, 10)}
    assert not found[1] and not found[2]  # that nothing changed is known after the second
    assert len(found[3]) == world
    assert found[3] == found[5]
    assert found[4] == found[6]
    assert not set(found[3].values()) & set(found[4].values())  # neighbours share no byte
    for step, one in enumerate(states, 1):
        at = tmp_path / f"{step:08d}.g1"
        plain = checkpoint.save(tmp_path / "plain" / f"{step:08d}.g{world}", one)
        loaded = checkpoint.load(at, world - 1, world)
        assert same(loaded.shared, one)
        assert loaded.shared["body"][0] is loaded.shared["body"][2]
        assert loaded.private == {"rank": world - 1}
        assert loaded.manifest.shared == checkpoint.load(plain_at(tmp_path, plain)).manifest.shared
        assert loaded.manifest.schema == 1
        checkpoint.verify(at)
        load.look(at)
    for step in (1, 2, 3, 4):
        remove.folder(tmp_path / f"{step:08d}.g1")
    assert same(checkpoint.load(tmp_path / "00000006.g1").shared, states[5])
    checkpoint.link(tmp_path / "00000006.g1", tmp_path / "other" / "00000006.g3")
    assert same(checkpoint.load(tmp_path / "other" / "00000006.g3").shared, states[5])
    # damage of one leaves the one before it whole
    newest = next((tmp_path / "00000006.g1").glob("*.frozen.h5"))
    newest.write_bytes(newest.read_bytes()[:-1] + b"!")
    for step in (9, 8, 7):
        remove.folder(tmp_path / f"{step:08d}.g1")
    restored = ranks(
        world, lambda rank, exchange: checkpoint.restore(tmp_path, rank, world, exchange)
    )
    assert all(one and one.manifest.name == "00000005.g1" for one in restored)


def in_parts(step: int, rank: int, world: int) -> dict[str, Any]:
    """As ``state``, each rank with its rows; of ``some`` those of the first rank stay the same."""
    some = torch.arange(8.0 * SIZE).reshape(8, SIZE)
    some[4:] += step
    whole = {"body": state(1)["body"][1].reshape(-1, 2), "some": some, "head": state(step)["head"]}
    found: dict[str, Any] = {"step": step}
    for name, one in whole.items():
        first, last = tree.rows(len(one), rank, world)
        found[name] = checkpoint.Sharded(one[first:last].clone(), tuple(one.shape), first)
    return found


def test_rows_that_stay_the_same_are_linked(tmp_path: Path) -> None:
    world = 2
    known = [Frozen() for _ in range(world)]

    def saved(first: int, last: int, *, into: Path = tmp_path, images: bool = True) -> None:
        def work(rank: int, exchange: checkpoint.Exchange) -> None:
            how: dict[str, Any] = {"rank": rank, "world": world, "swap": swapping(rank, exchange)}
            how["image"] = Image() if images else Image(lambda: 0)
            how["frozen"] = known[rank] if into == tmp_path else None
            for step in range(first, last):
                at, mine = into / f"{step:08d}.g1", in_parts(step, rank, world)
                if step % 2:
                    checkpoint.save(at, mine, {"rank": rank}, exchange=exchange, **how)
                else:
                    checkpoint.begin(at, mine, {"rank": rank}, **how).result()
                exchange(None)

        ranks(world, work)

    saved(1, 6)
    known = [Frozen.after(tmp_path, "00000005.g1", rank) for rank in range(world)]
    saved(6, 8)
    saved(8, 9, images=False)
    found = {step: files_of(tmp_path, step) for step in range(1, 9)}
    assert not found[1] and not found[2] and len(found[3]) == world
    assert found[3] == found[5] == found[7]
    assert found[4] == found[6]
    saved(8, 9, into=tmp_path / "plain")
    wanted = checkpoint.load(tmp_path / "plain" / "00000008.g1")
    sizes = [shard.bytes for shard in manifest.read(tmp_path / "00000007.g1").shards]
    assert sizes[2] > 4 * SIZE * 4 > sizes[0]  # the first rank's rows of both
    assert sizes[1] > 4 * SIZE * 4 > sizes[3]  # the second's of one
    for step in range(1, 9):
        at = tmp_path / f"{step:08d}.g1"
        assert checkpoint.content_digest(at) == checkpoint.verify(at).digest
        load.look(at)
    whole = checkpoint.load(tmp_path / "00000008.g1")
    assert whole.manifest.digest == wanted.manifest.digest
    assert same(whole.shared, wanted.shared)
    for rank in range(3):
        rows = checkpoint.load(tmp_path / "00000007.g1", rank, 3, sharded=True).shared
        for name, one in in_parts(7, rank, 3).items():
            assert name == "step" or torch.equal(rows[name].local, one.local)
    third = next((tmp_path / "00000007.g1").glob("*1-of-*.frozen.h5"))
    third.unlink()
    with pytest.raises(IntegrityError):
        checkpoint.verify(tmp_path / "00000007.g1")


def plain_at(folder: Path, saved: checkpoint.Saved) -> Path:
    return folder / "plain" / saved.name


def test_another_attempt_goes_on_linking(tmp_path: Path) -> None:
    trial(tmp_path, 1, [state(step) for step in range(1, 6)], [Frozen()])
    again = Frozen.after(tmp_path, "00000004.g1", 0)  # 5 is not gone on from
    trial(tmp_path, 1, [state(6), state(7)], [again], first=6)
    assert files_of(tmp_path, 6) == files_of(tmp_path, 3)
    assert files_of(tmp_path, 7) == files_of(tmp_path, 4)
    assert same(checkpoint.load(tmp_path / "00000007.g1").shared, state(7))
    assert Frozen.after(tmp_path / "none", "00000004.g1", 0).names == frozenset()
    assert Frozen.after(tmp_path, "00000004.g1", 1).names == frozenset()


def test_after_a_save_that_failed_neighbours_share_no_file(tmp_path: Path) -> None:
    known = Frozen()
    trial(tmp_path, 1, [state(step) for step in range(1, 6)], [known])
    remove.folder(tmp_path / "00000005.g1")  # another rank could not write its part
    trial(tmp_path, 1, [state(6), state(7)], [known], first=6)
    four, six, seven = (set(files_of(tmp_path, step).values()) for step in (4, 6, 7))
    assert four and six and seven and not four & six and not six & seven


@pytest.mark.parametrize("how", ["no links", "removed", "cut off"])
def test_where_it_cannot_be_linked_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    known = Frozen()
    trial(tmp_path, 1, [state(step) for step in range(1, 5)], [known])
    source = next((tmp_path / "00000003.g1").glob("*.frozen.h5"))
    if how == "no links":

        def refused(*_: Any) -> None:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", refused)
    elif how == "removed":
        source.unlink()
    else:
        os.truncate(source, 5000)
    trial(tmp_path, 1, [state(5)], [known], first=5)
    assert same(checkpoint.load(tmp_path / "00000005.g1").shared, state(5))


def test_without_memory_both_files_are_written_from_where_the_state_lies(tmp_path: Path) -> None:
    known = Frozen()
    for step in range(1, 5):
        at = tmp_path / f"{step:08d}.g1"
        checkpoint.save(at, state(step), image=Image(lambda: 0), frozen=known)
        assert same(checkpoint.load(at).shared, state(step))
    assert len(files_of(tmp_path, 4)) == 1


def each_call(work: Callable[[], Any], looked: Callable[[bool], None]) -> int:
    """Let each system call of some work fail in turn; how many there were."""
    reached = nth = 0
    while reached >= nth:
        nth += 1
        with pytest.MonkeyPatch.context() as monkeypatch:
            fault = Fault(monkeypatch, nth, OSError(errno.EIO, os.strerror(errno.EIO)))
            try:
                work()
                good = True
            except checkpoint.CheckpointFailed:
                good = False
        reached = fault.count
        looked(good)
    return nth


def test_each_system_call_of_a_save_that_links_may_fail(tmp_path: Path) -> None:
    known = Frozen()
    trial(tmp_path, 1, [state(step) for step in range(1, 5)], [known])
    image, outcomes = Image(), set()

    def again() -> None:
        nonlocal known
        known = Frozen.after(tmp_path, "00000004.g1", 0)
        saving = checkpoint.begin(
            tmp_path / "00000005.g1", state(5), image=image, frozen=known, patience_s=0.3
        )
        saving.result()

    def looked(good: bool) -> None:
        outcomes.add(good)
        loaded = checkpoint.restore(tmp_path)
        assert loaded is not None
        assert loaded.shared["step"] == (5 if good else 4)
        assert same(loaded.shared, state(loaded.shared["step"]))
        remove.folder(tmp_path / "00000005.g1")

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("tests.checkpoint.test_faults.CALLS", [*CALLS, "link"])
        assert each_call(again, looked) > 20
    assert outcomes == {True, False}
