"""The three ways of writing: whole or not at all, whoever else tries, whoever reads."""

from __future__ import annotations

import io
import os
import stat
import threading
from pathlib import Path

import pytest

from hpcdet.errors import IntegrityError
from hpcdet.store.fs import files, journal


def test_half_of_a_surrogate_pair_is_read_as_it_was_written(tmp_path: Path) -> None:
    """As Python has a name that is not UTF-8 in an error that a trial ends with."""
    said = {"error": "no such file: caf\udce9.csv", "\ud800": "é"}
    path = tmp_path / "x.json"
    files.write_once(path, files.canonical(said))
    assert files.read_json(path) == said
    line = journal.decode(journal.encode(1, "end", said, files.now()).rstrip())
    assert line is not None and said.items() <= line.items()


def test_of_many_who_write_once_one_succeeds_and_its_contents_stay(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "claim.json"
    won: list[int] = []
    barrier = threading.Barrier(8)

    def race(number: int) -> None:
        barrier.wait()
        if files.write_once(path, b'{"by": %d}' % number):
            won.append(number)

    threads = [threading.Thread(target=race, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert files.read_json(path) == {"by": won[0]}
    assert os.listdir(path.parent) == ["claim.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_link_that_was_made_but_reported_as_failed_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def retransmitted(source: Path, target: Path) -> None:
        real(source, target)
        raise FileExistsError(17, "File exists")  # as NFS may answer the second request

    monkeypatch.setattr(os, "link", retransmitted)
    assert files.write_once(tmp_path / "a", b"1")
    assert not files.write_once(tmp_path / "a", b"2")
    assert (tmp_path / "a").read_bytes() == b"1"


def test_write_once_that_cannot_be_is_an_error_not_a_lost_race(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(122, "Disk quota exceeded")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="quota"):
        files.write_once(tmp_path / "a", b"1")
    assert os.listdir(tmp_path) == []


def test_readers_see_the_old_or_the_new_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "beat.json"
    files.replace(path, b'{"n": 0}')
    stop = threading.Event()
    seen: set[int] = set()

    def read() -> None:
        while not stop.is_set():
            value = files.read_json(path)
            assert value is not None
            seen.add(value["n"])

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(1, 100):
        files.replace(path, b'{"n": %d}' % n)
    stop.set()
    reader.join()
    assert seen <= set(range(100))
    assert os.listdir(tmp_path) == ["beat.json"]


def test_a_replacement_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    files.replace(path, b"old")

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        files.replace(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("content", [b"", b'{"n": ', b"\xff\xfe", None])
def test_what_is_absent_or_half_written_is_none(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    assert files.read_json(path) is None


def test_a_small_file_is_read_without_room_for_the_largest(tmp_path: Path) -> None:
    path, asked = tmp_path / "a.json", []

    class Watched(io.BufferedReader):
        def read(self, size: int | None = -1, /) -> bytes:
            asked.append(size)
            return super().read(size)

    path.write_bytes(b'{"n": 1}')
    with Watched(io.FileIO(path)) as file:
        assert files.bounded_read(file, path) == b'{"n": 1}'
    assert asked == [9]


@pytest.mark.parametrize("most", [4, 100])
def test_a_file_that_grows_while_it_is_read_is_read_whole_within_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    path, fstat = tmp_path / "a", os.fstat
    path.write_bytes(b"abc")

    def grown(fd: int) -> os.stat_result:
        before = fstat(fd)
        path.write_bytes(b"abcdefgh")
        return before

    with files.open_file(path) as file, monkeypatch.context() as patch:
        patch.setattr(os, "fstat", grown)
        if most > 8:
            assert files.bounded_read(file, path, most) == b"abcdefgh"
        else:
            with pytest.raises(IntegrityError, match="more than 4 bytes"):
                files.bounded_read(file, path, most)
