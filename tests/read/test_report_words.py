"""The report's words: numbers that agree, columns and legends of what occurs, plurals."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

from hpcdet import shipped
from hpcdet.read.experiment.gather import gather
from hpcdet.read.report.page import templates
from hpcdet.read.sections import search_story, time_spent, whole
from hpcdet.read.usage.spans import epoch
from hpcdet.read.views import views
from tests.builders import Builder, at, sweep
from tests.read.test_report_page import NOW, Text, render
from tests.read.test_timing import Told, tell


def section(page: str, name: str) -> str:
    """The words of a section."""
    found = re.search(rf'<section id="{name}">(.*?)</section>', page, re.DOTALL)
    assert found is not None
    return unescape(Text(found[1]).text)


def test_a_share_is_the_same_in_table_and_advice(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    attempt = built.trial().attempt()
    tell(attempt, Told(data=3.0), replace(Told(data=1.0), rank=1))
    attempt.end("completed")
    page = render(built)
    [row] = whole.report(gather(built.paths), NOW).sections.efficiency.rows
    share = 100 * row.phases["data"]
    assert f"{share:.1f} %" in section(page, "time")
    assert f"data: {share:.0f} % of the time; try more num_workers" in section(page, "efficiency")


def test_legend_and_columns_have_what_occurs(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    built.trial().attempt().end("completed")
    page = render(built)
    legend = section(page, "timeline")
    assert "✓ completed" in legend
    for absent in ("preempted", "paused", "Lost", "failed or lost", "gap in a bar"):
        assert absent not in legend
    assert "GPU" not in section(page, "efficiency")
    assert "Peak memory" not in section(page, "efficiency")
    swept = section(render(sweep(tmp_path / "swept-7f3a")), "timeline")
    for present in ("↺ preempted", "✗ failed or lost", "gap in a bar", "Lost"):
        assert present in swept


def test_one_is_said_as_one(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    attempt = built.trial().attempt()
    attempt.log("only this\n")
    attempt.checkpoint(10)
    attempt.end("completed")
    built.decide("event", event={"kind": "report", "trial": 1, "length": {"batches": 10}})
    for rank, others in ((1, 1), (2, 2), (3, 3)):
        why = f"rung 1 of 3 (10 batches): rank {rank} of {others}, the best 0 go on"
        built.decide("action", action={"kind": "pause", "trial": 1, "why": why})
    built.close()
    page = render(built)
    assert not re.findall(r"\b1 (?:more |best )?[a-z]+s\b(?! than)", Text(page).text)
    assert "the last line of" in section(page, "logs")
    assert "1 checkpoint Trial" in section(page, "checkpoints")
    gathered = gather(built.paths)
    told = search_story.section(gathered, views.status(gathered), whole.ReportExtent())
    assert [one.compared.partition(" that")[0] for one in told.stops] == [
        "no other trials",
        "1 other trial",
        "2 other trials",
    ]


def test_what_is_left_out_agrees_with_its_number() -> None:
    macros = templates(shipped.folder("templates") / "report").get_template("macros.j2").module
    more = macros.more
    assert "1 more trial is left out here; <code>hpcdet eff" in more(1, "trial", "eff")
    assert "1,200 more ranks, all idle, are left out here." in more(1200, "rank", "", ", all idle,")
    assert not more(0, "trial").strip()


def test_time_ends_with_the_experiment(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    built.trial().attempt().end("user_error", error="OSError")
    built.close("ERROR", "given up")
    shown = whole.report(gather(built.paths), epoch(at(built.clock)) + 10_000).sections
    assert shown.timeline.length_s <= built.clock


def test_what_runs_has_a_lane_among_thousands() -> None:
    every = [*range(1, 2001)]
    shown = time_spent.lanes(every, every[:-1], {2000, 1500}, 200)
    assert len(shown) == 200 and {1, 1500, 2000} <= set(shown)


def test_notes_stand_above_what_goes_on_and_are_not_repeated(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    built.trial().attempt().end("completed")
    assert "The experiment is not over" in render(built).partition('<section id="summary">')[0]
    built.close(why="1 of 1 trials succeeded")
    assert Text(render(built)).text.count("1 of 1 trials succeeded") == 1


def test_counts_of_thousands_are_written_alike(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    for n in range(1001):
        attempt = built.trial(hidden=n).attempt()
        attempt.metrics("validation", 10, validation_loss=float(n + 1))
        attempt.end("completed")
    words = Text(render(built)).text
    for said in (
        "1,001 trials with a value",
        "1,001 attempts as a table",
        "981 more are not drawn",
    ):
        assert said in words
    assert "1001 " not in section(render(built), "summary")
