"""Directives in ``make bench-search-control``, in small: each report is answered by a pause."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests import TOP

sys.path.insert(0, str(TOP / "benchmarks"))

import bench_search_control  # type: ignore[import-not-found]
import control_waits  # type: ignore[import-not-found]

from hpcdet.store.trials.controls import in_force


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_trial_that_has_reported_is_told_to_pause(tmp_path: Path, sampler: str) -> None:
    judged = control_waits.Judged(tmp_path, sampler, 30)
    for _ in range(4):
        number, made = next(iter(judged.live)), len(judged.plans)
        judged.report()
        control = in_force(judged.world.paths.trial(number))
        assert control is not None and control.action == "pause"
        assert len(judged.live) == control_waits.PLACES and len(judged.plans) >= made
    assert len(judged.wall) == len(judged.cpu) == len(judged.floor) == 4
    assert all(cpu > 0 for cpu in judged.cpu) and all(wall > 0 for wall in judged.wall)


def test_what_they_take_is_rows_as_of_every_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    took = {"wall": [0.01, 0.04, 0.02], "cpu": [0.01] * 3, "floor": [0.001] * 3}
    monkeypatch.setattr(bench_search_control, "_child", lambda *_: took)
    rows = json.loads(json.dumps(bench_search_control.directives((30,), 3)))
    assert len(rows) == 2 * 2 * 3 and {row["runs"] for row in rows} == {3}
    p95 = {row["what"]: row["met"] for row in rows if row["goal"] is not None}
    assert len(p95) == 4 and all(p95.values())
