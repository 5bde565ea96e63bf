"""Nudges are hints: whatever lies in their folder, and whoever may not remove it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdet.store.decisions import wakeup
from hpcdet.store.decisions.wakeup import NOTHING, Told
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from tests import other_users


@pytest.fixture
def paths(tmp_path: Path) -> ExperimentPaths:
    made = ExperimentPaths(tmp_path / "test-0001")
    files.make_folder(made.root)
    return made


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder that every user comes to."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


def test_each_kind_is_heard_once_by_who_asks_for_it(paths: ExperimentPaths) -> None:
    assert not wakeup.take(paths) and wakeup.told(paths) == NOTHING
    for _ in range(2):  # before it is heard, the second says nothing more
        wakeup.tell(paths, 7, "report")
        wakeup.tell(paths, 7, "attempt")
        wakeup.tell(paths, 12, "report")
    assert not wakeup.take(paths), "none of them wants a turn now"
    wakeup.give(paths, "0001-0000.0")
    wakeup.give(paths, "trial-7")
    assert wakeup.told(paths) == Told(attempts={7}, reports={7, 12})
    assert wakeup.told(paths) == NOTHING
    assert wakeup.take(paths) and not wakeup.take(paths)


def test_two_who_leave_the_first_at_once_are_both_heard(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = wakeup._make

    def later(path: os.PathLike[str]) -> None:
        try:
            make(path)
        except FileNotFoundError:
            monkeypatch.setattr(wakeup, "_make", make)
            wakeup.tell(paths, 8, "attempt")  # the other one is faster
            raise

    monkeypatch.setattr(wakeup, "_make", later)
    wakeup.tell(paths, 7, "attempt")
    assert wakeup.told(paths) == Told(attempts={7, 8})


@pytest.mark.parametrize(
    "name",
    [
        "report-0",
        "report-007",
        "report--1",
        "report-1\n",
        "attempt-\N{ARABIC-INDIC DIGIT THREE}",
        "attempt-1000000000",
        "attempt-" + "9" * 200,
        "report-1.json",
        "Report-1",
        ".report-1",
    ],
)
def test_a_damaged_name_tells_of_no_trial_and_is_swept(paths: ExperimentPaths, name: str) -> None:
    wakeup.give(paths, name)
    wakeup.tell(paths, 3, "report")
    assert wakeup.told(paths) == Told(reports={3})
    assert wakeup.take(paths), "somebody wanted something"
    assert not os.listdir(paths.nudges)


def test_a_name_that_is_no_file_holds_nobody_up(paths: ExperimentPaths, tmp_path: Path) -> None:
    files.make_folder(paths.nudges)
    os.mkfifo(paths.nudges / "report-1")
    (paths.nudges / "report-2").symlink_to(tmp_path / "elsewhere")
    for name in ("attempt-3", "0001-0000.0"):
        (paths.nudges / name).mkdir()
    for number in (1, 2, 3):
        wakeup.tell(paths, number, "report")  # of a pipe nobody would ever read the other end
    assert not (tmp_path / "elsewhere").exists()
    assert wakeup.told(paths) == Told(attempts={3}, reports={1, 2, 3})
    assert wakeup.told(paths) == Told(attempts={3}), "it cannot be removed"
    assert not wakeup.take(paths), "what cannot be removed would ask for turns without end"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_who_may_not_change_the_folder_hears_of_trials_and_leaves_nothing(
    common: Path,
) -> None:
    paths = ExperimentPaths(common / "test-0001")
    files.make_folder(paths.root)
    wakeup.give(paths, "0001-0000.0")
    wakeup.tell(paths, 3, "report")
    for folder in (paths.root, paths.nudges):
        folder.chmod(0o755)

    def other() -> None:
        wakeup.give(paths, "0002-0000.0")
        wakeup.tell(paths, 4, "report")
        assert not wakeup.take(paths)
        assert wakeup.told(paths) == wakeup.told(paths) == Told(reports={3})

    assert other_users.by(12345, other) == 0
    assert sorted(os.listdir(paths.nudges)) == ["0001-0000.0", "report-3"]
    paths.nudges.chmod(0o700)

    def shut_out() -> None:
        wakeup.tell(paths, 4, "report")
        assert not wakeup.take(paths)
        assert wakeup.told(paths) == NOTHING

    assert other_users.by(12345, shut_out) == 0
    assert wakeup.told(paths) == Told(reports={3})


def test_without_a_folder_to_write_to_nothing_is_raised(paths: ExperimentPaths) -> None:
    paths.nudges.write_text("a file")
    wakeup.give(paths, "0001-0000.0")
    wakeup.tell(paths, 1, "report")
    assert not wakeup.take(paths) and wakeup.told(paths) == NOTHING
