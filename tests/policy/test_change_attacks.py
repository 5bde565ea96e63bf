"""Records of changes when the machine fails, or somebody with a shell wishes them otherwise."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hpcdet.errors import Unavailable
from hpcdet.policy.changes.change_writer import approve
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.store.fs import files
from tests import disks
from tests.policy.test_policy_changes import BASE, LEE, LOOSE, TIGHT, Folder, made, text
from tests.security.test_private_folders import NOBODY


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disks.small_disk(tmp_path / "disk", megabytes=1) as why_not:
        if why_not:
            pytest.skip(f"no small file system can be mounted here: {why_not}")
        yield tmp_path / "disk"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return made(tmp_path)


def killed_writing(folder: Folder, before: str) -> None:
    """``policy override`` in a process that ends by SIGKILL at that function of the store."""

    def kill(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(files, before, kill)
    folder.writer().override("G117", "killed")


@pytest.mark.parametrize("before", ["link_once", "sync_folder"])
def test_a_kill_leaves_a_whole_record_or_none(folder: Folder, before: str) -> None:
    folder.writer().change(text(TIGHT), "first")
    process = multiprocessing.get_context("fork").Process(
        target=killed_writing, args=(folder, before)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    there = len(folder.load().changes)
    assert there == {"link_once": 1, "sync_folder": 2}[before]
    assert any(one.name[0] == "." for one in folder.paths.policy_changes.iterdir())
    folder.writer().revoke("b", "later")
    assert [one.number for one in folder.load().changes] == list(range(1, there + 2))


def test_on_a_full_disk_nothing_is_changed_and_it_is_said(small_disk: Path) -> None:
    folder = made(small_disk)
    folder.writer().change(text(TIGHT), "first")
    with disks.full(small_disk), pytest.raises(Unavailable, match="No space left") as caught:
        folder.writer().override("G117", "second")
    assert caught.value.exit_code == 5 and "0002.json" in caught.value.where
    assert [one.name for one in folder.paths.policy_changes.iterdir()] == ["0001.json"]
    folder.writer().override("G117", "second")
    assert len(folder.load().changes) == 2


def test_a_full_disk_at_the_first_change_leaves_the_policy_as_it_is(small_disk: Path) -> None:
    folder = made(small_disk)
    with disks.full(small_disk), pytest.raises(Unavailable):
        folder.writer().change(text(TIGHT), "first")
    assert folder.load().changes == ()


def test_more_approvals_than_a_record_holds_are_refused_before_it_is_written(
    folder: Folder,
) -> None:
    many = [approve(LOOSE, Ed25519PrivateKey.generate(), BASE.digest) for _ in range(16)]
    with pytest.raises(PolicyRefused, match="17 approvals"):
        folder.writer().change(text(LOOSE), "why", many, by=LEE)
    assert not folder.paths.policy_changes.exists()
    folder.writer().change(text(LOOSE), "why", many[:15], by=LEE)
    assert folder.load().newest == LOOSE


def test_a_record_of_an_heir_with_the_same_key_counts_in_its_place_only(
    folder: Folder,
    tmp_path: Path,
) -> None:
    """A fork has the key: a record may follow the same records there, and no others."""
    folder.writer().override("G117", "of both")
    fork = made(tmp_path, name="onc-0000")
    shutil.copy(folder.paths.secrets, fork.paths.secrets)
    shutil.copytree(folder.paths.policy_changes, fork.paths.policy_changes)
    folder.writer().change(text(TIGHT), "here")
    fork.writer().override("G116", "there")
    fork.writer().override("G118", "there, too")
    shutil.copy(fork.record(3), folder.record(3))
    assert folder.broken()[0] == "G108"
    folder.record(3).unlink()
    shutil.copy(fork.record(3), folder.record(2))
    assert folder.broken()[0] == "G108"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("how", ["plants a record", "plants the folder", "reads the key"])
def test_another_user_changes_nothing(how: str) -> None:
    """Not even where all may add files to the experiment, and a key that all may read signs not."""
    with tempfile.TemporaryDirectory() as root:
        mine, his = made(Path(root)), made(Path(root), name="his-0001")
        Path(root).chmod(0o755)
        his.writer().override("G117", "planted")
        if how == "plants a record":
            mine.paths.root.chmod(0o755)
            mine.paths.policy_changes.mkdir(0o777)
            mine.paths.policy_changes.chmod(0o777)
        elif how == "plants the folder":
            mine.paths.root.chmod(0o777)
        else:
            mine.paths.root.chmod(0o755)
            mine.paths.secrets.chmod(0o644)
            with pytest.raises(PolicyRefused, match=r"P10: others may read .*secrets\.json"):
                mine.writer()
            return
        for one in (his.paths.root, *his.paths.root.rglob("*")):
            one.chmod(0o755)
        to = mine.paths.root if how == "plants the folder" else mine.paths.policy_changes
        what = his.paths.policy_changes if how == "plants the folder" else his.record(1)
        as_him: Any = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        subprocess.run(["cp", "-r", what, to], check=True, **as_him)
        with pytest.raises(GovernanceBroken) as found:
            mine.load()
        assert found.value.check == "G108"
        for one in (mine.paths.root, mine.paths.policy_changes):
            one.chmod(0o700)
        with pytest.raises(GovernanceBroken) as found:  # nor when the door is shut behind it
            mine.load()
        assert found.value.check in ("G102", "G108")
