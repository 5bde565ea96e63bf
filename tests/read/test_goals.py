"""Constraints and several objectives as they are read: standings, verbs, index, report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from hpcdet.errors import NotFound
from hpcdet.read import report
from hpcdet.read.experiment import standings
from hpcdet.read.experiment.gather import gather
from hpcdet.read.index import database
from hpcdet.read.lookup import lineage
from hpcdet.read.views import describe, views
from hpcdet.read.views.trials import BestView
from hpcdet.store.trials.parents import Donation
from tests.builders import EPOCH, Builder
from tests.commands import Cli

BOTH = [{"metric": "loss"}, {"metric": "speed", "smaller_is_better": False}]
LIMIT = [{"metric": "ms", "upper": 20, "tolerance": 10}]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def made(root: Path, **searcher: Any) -> Builder:
    """Four trials: the best loss is infeasible, one has NaN, one ended early with a good loss."""
    asked = {"name": "async_halving", "metric": "loss", "max_length": {"batches": 300}}
    asked |= {"divisor": 3, "num_rungs": 2, "max_trials": 4, **searcher}  # type: ignore[dict-item]
    built = Builder(root, searcher=asked)
    said: list[dict[int, dict[str, float]]] = [
        {100: {"loss": 0.5, "speed": 5, "ms": 9}, 300: {"loss": 0.4, "speed": 5, "ms": 30}},
        {100: {"loss": 0.6, "speed": 2, "ms": 9}, 300: {"loss": 0.1, "speed": 9, "ms": 50}},
        {100: {"loss": 0.2, "speed": 1, "ms": 9}},
        {100: {"loss": 0.9, "speed": 9, "ms": 9}, 300: {"loss": 0.8, "speed": 9, "ms": 10}},
        {100: {"loss": 0.7, "speed": 3, "ms": 9}, 300: {"loss": math.nan, "speed": 99, "ms": 1}},
        {100: {"loss": 0.7, "speed": 3, "ms": 9}, 300: {"loss": 0.9, "speed": 8, "ms": 1}},
    ]
    for reports in said:
        attempt = built.trial(hidden=len(reports)).attempt()
        for step, metrics in reports.items():
            attempt.metrics("validation", step, **metrics)
        attempt.end("completed")
    return built


@pytest.mark.parametrize(
    ("asked", "best", "front"),
    [
        ({"constraints": LIMIT}, (1, 0.4), [1]),
        ({"objectives": BOTH}, (2, 0.1), [2]),
        ({"objectives": BOTH, "constraints": LIMIT}, (1, 0.4), [1, 4]),
        ({"objectives": BOTH, "name": "random"}, (2, 0.1), [2]),
        ({"constraints": LIMIT, "name": "random"}, (3, 0.2), [3]),  # by their last reports
    ],
)
def test_trials_are_compared_at_the_highest_rung(
    tmp_path: Path, asked: dict[str, Any], best: tuple[int, float], front: list[int]
) -> None:
    built = made(tmp_path / "digits-7f3a", **asked)
    status = views.status(built.paths)
    assert status.best is not None
    assert (status.best.trial, status.best.value) == best
    assert lineage.best_trial(gather(built.paths)) == best[0]
    assert [row.trial for row in status.front] == front
    assert status.compared_at == (None if asked.get("name") else 300)
    if "constraints" in asked:
        assert [row.best for row in status.trials[:2]] == [0.4, 0.6]  # of feasible ones
        compared = status.trials[1].compared
        assert compared is not None and compared.violation == 2.0
        said = describe.headline(status, "ID")
        assert any(line.startswith("  best feasible loss 0.") for line in said)
    database.update(built.paths)
    found = {
        row["trial"]: row["best"] for row in database.query(built.paths, "select * from trials")
    }
    assert found == {row.trial: row.best for row in status.trials}


def test_a_schedule_begins_where_the_first_trial_of_a_fork_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = gather(made(tmp_path / "digits-7f3a").paths)
    parent = "../old-1a2b/3@200 batches"
    row = lineage.StretchView(1, 200, 300, "batches", {}, 7, parent, "00000200.g1", "abc")
    held = [Donation(tmp_path, at, {"root": root}) for at, root in ((100, "x"), (200, "abc"))]
    monkeypatch.setattr(lineage.parents, "donations", lambda *_: held)
    searcher = lineage.config([row], found)["searcher"]
    assert searcher["begin_from"] == "old-1a2b/3@200 batches"
    held.pop()
    with pytest.raises(NotFound, match="not there any more"):
        lineage.config([row], found)


def test_without_a_feasible_trial_the_nearest_is_named_as_what_it_is(cli: Cli) -> None:
    built = made(cli.root / "digits-7f3a", constraints=[{"metric": "ms", "upper": 0.5}])
    status = views.status(built.paths)
    assert (status.best, status.front) == (None, [])
    assert status.nearest is not None and status.nearest.trial == 6
    said = "no trial is feasible; nearest: trial 6 (loss 0.9, ms 1), infeasible"
    assert said in cli("status", "digits").out and said in cli("best", "digits").err
    infeasible = "no trial is feasible; nearest: trial 6, infeasible"
    assert infeasible in cli("show", "digits/@best", code=3).err
    assert cli("metrics", "digits", "--best", "--name", "loss", "-o", "json").items == []
    assert said in report.render(gather(built.paths), EPOCH.timestamp() + 1000)


def test_the_front_is_printed_and_drawn(cli: Cli) -> None:
    built = made(cli.root / "digits-7f3a", objectives=BOTH, constraints=LIMIT)
    items = cli("best", "digits", "-o", "json").items
    assert [(one["trial"], one["step"], one["objectives"]) for one in items] == [
        (1, 300, {"loss": 0.4, "speed": 5}),
        (4, 300, {"loss": 0.8, "speed": 9}),
    ]
    table = cli("status", "digits").out
    assert "front of loss, speed: trials 1, 4" in table
    assert all(title in table for title in ("LOSS", "SPEED", "MS", "FEASIBLE", "FRONT"))
    best = cli("metrics", "digits/4", "--best", "--name", "[ls]*", "-o", "json").items
    assert {(row["name"], row["value"]) for row in best} == {("loss", 0.8), ("speed", 9)}
    page = report.render(gather(built.paths), EPOCH.timestamp() + 1000)
    front = page[page.index('<section id="search">') : page.index('<section id="efficiency">')]
    assert front.count('class="dot front"') == 3  # with the legend's
    # the area up to the worst feasible values, 0.9 and 5: 0.1 wide, from 5 to 9
    assert "dominates an area of 0.4" in front
    assert "<tr><td>4</td><td>0.8</td><td>9</td><td>10</td></tr>" in front


def test_an_experiment_with_one_metric_has_no_standings(tmp_path: Path) -> None:
    built = made(tmp_path / "digits-7f3a")
    assert standings.standings(gather(built.paths)) is None
    status = views.status(built.paths)
    assert status.best == BestView(trial=2, value=0.1, step=300)
    assert (status.front, status.nearest) == ([], None)
