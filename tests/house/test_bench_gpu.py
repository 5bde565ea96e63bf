"""``make bench-gpu`` says where there is no GPU; its code runs on whatever device there is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests import TOP

BENCHMARKS = TOP / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import bench_gpu  # type: ignore[import-not-found] # noqa: E402


def test_without_a_gpu_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench_gpu.main([]) == 3
    assert "no GPU" in capsys.readouterr().err


def test_the_same_code_runs_on_a_cpu(tmp_path: Path) -> None:
    bench = bench_gpu.Bench(tmp_path, "cpu", bench_gpu.SMALL)
    step = bench.step(1, amp=False)
    assert step["ours"] > 0 and step["peer"] > 0
    resumed = bench.resumed(1, amp=True)  # which a CPU does without
    assert resumed["met"] and resumed["runs"] == 2, resumed
    stall = bench.stall()
    assert stall["ours"] > 0 and stall["peer"] > 0
