"""An experiment with everything that an export may get wrong, and what `metrics` says of it."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hpcdet.interop.formats.exported import ExperimentExport
from hpcdet.read.experiment import series
from hpcdet.read.experiment.gather import gather
from hpcdet.read.views import views
from hpcdet.store.folder.layout import ExperimentPaths
from tests.builders import Builder, sweep

HOSTILE = '=cmd()|../"<script>\n$x'
"""A name of a metric that means something to spreadsheets, paths, pages and lines."""


def rich(root: Path) -> Builder:
    """The search of ``sweep``, and trial 4: rewound by its user, stopped by the search.

    It reports a matrix, infinities, and metrics with hostile names.
    """
    built = sweep(root, ended=False)
    four = built.trial(hidden=8)
    first = four.attempt()
    for step in (50, 100, 150):
        first.metrics("training", step, loss=step / 3)
    first.metrics("validation", 100, validation_loss=0.7, confusion=[[5, 1], [0, 4]])
    first.metrics("validation", 150, validation_loss=float("inf"), **{HOSTILE: -0.5})
    first.checkpoint(100)
    first.end("preempted")
    four.control("run", rewinds=[["00000100.g1", 2]])
    second = four.attempt(start=100, checkpoint="00000100.g1")
    second.metrics("training", 125, loss=1 / 7)
    second.metrics("validation", 125, validation_loss=0.6, note="=1+1")
    four.control("stop")
    second.end("stopped")
    built.close()
    return built


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return rich(tmp_path_factory.mktemp("root") / "digits-7f3a")


def exported(paths: ExperimentPaths) -> ExperimentExport:
    """An experiment as it is now."""
    return ExperimentExport(gather(paths))


def plain(value: Any) -> float | str | None:
    """A number that equals itself: NaN as text; None for what is structured."""
    number = float("nan") if value == "NaN" else series.number(value)
    return "NaN" if number is not None and math.isnan(number) else number


def numbers(paths: ExperimentPaths) -> Counter[tuple[Any, ...]]:
    """Trial, group, name, step, value and time of each number that `metrics` prints."""
    rows = views.metrics(paths)
    assert [row for row in views.metrics(paths, superseded=True) if row["superseded"]]
    return Counter(
        (row["trial"], row["group"], row["name"], row["step"], value, row["time"])
        for row in rows
        if (value := plain(row["value"])) is not None
    )


def structured(paths: ExperimentPaths) -> dict[tuple[int, str], Any]:
    """By trial and name, the values that are no numbers."""
    rows = (row for row in views.metrics(paths) if plain(row["value"]) is None)
    return {(row["trial"], row["name"]): row["value"] for row in rows}
