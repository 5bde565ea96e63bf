"""Ranks of a node read for each other: what each gets is whole, checked, and nobody else's."""

from __future__ import annotations

import multiprocessing
import os
import selectors
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcdet import checkpoint
from hpcdet.checkpoint.format.rank_file import RankFile
from hpcdet.checkpoint.io import shared_ring
from hpcdet.checkpoint.io.read_buffers import Bytes
from hpcdet.checkpoint.io.shared_ring import PeerFailed
from hpcdet.checkpoint.read import reader
from hpcdet.errors import IntegrityError, Unrecoverable
from tests.other_users import by
from tests.ranks import PATIENCE_S
from tests.trees import ranks, same

Exchange = checkpoint.Exchange
PAGE = os.sysconf("SC_PAGE_SIZE")


def state(step: int = 1) -> dict[str, Any]:
    """Leaves of all sizes, some longer than several pieces; more pieces than the ring has slots."""
    generator = torch.Generator().manual_seed(step)
    sizes = [3, 70_001, 1, 400_003, 65_537, 17, 262_144, 900_000]
    made = {f"w{n}": torch.randn(size, generator=generator) for n, size in enumerate(sizes)}
    return {"model": made, "note": b"x" * 300_000, "step": step}


def private(rank: int) -> dict[str, Any]:
    return {"rank": rank, "seen": torch.full((50_000,), float(rank))}


def save(trial: Path, world: int, step: int = 1) -> Path:
    folder = trial / f"{step:08d}.g1"

    def work(rank: int, exchange: Exchange) -> None:
        how: dict[str, Any] = {"rank": rank, "world": world, "exchange": exchange}
        checkpoint.save(folder, state(step), private(rank), **how)

    ranks(world, work)
    return folder


def load(folder: Path, rank: int, world: int, exchange: Exchange) -> checkpoint.LoadedState:
    with shared_ring.share(rank, 0, exchange) as readers:
        assert readers.count == world and readers.ring is not None
        return checkpoint.load(folder, rank, world, readers=readers)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_PIECE", 48 * PAGE)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("makers", [1, 2, 3])
def test_each_byte_is_read_by_one_rank_and_had_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: int, makers: int
) -> None:
    folder = save(tmp_path, makers)
    size = sum(path.stat().st_size for path in folder.iterdir())
    read: list[int] = []
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *call: (read.append(found := real(*call)), found)[1])

    def work(rank: int, exchange: Exchange) -> tuple[checkpoint.LoadedState, Any]:
        into = state(7)
        loaded = checkpoint.restore(tmp_path, rank, world, exchange, into=into)
        assert loaded is not None
        assert loaded.shared["model"]["w7"].data_ptr() == into["model"]["w7"].data_ptr()
        return loaded, load(folder, rank, world, exchange)

    for rank, found in enumerate(ranks(world, work)):
        for loaded in found:
            assert same(loaded.shared, state())
            assert same(loaded.private, private(rank) if world == makers else None)
    assert 1.8 * size < sum(read) < 2.2 * size  # two loads, and tables


