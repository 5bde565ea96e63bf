"""Submissions per minute, over all processes of a user."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcdet.schedulers.calls import submission_rate
from hpcdet.schedulers.common.base import SubmissionRefused
from hpcdet.store.fs import files


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCDET_CACHE", str(tmp_path))


class Taker:
    """Takes every job."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []

    def submit(self, submission: Any) -> str:
        self.jobs.append(submission)
        return str(len(self.jobs))


def test_no_more_than_so_many_in_any_minute() -> None:
    now = 1000.0
    waits = [submission_rate.take(3, lambda: now) for _ in range(4)]
    assert waits[:3] == [0, 0, 0] and waits[3] == 60
    now += 59
    assert submission_rate.take(3, lambda: now) == 1
    now += 1
    assert [submission_rate.take(3, lambda: now) for _ in range(4)] == [0, 0, 0, 60]


def test_less_than_one_a_minute_waits_longer() -> None:
    assert submission_rate.take(0.5, lambda: 0.0) == 0
    assert submission_rate.take(0.5, lambda: 60.0) == 60
    assert submission_rate.take(0.5, lambda: 120.0) == 0


def test_a_clock_that_was_set_back_blocks_nobody() -> None:
    assert submission_rate.take(1, lambda: 5000.0) == 0
    assert submission_rate.take(1, lambda: 1000.0) == 0


def test_who_does_not_wait_is_told_when_it_may() -> None:
    scheduler: Any = Taker()
    assert submission_rate.submit(scheduler, "a", 1) == "1"  # type: ignore[arg-type]
    with pytest.raises(SubmissionRefused, match=r"1 submissions a minute .* in \d+ s") as caught:
        submission_rate.submit(scheduler, "b", 1)  # type: ignore[arg-type]
    assert caught.value.refusal.kind == "unavailable"
    assert submission_rate.submit(scheduler, "c", None) == "2"  # type: ignore[arg-type]
    assert scheduler.jobs == ["a", "c"]


def test_processes_share_one_count() -> None:
    code = "from hpcdet.schedulers.calls.submission_rate import take; print(take(5) == 0)"
    command = [sys.executable, "-c", code]
    asked = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    said = [process.communicate()[0].strip() for process in asked]
    assert said.count("True") == 5


def test_a_full_folder_refuses_for_now_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    scheduler: Any = Taker()
    with monkeypatch.context() as patched:
        patched.setattr(files, "replace", full)
        with pytest.raises(SubmissionRefused) as caught:
            submission_rate.submit(scheduler, "a", 5)  # type: ignore[arg-type]
    refusal = caught.value.refusal
    assert refusal.kind == "unavailable" and "No space left on device" in refusal.message
    assert "HPCDET_CACHE" in refusal.message and not scheduler.jobs
    assert submission_rate.submit(scheduler, "a", 5) == "1"  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", [b"[1, null, {}, []]", b"[{", b"", None])
def test_a_damaged_count_is_written_anew(tmp_path: Path, damage: bytes | None) -> None:
    submission_rate.take(2)
    [file] = tmp_path.rglob("submissions.json")
    if damage is None:
        os.truncate(file, files.LARGEST + 1)
    else:
        file.write_bytes(damage)
    assert [submission_rate.take(2) > 0 for _ in range(3)] == [False, False, True]
