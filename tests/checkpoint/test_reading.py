"""Large files are read in pieces, direct or not, and whatever way it goes each byte is checked."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcdet import checkpoint
from hpcdet.checkpoint.format import rank_file
from hpcdet.checkpoint.io import read_buffers as buffers
from hpcdet.checkpoint.io.shared_ring import Readers
from hpcdet.checkpoint.read import pieces, reader
from hpcdet.errors import IntegrityError
from tests.trees import ranks, same, swapping

PAGE = os.sysconf("SC_PAGE_SIZE")


def state() -> dict[str, Any]:
    """Leaves of all sizes, few of them whole pages, some longer than several pieces."""
    generator = torch.Generator().manual_seed(5)
    sizes = [3, 70_001, 1, 0, 400_003, 65_537, 90_000, 17, 66_000, 262_144]
    return {
        "model": {f"w{n}": torch.randn(size, generator=generator) for n, size in enumerate(sizes)},
        "half": torch.randn(333_333, generator=generator).bfloat16(),
        "note": b"x" * 300_000,
        "table": np.arange(150_000, dtype="<i8").reshape(3, -1),
        "empty": np.zeros((0, 2)),
        "step": 7,
    }


def save(folder: Path, world: int = 1, private: Any = None) -> checkpoint.Manifest:
    ranks(
        world,
        lambda rank, exchange: checkpoint.save(
            folder, state(), private, rank=rank, world=world, exchange=exchange
        ),
    )
    return checkpoint.committed(folder.parent)[-1]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_PIECE", 48 * PAGE)
    for module in (rank_file, reader):
        monkeypatch.setattr(module, "FIRST", 96 * PAGE)
    for module in (rank_file, pieces):
        monkeypatch.setattr(module, "SMALL_FILE", 100_000)


class Reads:
    """Stands in for ``os.preadv``; notes what was read how."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
        self.bytes = 0
        self.direct = 0
        self._way = way
        self._real = os.preadv
        self._dice = random.Random(1)
        monkeypatch.setattr(os, "preadv", self)
        monkeypatch.setattr(rank_file.RankFile, "_is_cached", lambda _: way == "buffered")

    def __call__(self, fd: int, buffers: Sequence[memoryview], offset: int, *flags: int) -> int:
        direct = bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)
        if direct:
            self.direct += 1
            if self._way == "refused" and self.direct > 2:
                raise OSError(errno.EINVAL, "Invalid argument")
            if self._way == "short":
                buffers = [buffers[0][: self._dice.choice([PAGE, len(buffers[0])])]]
        elif self._way == "short":
            buffers = [buffers[0][: self._dice.randint(1, 100_000)]]
        count = self._real(fd, buffers, offset, *flags)
        self.bytes += count
        return count


@pytest.mark.parametrize("way", ["direct", "buffered", "refused", "short"])
def test_every_way_of_reading_gives_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    manifest = save(tmp_path / "00000001.g1", world=2)
    reads = Reads(monkeypatch, way)
    loaded = checkpoint.load(tmp_path / "00000001.g1", rank=1, world=2)
    assert same(loaded.shared, state())
    assert bool(reads.direct) == (way != "buffered")
    assert checkpoint.content_digest(tmp_path / "00000001.g1") == manifest.digest
    tensors = [*loaded.shared["model"].values(), loaded.shared["half"]]
    for one in tensors:  # each has memory of its own, which goes when it goes
        assert one.untyped_storage().nbytes() == one.nbytes
        one.zero_()


def test_damage_anywhere_in_a_large_file_is_noticed_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "00000001.g1"
    [part] = save(folder).shards
    path = folder / part.file
    sound = len(list(reader.read(folder, [part])))
    whole = path.read_bytes()
    dice = random.Random(2)
    for _ in range(40):
        offset = dice.randrange(len(whole))
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(bytes([whole[offset] ^ 1 << dice.randrange(8)]))
        with pytest.raises(IntegrityError, match="is not what was written") as caught:
            checkpoint.load(folder)
        assert caught.value.where == str(path)
        with pytest.raises(IntegrityError):
            checkpoint.verify(folder)
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(whole[offset : offset + 1])
    assert len(list(reader.read(folder, [part]))) == sound