def test_damage_anywhere_is_found_for_all(tmp_path: Path) -> None:
    folder = save(tmp_path, 2)
    places = []
    for shard in checkpoint.committed(tmp_path)[-1].shards:
        with closing(RankFile(folder / shard.file, shard)) as file:
            places += [
                (file.path, start)
                for row in file.table.rows
                if row.end > row.start
                for start in {row.start, (row.start + row.end) // 2, row.end - 1}
            ]

    def work(rank: int, exchange: Exchange) -> Exception:
        with pytest.raises((IntegrityError, PeerFailed)) as caught:
            load(folder, rank, 2, exchange)
        return caught.value

    assert len(places) > 30
    for path, start in places:
        flip(path, start)
        assert any(isinstance(error, IntegrityError) for error in ranks(2, work)), (path, start)
        flip(path, start)
    assert all(
        same(one.shared, state()) for one in ranks(2, lambda *of: load(folder, of[0], 2, of[1]))
    )


def descriptors() -> dict[str, str]:
    folder = Path(f"/proc/{os.getpid()}/fd")
    return {str(fd): str(fd.readlink()) for fd in folder.iterdir() if fd.is_symlink()}


def flip(path: Path, start: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        (was,) = file.read(1)
        file.seek(start)
        file.write(bytes([was ^ 4]))


def test_all_take_the_checkpoint_before_one_that_is_damaged(tmp_path: Path) -> None:
    save(tmp_path, 2)
    bad = save(tmp_path, 2, step=2)
    flip(next(bad.glob("rank-00001*.h5")), 600_000)
    found = ranks(2, lambda rank, exchange: checkpoint.restore(tmp_path, rank, 2, exchange))
    assert [one.manifest.step for one in found if one is not None] == [1, 1]
    assert not bad.exists()


def test_a_rank_that_cannot_read_fails_all_and_damages_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path, 2)
    real = RankFile.fill

    def fill(self: RankFile, offset: int, memory: Any) -> None:
        if memory.size == 48 * PAGE and offset > 1_000_000:
            raise OSError(5, "Input/output error")
        real(self, offset, memory)

    monkeypatch.setattr(RankFile, "fill", fill)

    def work(rank: int, exchange: Exchange) -> IntegrityError:
        with pytest.raises(IntegrityError) as caught:
            checkpoint.restore(tmp_path, rank, 2, exchange)
        return caught.value

    assert not any(isinstance(error, Unrecoverable) for error in ranks(2, work))
    assert folder.exists()


def test_the_cause_is_told_and_not_what_it_means_for_other_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    real = RankFile.fill

    def fill(self: RankFile, offset: int, memory: Any) -> None:
        if offset == 48 * PAGE:  # the second piece, which rank 1 reads
            raise OSError(5, "Input/output error")
        real(self, offset, memory)

    monkeypatch.setattr(RankFile, "fill", fill)

    def work(rank: int, exchange: Exchange) -> None:
        with pytest.raises(IntegrityError, match="Input/output error"):
            checkpoint.restore(tmp_path, rank, 2, exchange)

    ranks(2, work)


@pytest.mark.parametrize("nth", [2, 3])
def test_an_exchange_that_fails_says_nothing_of_the_checkpoint(tmp_path: Path, nth: int) -> None:
    folder = save(tmp_path, 1)
    calls = iter(range(1, 10))

    def exchange(value: Any) -> list[Any]:
        if next(calls) == nth:
            raise IntegrityError("this is no message")
        return [value]

    with pytest.raises(IntegrityError, match=r"^this is no message"):
        checkpoint.restore(tmp_path, exchange=exchange)
    assert folder.exists()


def test_a_rank_may_want_parts_where_others_want_the_whole(tmp_path: Path) -> None:
    folder = save(tmp_path, 3)

    def work(rank: int, exchange: Exchange) -> checkpoint.LoadedState | None:
        return checkpoint.restore(tmp_path, rank, 3, exchange, sharded=rank == 0)

    for rank, loaded in enumerate(ranks(3, work)):
        assert loaded is not None and same(loaded.private, private(rank))
    assert folder.exists()


def test_ranks_that_do_not_see_the_same_checkpoint_share_nothing(tmp_path: Path) -> None:
    folders = save(tmp_path, 2), save(tmp_path, 2, step=2)

    def work(rank: int, exchange: Exchange) -> None:
        with pytest.raises(PeerFailed):
            load(folders[rank], rank, 2, exchange)

    ranks(2, work)


def test_a_slot_is_written_to_again_only_once_all_are_through_with_it() -> None:
    def work(rank: int, exchange: Exchange) -> None:
        with shared_ring.share(rank, 0, exchange) as readers:
            assert readers.ring is not None
            *first, again = [readers.ring.slot(PAGE) for _ in range(9)]
            for slot in first:
                slot.fill(lambda memory: memory.fill(7))
                if rank == 0:
                    slot.give_back()
            exchange(None)
            if rank == 0:
                with pytest.raises(PeerFailed):
                    again.fill(lambda memory: memory.fill(8))
            else:
                readers.ring.give_up()
            exchange(None)
            assert (first[0].memory == 7).all()

    ranks(2, work)


def test_a_rank_reads_into_memory_of_its_own_and_then_gives_it_to_all() -> None:
    def work(rank: int, exchange: Exchange) -> None:
        with shared_ring.share(rank, 0, exchange) as readers:
            assert readers.ring is not None
            read: list[Bytes] = []
            slots = [readers.ring.slot(PAGE) for _ in range(2)]
            for number, slot in enumerate(slots):
                slot.fill(lambda memory: (read.append(memory), memory.fill(7))[1])
                assert (slot.memory == 7).all()
                assert slot.mine == (number == rank)
            assert len(read) == 1
            assert not any(np.shares_memory(read[0], slot.memory) for slot in slots)
            exchange(None)

    ranks(2, work)


def test_where_one_rank_has_no_such_memory_each_reads_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 2)
    before = descriptors()
    real, calls = os.memfd_create, iter((True, False))

    def memfd_create(name: str) -> int:
        if next(calls, True):
            raise OSError(38, "Function not implemented")
        return real(name)

    monkeypatch.setattr(os, "memfd_create", memfd_create)

    def work(rank: int, exchange: Exchange) -> None:
        with shared_ring.share(rank, 0, exchange) as readers:
            assert (readers.count, readers.ring) == (2, None)
            exchange(None)
            if rank == 0:
                new = descriptors().items() - before.items()
                assert not [to for _, to in new if "hpcdet-load" in to]
            exchange(None)
        loaded = checkpoint.restore(tmp_path, rank, 2, exchange)
        assert loaded is not None and same(loaded.shared, state())

    ranks(2, work)


