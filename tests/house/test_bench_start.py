"""``make bench-start``: all of its parts run, and write what others can read."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import TOP

BENCHMARKS = TOP / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import bench_start  # type: ignore[import-not-found] # noqa: E402
import results  # type: ignore[import-not-found] # noqa: E402

from benchmarks.start import many_trials  # noqa: E402

FIELDS = {"part", "what", "unit", "ours", "peer", "peer_name", "ratio", "goal", "met", "runs"}


def rows(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the quick form of a part writes."""
    monkeypatch.setattr(results, "TOP", tmp_path)
    # the others are measured only where somebody has installed them: gigabytes
    monkeypatch.setattr(many_trials, "_peers_python", lambda _: "")
    (tmp_path / "benchmarks").mkdir()
    assert bench_start.main(["--quick", "--part", part]) == 0
    written = json.loads((tmp_path / "benchmarks/results/start-quick.json").read_text())
    assert written.keys() == {"machine", "commit", "rows"}
    for row in written["rows"]:
        assert row.keys() == FIELDS and row["part"] == part, row
        assert all(math.isfinite(row[name]) and row[name] > 0 for name in ("ours", "peer", "ratio"))
        assert (row["goal"] is None) is (row["met"] is None) and row["runs"] > 0, row
    found: list[dict[str, Any]] = written["rows"]
    return found


@pytest.mark.parametrize("part", ["first steps", "submit", "many trials"])
def test_the_quick_form_of_each_part(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rows(part, tmp_path, monkeypatch)
    assert len({(row["what"], row["peer_name"]) for row in found}) == len(found) >= 4


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_ranks_that_are_forked_ask_for_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks on a node, of which the first one has the checkpoint and the records to write."""
    found = {row["what"]: row for row in rows("storm", tmp_path, monkeypatch)}
    first = found["storm: calls of a node, first trial"]
    assert first["ours"] < 0.75 * first["peer"], "one import for both"
    assert found["storm: calls of a later rank, mean"]["ours"] < 120