def test_a_read_that_fails_is_an_error_whenever_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for ever for the beginning of a leaf that will not come."""
    folder = tmp_path / "00000001.g1"
    save(folder)
    real = os.preadv
    monkeypatch.setattr(rank_file.RankFile, "_is_cached", lambda _: False)
    for sound in itertools.count():
        left = iter(range(sound))

        def preadv(*how: Any, left: Iterator[int] = left) -> int:
            if next(left, None) is None:
                raise OSError(errno.EIO, "Input/output error")
            return real(*how)

        monkeypatch.setattr(os, "preadv", preadv)
        try:
            loaded = checkpoint.load(folder)
        except OSError:
            continue
        break
    assert sound > 10 and same(loaded.shared, state())


def test_a_process_that_ends_reads_without_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "00000001.g1"
    made = save(folder)

    def refuse(*_: Any) -> Any:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    assert same(checkpoint.load(folder).shared, state())
    assert checkpoint.verify(folder) == made


def test_a_rank_reads_what_it_needs_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "00000001.g1"
    private = {"mine": np.random.default_rng(1).bytes(3_000_000)}
    manifest = save(folder, world=3, private=private)
    reads = Reads(monkeypatch, "direct")
    loaded = checkpoint.load(folder, rank=1, world=3)
    assert same(loaded.private, private)
    assert manifest.bytes - 6_000_000 < reads.bytes < manifest.bytes - 5_500_000
    reads.bytes = 0
    assert checkpoint.load(folder, rank=1, world=2).private is None
    assert reads.bytes < manifest.bytes - 8_500_000
    # so damage there is seen by its owner alone, and told to all
    path = folder / manifest.shards[2].file
    text = path.read_bytes()
    at = text.index(private["mine"]) + 1_500_000
    path.write_bytes(text[:at] + bytes([text[at] ^ 4]) + text[at + 1 :])
    assert same(checkpoint.load(folder, rank=1, world=3).shared, state())

    def restore(rank: int, exchange: checkpoint.Exchange) -> str:
        with pytest.raises(IntegrityError, match="dataset private/mine") as caught:
            checkpoint.restore(tmp_path, rank, 3, exchange)
        return str(caught.value)

    assert len(set(ranks(3, restore))) == 1


def test_the_kernel_fetches_what_is_wanted_of_the_first_bytes_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for little at a time: of much it fetches but the beginning."""
    whole = torch.arange(400_000.0).reshape(4, -1)
    folder = tmp_path / "00000001.g1"

    def work(rank: int, exchange: checkpoint.Exchange) -> None:
        rows = checkpoint.Sharded(whole[2 * rank : 2 * rank + 2].clone(), (4, 100_000), 2 * rank)
        how: dict[str, Any] = {"exchange": exchange, "swap": swapping(rank, exchange)}
        checkpoint.save(folder, {"w": rows}, {"r": rank}, rank=rank, world=2, **how)

    ranks(2, work)
    asked: dict[str, list[tuple[int, int]]] = {}

    def advise(fd: int, offset: int, length: int, _: int) -> None:
        asked.setdefault(Path(f"/proc/self/fd/{fd}").readlink().name, []).append((offset, length))

    Reads(monkeypatch, "direct")
    monkeypatch.setattr(os, "posix_fadvise", advise)
    assert torch.equal(checkpoint.load(folder, 0, 2, sharded=True).shared["w"].local, whole[:2])
    own, others = asked.values()
    assert max(length for each in asked.values() for _, length in each) <= 128 << 10
    assert sum(length for _, length in own) > 96 * PAGE > 300_000
    assert sum(length for _, length in others) < 50_000
    # as it is by several ranks of a node, which read all through the page cache
    asked.clear()
    monkeypatch.setattr(rank_file.RankFile, "_is_cached", lambda _: False)
    assert torch.equal(checkpoint.load(folder, 0, 2, readers=Readers(2)).shared["w"], whole)
    assert min(sum(length for _, length in each) for each in asked.values()) > 96 * PAGE


def test_pages_of_new_tensors_are_found_beforehand_and_nothing_else_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "00000001.g1")
    found: list[tuple[int, int]] = []
    real = buffers.populate

    def populate(memory: Any) -> None:
        before = memory.tobytes()
        real(memory)
        assert memory.tobytes() == before
        found.append((memory.ctypes.data, memory.size))

    monkeypatch.setattr(pieces, "populate", populate)
    for way in ("direct", "buffered"):
        Reads(monkeypatch, way)
        there = state()
        loaded = checkpoint.load(tmp_path / "00000001.g1", into=there).shared
        assert same(loaded, state())
        assert there["half"].data_ptr() == loaded["half"].data_ptr()
        new = [loaded["table"]]
        held = sum(size for start, size in found)
        own = [(one.data_ptr(), one.data_ptr() + one.nbytes) for one in there["model"].values()]
        assert not any(low <= start < high for start, _ in found for low, high in own)
        assert held >= sum(one.nbytes for one in new)
        found.clear()


