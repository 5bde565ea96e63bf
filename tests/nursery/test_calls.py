"""Calls to the file system of ranks of a worker's later trials; counts, no times."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.start import storm

OF_RANK_0, OF_OTHERS = 88, 36
"""The most calls with a path until the first step, beside a look at each folder above."""


@pytest.mark.skipif(shutil.which("cc") is None, reason="a library is compiled that counts")
def test_ranks_of_later_trials_ask_little_of_the_file_system(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    folder = tmp_path / "storm"
    counted = storm.storm("auto", 2, 4, folder, 0.0).ranks[1:]
    above = len((folder / "EXP").parts)
    # the least: a rank that has to wait for another one looks for it again and again
    assert min(most for _, most in counted) - above <= OF_RANK_0, counted
    assert min(least for least, _ in counted) - above <= OF_OTHERS, counted
