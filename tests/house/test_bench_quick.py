"""Benchmarks of steps, saves and loads in small: they run, and what they write is JSON of rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import TOP

sys.path.insert(0, str(TOP / "benchmarks"))

import bench_checkpoint  # type: ignore[import-not-found]
import bench_overhead  # type: ignore[import-not-found]
import overhead_loops  # type: ignore[import-not-found]
import results  # type: ignore[import-not-found]

KEYS = {"what", "unit", "ours", "peer", "peer_name", "ratio", "goal", "met", "runs"}


def written(rows: list[Any], folder: Path, patch: pytest.MonkeyPatch) -> list[Any]:
    """The rows as a benchmark's file has them."""
    (folder / "benchmarks").mkdir()
    patch.setattr(results, "TOP", folder)
    results.write("quick", rows)
    assert json.loads((folder / "benchmarks" / "results" / "quick.json").read_text())["machine"]
    found: list[Any] = results.written("quick")
    return found


@pytest.mark.parametrize(("what", "world"), [("loads", 2), ("saves", 1)])
def test_saves_and_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, world: int
) -> None:
    pytest.importorskip("safetensors", reason="a peer of the bench: the extra huggingface has it")
    seen = bench_checkpoint.run(what, world, 1, True)
    made = (
        bench_checkpoint.of_loads(seen, "ranks", 1.1)
        if what == "loads"
        else bench_checkpoint.of_saves(seen, "rank")
    )
    rows = written(made, tmp_path, monkeypatch)
    assert len(rows) >= 10
    for row in rows:
        assert set(row) >= KEYS and row["ours"] > 0 < row["peer"]


def test_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = overhead_loops.Step("quick", 8, 4, 3, 2, 1.0)
    run = overhead_loops.Run(step, 1, 1, 3)
    blocks = overhead_loops.measure([overhead_loops.BARE, *overhead_loops.OURS], run)
    # as if it were of as many groups as bounds are made of
    groups = {name: found * 4 for name, found in blocks.items()}
    rows = written(bench_overhead._rows(groups, run), tmp_path, monkeypatch)
    assert [row["peer_name"] for row in rows] == [overhead_loops.BARE] * 2
    for row in rows:
        assert set(row) >= KEYS and 0 < row["low"] <= row["ratio"] <= row["high"]


def test_steps_inside_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both clocks, on the model of ours: what the loops do in turn is what one would do alone."""
    step = overhead_loops.Step("quick", 8, 4, 3, 2, 1.0)
    run = overhead_loops.PairedRun(step, 1, 1, 3)
    rows = []
    for ours in overhead_loops.OURS:
        for clock, blocks in zip(
            overhead_loops.CLOCKS, overhead_loops.measure_paired(ours, [], run), strict=True
        ):
            assert [len(found) for found in blocks[ours]] == [4]
            groups = {name: found * 4 for name, found in blocks.items()}
            rows += bench_overhead._rows(groups, run, clock)
    found = written(rows, tmp_path, monkeypatch)
    assert [row["what"] for row in found] == [
        f"{ours}, quick, 1 rank{clock}"
        for ours in overhead_loops.OURS
        for clock in overhead_loops.CLOCKS
    ]
    for row in found:
        assert set(row) >= KEYS and row["ours"] > 0 < row["peer"]
