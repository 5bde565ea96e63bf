"""``make bench-gpu`` says where there is no GPU; its code runs on whatever device there is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from tests import TOP

BENCHMARKS = TOP / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import bench_gpu  # type: ignore[import-not-found] # noqa: E402
import results  # type: ignore[import-not-found] # noqa: E402


def test_without_a_gpu_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench_gpu.main([]) == 3
    assert "no GPU" in capsys.readouterr().err


FIELDS = {"part", "what", "unit", "ours", "peer", "peer_name", "ratio", "goal", "met", "runs"}


@pytest.mark.parametrize("part", bench_gpu.PARTS)
def test_the_same_code_runs_on_a_cpu(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "TOP", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    assert bench_gpu.main(["--device", "cpu", "--quick", "--part", part]) == 0
    [file] = (tmp_path / "benchmarks/results").iterdir()
    assert file.name == "gpu-on-cpu.json", "nobody takes it for a device's"
    rows = json.loads(file.read_text())["rows"]
    for row in rows:
        assert row.keys() >= FIELDS and row["part"] == part, row
        assert row["unit"] != "s" or row["ours"] > 0 < row["peer"], row
        assert row["unit"] != "digest" or len(row["ours"]) == len(row["peer"]) == 16, row


def test_a_row_that_fails_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(results, "TOP", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.setattr(bench_gpu.gpu_processes, "forks", broken)
    argv = ["--device", "cpu", "--quick", "--part", "fork", "--part", "lanes"]
    assert bench_gpu.main(argv) == 1
    rows = json.loads((tmp_path / "benchmarks/results/gpu-on-cpu.json").read_text())["rows"]
    assert [row["met"] for row in rows] == [False, True]
    assert "out of memory" in capsys.readouterr().err
    bench_gpu.main(argv[:-2])
    rows = json.loads((tmp_path / "benchmarks/results/gpu-on-cpu.json").read_text())["rows"]
    assert [row["part"] for row in rows] == ["lanes", "fork"], "what was not measured anew stays"


def test_a_machine_without_git_is_measured_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "TOP", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    results.write("gpu", [])
    assert json.loads((tmp_path / "benchmarks/results/gpu.json").read_text())["commit"] == ""
