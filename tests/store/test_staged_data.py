"""Staged data: copied once, verified, shared, removed by who comes next."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdet.errors import ConfigError, IntegrityError, Unavailable
from hpcdet.store.fs import files
from hpcdet.store.trials import staged_data
from hpcdet.store.trials.staged_data import LeftEarly, staged


def never() -> bool:
    return False


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "numbers"
    (folder / "deep").mkdir(parents=True)
    (folder / "one").write_text("1")
    (folder / "deep" / "two").write_text("2")
    (folder / "again").symlink_to(folder)  # a link that leads back
    return folder


def in_another(code: str, *arguments: object) -> str:
    """Run code in a process of its own, which so holds no lock afterwards."""
    head = "import sys\nfrom hpcdet.store.trials.staged_data import *\n"
    argv = [sys.executable, "-c", head + code, *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


STAGE = "print(staged([sys.argv[1]], sys.argv[2], sys.argv[3], lambda: False)[0])"


def test_it_is_copied_once_per_allocation_and_swept_by_the_next(tmp_path: Path, data: Path) -> None:
    disk = tmp_path / "disk"
    first = Path(in_another(STAGE, data, disk, "job-1"))
    assert (first / "numbers/deep/two").read_text() == "2"
    (data / "one").write_text("changed meanwhile")
    assert Path(in_another(STAGE, data, disk, "job-1")) == first
    assert (first / "numbers/one").read_text() == "1"
    second, digest, why = staged([str(data)], str(disk), "job-2", never)
    assert not first.exists() and not why and len(digest) == 64
    assert (second / "numbers/one").read_text() == "changed meanwhile"
    in_another("remove(sys.argv[1])", disk)
    assert second.exists()  # this process uses it
    assert Path(in_another(STAGE, data, disk, "job-2")) == second


def test_the_digest_is_of_the_data_and_not_of_its_place(tmp_path: Path, data: Path) -> None:
    other = tmp_path / "elsewhere" / "numbers"
    other.parent.mkdir()
    (other / "deep").mkdir(parents=True)
    (other / "one").write_text("1")
    (other / "deep" / "two").write_text("2")
    digests = {staged([str(one)], str(tmp_path / "d"), "j", never)[1] for one in (data, other)}
    assert len(digests) == 1
    (other / "one").write_text("7")
    assert staged([str(other)], str(tmp_path / "e"), "j", never)[1] not in digests


def test_a_full_disk_leads_to_the_originals(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = staged([str(data)], str(tmp_path / "roomy"), "j", never)[1]
    real, disk = files.write_all, tmp_path / "full"

    def full(fd: int, chunk: bytes) -> None:
        if chunk == b"2":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd, chunk)

    monkeypatch.setattr(files, "write_all", full)
    place, digest, why = staged([str(data)], str(disk), "j", never)
    assert (place / "numbers").is_symlink() and digest == wanted and "No space left" in why


def test_a_copy_that_differs_is_refused_and_a_notice_ends_it(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LeftEarly):
        staged([str(data)], str(tmp_path / "a"), "j", lambda: True)
    real = files.write_all
    monkeypatch.setattr(files, "write_all", lambda fd, chunk: real(fd, b"x" * len(chunk)))
    with pytest.raises(staged_data.IntegrityError, match="not what was read"):
        staged([str(data)], str(tmp_path / "b"), "j", never)
    monkeypatch.setattr(files, "write_all", real)
    assert staged([str(data)], str(tmp_path / "b"), "j", never)[1]  # nothing of it is left


def test_places_of_others_and_sources_that_are_not_there(tmp_path: Path, data: Path) -> None:
    for taken in (
        lambda path: path.mkdir(mode=0o777),
        Path.touch,
        lambda path: path.symlink_to(data),
    ):
        (disk := tmp_path / "shared").mkdir()
        taken(base := disk / f"hpcdet-{os.getuid()}")
        base.chmod(0o777)
        place, _, why = staged([str(data)], str(disk), "j", never)
        assert not why and place.parent != base and place.parent.stat().st_mode & 0o777 == 0o700
        assert staged([str(data)], str(disk), "j", never)[0] == place, "that is everybody's"
        in_another("remove(sys.argv[1])", disk)
        assert place.exists(), "this process uses it"
        shutil.rmtree(disk)
    (disk := tmp_path / "loose").mkdir()
    disk.chmod(0o777)
    with pytest.raises(Unavailable, match="other users may put another folder in the place"):
        staged([str(data)], str(disk), "j", never)
    disk.chmod(0o1777)
    assert staged([str(data)], str(disk), "j", never)[1]
    with pytest.raises(ConfigError, match="is not there"):
        staged(["/not/there"], str(tmp_path / "x"), "j", never)
    with pytest.raises(ConfigError, match="no path"):
        staged(["$NO_SUCH_VARIABLE/x"], str(tmp_path / "x"), "j", never)


def test_a_pipe_among_the_data_is_named_and_waited_for_by_nobody(
    tmp_path: Path, data: Path
) -> None:
    os.mkfifo(data / "deep" / "pipe")
    with pytest.raises(IntegrityError, match="a named pipe instead of a file"):
        staged([str(data)], str(tmp_path / "disk"), "j", never)
