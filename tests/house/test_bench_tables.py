"""Part h of ``make bench-search``, on a table of a few rows: built, searched, summed up."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests import TOP

sys.path.insert(0, str(TOP / "benchmarks"))

import bench_search  # type: ignore[import-not-found]

from benchmarks.search import learners, tabled, tables
from benchmarks.search.rules import Ladder
from hpcdet.search.halving.halving import NEWEST

NAME = "linear, breast cancer"
ROWS = 16


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        return tables.build(NAME, ROWS, processes=1)


@pytest.fixture(autouse=True)
def cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent.parent.parent))


def test_a_table_says_on_its_rows_what_training_has_shown() -> None:
    table = tables.load(NAME, ROWS)
    params, losses = table.rows[3], table.losses[3]
    assert np.allclose(table.curve(params)[0], losses)
    again, costs = tables._row((NAME, 4))
    assert np.allclose(again, losses, equal_nan=True) and len(costs) == table.full
    assert table.costs[:, -1].mean() == pytest.approx(1)
    between = {**params, "alpha": params["alpha"] * 1.01}
    assert np.isfinite(table.curve(between)[0]).all()


def test_benchmarks_measure_searches_of_the_newest_version() -> None:
    ladder = Ladder(27, 3, 4, rung_count=4)
    for name in (tabled.WITH, tabled.WITHOUT, "hpcdet bohb", "hpcdet adaptive_asha"):
        assert tabled.METHODS[name](ladder, learners.LINEAR, 0).version == NEWEST


def test_its_methods_are_compared_and_the_rows_are_those_of_every_benchmark(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = [
        tabled.Run(NAME, method, 4, seed, ROWS, horizon=1.0)
        for method in (tabled.WITH, tabled.WITHOUT, "random")
        for seed in (0, 1)
    ]
    found = {run: tabled.perform(run) for run in runs}
    assert all(len(values) == tabled.MOMENTS for values in found.values())
    assert found == {run: tabled.perform(run) for run in runs}
    full = tables.load(NAME, ROWS).losses[:, -1]
    assert all(full.min() - 1e-9 <= values[-1] <= full.max() for values in found.values())
    rows = tabled.summaries(found)
    ranks = [row["rank"][0] for row in rows if row["kind"] == "tabled"]
    assert sum(ranks) == pytest.approx(6) and len(ranks) == 3
    [row] = bench_search.tabled(rows)
    assert row["what"].startswith("difference of ranks on tables, 4 workers: hpcdet TPE")
    assert row["runs"] == 2 and row["goal"] == 0 and row["met"] in (True, False)
    assert NAME in capsys.readouterr().out


def test_ties_share_a_rank_and_bounds_hold_the_mean() -> None:
    better, worse = [1.0] * tabled.MOMENTS, [2.0] * tabled.MOMENTS
    of = {"a": worse, "b": better, "c": better}
    found = {tabled.Run("t", name, 4, seed): values for name, values in of.items() for seed in (0,)}
    ranks = tabled.ranked(found)
    assert ranks[4, "t", "a"][0][0] == 3 and ranks[4, "t", "b"][0][0] == 1.5
    assert tabled._drawn([[1.0, 3.0], [2.0, 2.0]])[0] == 2.0
    mean, low, high = tabled._drawn([[0.0, 1.0, 2.0, 5.0]])
    assert low < mean < high
