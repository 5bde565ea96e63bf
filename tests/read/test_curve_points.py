"""Curves keep what a picture shows of them: ends, extremes, what does not count."""

from __future__ import annotations

import math
import random
from pathlib import Path

from hpcdet.read.experiment import curve_points, series
from hpcdet.read.experiment.gather import Gathered
from tests.builders import Builder, sweep


def test_few_points_are_all_there_with_those_that_do_not_count(tmp_path: Path) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    gathered = Gathered(built.paths)
    rows = series.metrics(gathered, superseded=True)
    found = list(curve_points.curves(gathered))
    assert sum(len(one.points) + len(one.superseded) for one in found) == len(rows)
    for one in found:
        own = [
            row
            for row in rows
            if (row["trial"], row["group"], row["name"]) == (one.trial, one.group, one.name)
        ]
        for points, out in ((one.points, False), (one.superseded, True)):
            said = [row for row in own if row["superseded"] is out]
            assert [*points.steps] == [row["step"] for row in said]
            assert [*points.attempts] == [row["attempt"] for row in said]
            same = zip(points.values, (float(row["value"]) for row in said), strict=True)
            assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in same)
    [loss] = [one for one in found if (one.trial, one.name) == (2, "validation_loss")]
    assert (loss.count, loss.odd, loss.low, loss.high) == (2, 1, 0.1, 0.1)


def test_many_points_keep_their_ends_and_extremes(tmp_path: Path) -> None:
    built = Builder(tmp_path / "long-0001")
    attempt, chance = built.trial().attempt(), random.Random(7)
    values = [chance.random() for _ in range(3000)]
    values[1234], values[2001], values[500] = -5.0, 9.0, math.nan
    for step, value in enumerate(values):
        attempt.metrics("training", step, loss=value, other=1.0)
    wanted = curve_points.curves(Gathered(built.paths), lambda _, name: name == "loss", points=50)
    [curve] = wanted
    assert (curve.count, curve.odd, curve.low, curve.high) == (3000, 1, -5.0, 9.0)
    assert 20 <= len(curve.points) <= 50 and not len(curve.superseded)
    kept = dict(zip(curve.points.steps, curve.points.values, strict=True))
    assert {0, 500, 1234, 2001, 2999} <= set(kept) and math.isnan(kept[500])
    assert all(kept[step] == values[step] for step in kept if step != 500)
    assert list(kept) == sorted(kept)