def test_where_one_rank_has_no_descriptor_left_each_reads_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, calls = selectors.DefaultSelector, iter((True, False))

    def selector() -> selectors.DefaultSelector:
        if next(calls):
            raise OSError(24, "Too many open files")
        return real()

    monkeypatch.setattr(selectors, "DefaultSelector", selector)

    def work(rank: int, exchange: Exchange) -> object:
        with shared_ring.share(rank, 0, exchange) as readers:
            return readers.ring

    assert ranks(2, work) == [None, None]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_rank_that_hears_no_more_does_not_wait() -> None:
    def work(rank: int, exchange: Exchange) -> None:
        with shared_ring.share(rank, 0, exchange) as readers:
            assert readers.ring is not None
            if rank == 0:
                os.write(readers.ring._pipes[0], b"no message")
                readers.ring._listener.join()
                with pytest.raises(PeerFailed):
                    readers.ring.wait(lambda _: True)
            exchange(None)

    ranks(2, work)


def test_of_a_process_that_is_another_nothing_is_opened_to_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[int] = []
    real = os.open

    def open_(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if str(path).startswith("/proc/"):
            opened.append(flags & os.O_ACCMODE)
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", open_)

    def work(rank: int, exchange: Exchange) -> object:
        def other(value: Any) -> list[Any]:
            told = exchange(value)
            return [[at, [*ends[:-1], "0" * 32]] for at, ends in told] if value else told

        with shared_ring.share(rank, 0, other) as readers:
            return readers.ring

    assert ranks(2, work) == [None, None]
    assert opened == [os.O_RDWR] * 2


def test_a_rank_that_is_to_end_by_a_broken_pipe_does_not_end_by_one_of_these() -> None:
    """As scripts have it that set ``SIGPIPE`` to its default."""
    process = multiprocessing.get_context("forkserver").Process(target=_speaks_to_one_that_is_gone)
    process.start()
    process.join(PATIENCE_S)
    process.kill()
    process.join()
    assert process.exitcode == 0


def _speaks_to_one_that_is_gone() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    def work(rank: int, exchange: Exchange) -> None:
        with shared_ring.share(rank, 0, exchange) as readers:
            if rank == 0:
                exchange(None)
                assert readers.ring is not None
                readers.ring.give_up()
        if rank == 1:
            exchange(None)

    ranks(2, work)


def test_ranks_of_other_nodes_are_not_asked() -> None:
    def work(rank: int, exchange: Exchange) -> tuple[int, tuple[int, ...]]:
        with shared_ring.share(rank, rank // 2, exchange) as readers:
            return readers.count, readers.ring.ranks if readers.ring is not None else ()

    assert ranks(5, work) == [(2, (0, 1)), (2, (0, 1)), (2, (2, 3)), (2, (2, 3)), (1, ())]


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_another_user_cannot_open_the_memory_nor_the_pipes() -> None:
    def opens(path: str) -> Callable[[], object]:
        return lambda: os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    before = descriptors()

    def work(rank: int, exchange: Exchange) -> None:
        with shared_ring.share(rank, 0, exchange) as readers:
            assert readers.ring is not None
            exchange(None)
            if rank == 0:
                new = {fd: to for fd, to in descriptors().items() if before.get(fd) != to}
                shared = [fd for fd, to in new.items() if "memfd:" in to or "pipe:" in to]
                assert len(shared) >= 6
                for fd in shared:
                    assert by(os.getuid(), opens(fd)) == 0
                    assert by(65534, opens(fd)) == 1
                assert not [one for one in os.listdir("/dev/shm") if "hpcdet" in one]
            exchange(None)

    ranks(2, work)


@pytest.mark.parametrize("nth", [1, 5])
def test_a_rank_that_is_killed_ends_the_others_waiting(tmp_path: Path, nth: int) -> None:
    """Processes of their own; the one that is killed reads for the other no more."""
    folder = save(tmp_path, 2)
    server = multiprocessing.get_context("forkserver")
    ends = server.Pipe()
    answer, told = server.Pipe(duplex=False)
    both = [
        server.Process(target=_loads, args=(rank, folder, ends[rank], told, nth)) for rank in (0, 1)
    ]
    for one in both:
        one.start()
    try:
        assert answer.poll(PATIENCE_S), "the other rank still waits"
        assert answer.recv() == "rank 1, which reads for this one, has failed"
    finally:
        for one in both:
            one.join(PATIENCE_S)
            one.kill()
            one.join()
    assert [one.exitcode for one in both] == [0, -signal.SIGKILL]


def _loads(rank: int, folder: Path, other: Any, told: Any, nth: int) -> None:
    def exchange(value: Any) -> list[Any]:
        other.send(value)
        theirs = other.recv()
        return [value, theirs] if rank == 0 else [theirs, value]

    reader._PIECE = 48 * PAGE
    if rank == 1:
        _die_by_fill(nth)
    try:
        load(folder, rank, 2, exchange)
    except PeerFailed as error:
        told.send(str(error))


def _die_by_fill(nth: int) -> None:
    real, calls = RankFile.fill, iter(range(1, 1000))

    def fill(self: RankFile, offset: int, memory: Any) -> None:
        if memory.size == 48 * PAGE and next(calls) == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, offset, memory)

    RankFile.fill = fill  # type: ignore[method-assign]
