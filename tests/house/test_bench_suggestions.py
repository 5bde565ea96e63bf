"""Part b of ``make bench-search``, in small: suggestions are timed in turns with Optuna's."""

from __future__ import annotations

import json
import sys

import pytest

from tests import TOP

sys.path.insert(0, str(TOP / "benchmarks"))

import bench_search  # type: ignore[import-not-found]

from benchmarks.search import suggestions


def test_each_of_ours_takes_turns_with_optunas(capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for name in suggestions.OURS:
        groups = [suggestions.turns(suggestions.Job(name, 20, 3, seed)) for seed in range(4)]
        assert all(len(ours) == len(peer) == 3 for ours, peer in groups)
        assert all(took > 0 for group in groups for side in group for took in side)
        rows.append(suggestions.row_of(name, 20, groups))
    found = json.loads(json.dumps(bench_search.suggestions(rows)))
    assert len(found) == 2 * len(rows) and all(row["met"] in (True, False) for row in found)
    assert {row["runs"] for row in found} == {12}
    said = capsys.readouterr().out
    assert all(name in said for name in suggestions.OURS)
