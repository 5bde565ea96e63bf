"""``make leslie`` in a small dose: each cause is named, nothing else, and the bits come back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import experiments as x

TOP = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("reproduce")


def test_every_cause_is_named_and_the_bits_come_back(tmp_path: Path) -> None:
    argv = [sys.executable, str(TOP / "scripts" / "leslie.py"), "--batches", "4"]
    with x.local_jobs(tmp_path / "state") as state:
        ran = subprocess.run(
            [*argv, "--samples", "4096", "--work", str(tmp_path / "work")],
            env={**os.environ, "HPCDET_LOCAL_STATE": str(state), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = [line for line in ran.stdout.splitlines() if " as then " in line or "as it " in line]
    assert [row.split()[0] for row in rows] == [
        "as", "data", "hyperparameters", "libraries", "seeds", "threads",
    ]  # fmt: skip
    assert "  0.0  " in rows[-1] and " yes " in rows[-1]
    assert not any(" yes " in row for row in rows[:-1]), ran.stdout
    assert "threads as then: " in ran.stderr, "the cost is said"