def test_a_look_sees_what_is_missing_without_reading_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcdet.checkpoint.read import load

    folder = tmp_path / "00000001.g1"
    [part] = save(folder).shards
    reads = Reads(monkeypatch, "buffered")
    assert load.look(folder).shards == (part,)
    assert reads.bytes < 100_000 < part.bytes
    path = folder / part.file
    os.truncate(path, part.bytes - 1)
    with pytest.raises(IntegrityError, match="bytes, not"):
        load.look(folder)


@pytest.mark.parametrize(("way", "readers"), [("direct", 1), ("buffered", 2), ("short", 2)])
def test_a_state_that_is_there_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, readers: int
) -> None:
    """Tensors of the same type and shape are read into; all others are new."""
    save(tmp_path / "00000001.g1", world=2)
    reads = Reads(monkeypatch, way)
    there = state()
    for one in there["model"].values():
        one.fill_(7)
    there["model"]["w4"] = torch.zeros(400_003, 2)[:, 0]  # not contiguous
    there["half"] = there["half"].float()
    own = torch.nn.Parameter(there["model"]["w5"])
    there["model"]["w5"] = own
    loaded = checkpoint.load(tmp_path / "00000001.g1", into=there, readers=Readers(readers)).shared
    assert same(loaded, state())
    assert bool(reads.direct) == (readers == 1)
    same_memory = [
        name
        for name, one in loaded["model"].items()
        if one.numel() and one.data_ptr() == there["model"][name].data_ptr()
    ]
    assert same_memory == ["w0", "w1", "w2", "w5", "w6", "w7", "w8", "w9"]
    assert own.requires_grad and torch.equal(own.detach(), state()["model"]["w5"])


def test_tensors_that_overlap_are_read_into_new_memory(tmp_path: Path) -> None:
    saved = {"a": torch.zeros(100_000), "b": torch.ones(100_000, 1), "c": torch.ones(100_000) * 2}
    checkpoint.save(tmp_path / "1.g0", saved)
    base, own = torch.empty(100_000), torch.empty(100_000)
    into = {"a": base, "b": base.view(-1, 1), "c": own}
    # through the page cache, where the bytes are hashed in the tensors
    found = checkpoint.load(tmp_path / "1.g0", into=into, readers=Readers(2)).shared
    assert same(found, saved)
    assert base.data_ptr() not in {found["a"].data_ptr(), found["b"].data_ptr()}
    assert found["c"].data_ptr() == own.data_ptr()


def test_what_has_other_values_than_its_bytes_say_is_not_read_into(tmp_path: Path) -> None:
    saved = {"half": torch.ones(3).bfloat16(), "c": torch.tensor([1 + 2j]), "n": torch.ones(1)}
    checkpoint.save(tmp_path / "1.g0", saved)
    conjugate = torch.zeros(1, dtype=torch.complex64).conj()
    negative = torch.zeros(1, dtype=torch.complex64).conj().imag
    into = {"half": torch.zeros(3).bfloat16(), "c": conjugate, "n": negative}
    assert into["c"].is_conj() and into["n"].is_neg() and into["n"].is_contiguous()
    found = checkpoint.load(tmp_path / "1.g0", into=into).shared
    assert same(found, saved)
    there = [name for name in saved if found[name].data_ptr() == into[name].data_ptr()]
    assert there == ["half"]


def test_what_is_copied_is_hashed_while_it_is_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces that a core's own cache holds, and that come to the digest of the whole."""
    saved = {"w": torch.arange(1_000_003)}
    checkpoint.save(tmp_path / "1.g0", saved)
    Reads(monkeypatch, "direct")
    real, hashed = pieces.begin_digest, []

    class Hasher:
        def __init__(self, *what: Any) -> None:
            self.real = real(*what)

        def update(self, data: memoryview) -> None:
            hashed.append(len(data))
            self.real.update(data)

        def hexdigest(self) -> str:
            return self.real.hexdigest()

    monkeypatch.setattr(pieces, "begin_digest", Hasher)
    found = checkpoint.load(tmp_path / "1.g0", into={"w": torch.zeros(1_000_003).long()}).shared
    assert same(found, saved)
    assert sum(hashed) >= 8_000_024 and max(hashed) <= 512 << 10
