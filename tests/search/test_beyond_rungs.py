"""What is trained beyond rungs while decisions travel: measured, foretold, and warned of."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdet.jobs.checks import decisions
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.usage.beyond_rungs import Beyond, beyond
from tests.builders import Builder
from tests.commands import Cli, cli  # noqa: F401

SEARCH = {
    "name": "async_halving",
    "metric": "validation_loss",
    "max_length": {"batches": 90},
    "num_rungs": 3,
    "divisor": 3.0,
    "max_trials": 6,
    "max_concurrent_trials": 2,
}
CONFIG = """
name: short
entrypoint: python3 train.py
searcher: {name: async_halving, num_rungs: 3, divisor: 3, max_trials: 6, max_concurrent_trials: 2,
  max_length: {batches: 90}}
"""


@pytest.fixture
def built(cli: Cli) -> Builder:  # noqa: F811
    """Three trials that are paused by their report at 10; a line of a journal is a second."""
    built = Builder(cli.root / "short-0001", searcher=SEARCH)
    one, two, three = (built.trial().attempt() for _ in range(3))
    one.metrics("validation", 10, validation_loss=0.5)
    one.metrics("validation", 30, validation_loss=0.4)
    one.line("progress", batches=50, records=0, epochs=0)
    one.line("notice", signal="paused")
    one.end("paused")
    for step in (10, 30, 90):
        two.metrics("validation", step, validation_loss=0.6)
    two.end("completed")
    three.metrics("validation", 10, validation_loss=0.7)
    three.line("waited", rung=10, seconds=4.0, until="paused")
    three.line("notice", signal="paused")
    three.end("paused")
    for trial in (1, 2, 3):
        event = {"kind": "report", "trial": trial, "length": {"batches": 10}, "metrics": {}}
        built.decide("event", event=event)
        built.decide("action", action={"kind": "pause", "trial": trial, "why": "rung 1 of 3"})
        built.decide("action", action={"kind": "create", "trial": trial + 3, "params": {}})
    return built


def test_it_is_counted_from_the_report_that_was_decided_upon(built: Builder) -> None:
    assert beyond(Gathered(built.paths)) == [
        Beyond(1, 10, 40, 3.0, heard=True, passed=1),
        Beyond(2, 10, 80, 3.0, heard=False, passed=2),
        Beyond(3, 10, 0, 2.0, heard=True, passed=0),
    ]


def test_lines_that_lack_what_is_counted_count_for_nothing(cli: Cli) -> None:  # noqa: F811
    built = Builder(cli.root / "short-0001", searcher=SEARCH)
    attempt = built.trial().attempt()
    attempt.line("metrics", group="validation", step=10, metrics={"validation_loss": 0.5})
    whole = {"kind": "report", "trial": 1, "length": {"batches": 10}, "metrics": {}}
    for lost in ("trial", "length", "metrics"):
        built.decide("event", event={key: whole[key] for key in whole if key != lost})
        for action in ({"kind": "pause"}, {"trial": 1}, {"kind": "pause", "trial": 1}):
            built.decide("action", action=action)
    assert beyond(Gathered(built.paths)) == []
    assert cli("eff", built.paths.id, "-o", "json").items[0]["beyond_batches"] == 0
    attempt.line("waited", rung=10, until="paused")
    assert "'waited', has no valid 'seconds'" in cli("eff", built.paths.id, code=9).err


def test_eff_and_explain_say_it_for_each_trial_and_in_all(cli: Cli, built: Builder) -> None:  # noqa: F811
    rows = cli("eff", built.paths.id, "-o", "json").items
    keys = ("trained_batches", "beyond_batches", "beyond_s", "waited_s")
    assert [tuple(row[key] for key in keys) for row in rows] == [
        (50, 40, 3.0, 0.0),
        (90, 80, 3.0, 0.0),
        (10, 0, 0, 4.0),
    ]
    said = " ".join(cli("eff", built.paths.id).out.split())
    assert "short-0001: 120 of 150 batches were trained beyond rungs" in said
    assert "in 6 s; trials waited at rungs for 4 s" in said
    found = cli("explain", built.paths.id, "-o", "json").items
    [slow] = [one for one in found if "rungs came faster than decisions" in one["finding"]]
    assert "2 of 3 times" in slow["finding"] and "wait_at_rungs_s: 9" in slow["next"]
    assert slow["evidence"] == [
        "120 batches in all were trained beyond rungs (hpcdet eff)",
        "trials 1, 2",
    ]


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("asked", "units", "too_fast"),
    [
        # 4 trials leave at 10 and one at 30, after 2.5 s each, as the former ones heard
        (["--trial-time", "90"], 4 * 2.5 + 2, []),
        (["--trial-time", "9"], 4 * 25 + 25, [[10, 30]]),
        (["--trial-time", "9", "--decision-time", "9"], 4 * 80 + 60, [[10, 30], [30, 90]]),
        (["--trial-time", "9", "--set", "searcher.wait_at_rungs_s=3"], 25, []),
    ],
)
def test_plan_foretells_it_and_says_by_which_rates(
    asked: list[str],
    units: float,
    too_fast: list[list[int]],
    cli: Cli,  # noqa: F811
    tmp_path: Path,
) -> None:
    config = tmp_path / "short.yaml"
    config.write_text(CONFIG)
    ran = cli("plan", config, "--site", "local", *asked, "-o", "json")
    [item] = ran.items
    found = item["beyond"]
    assert (found["units"], found["too_fast"]) == (units, too_fast)
    assert ("rungs come faster than decisions" in ran.out) == bool(too_fast)
    by = "--decision-time" if "--decision-time" in asked else "short-0001"
    assert (found["decision_by"], found["pace_by"]) == (by, "--trial-time")
    said = " ".join(cli("plan", config, "--site", "local", *asked).out.split())
    assert f"about {units:.0f} batches more while decisions travel" in said
    [alone] = cli(
        *("plan", config, "--site", "local", "--set", "searcher.max_trials=1", "-o", "json")
    ).items
    assert alone["beyond"] is None  # nobody leaves at a rung


def test_the_last_twenty_of_the_name_that_have_rungs_are_looked_at(
    built: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, wanted = built.paths.root.parent, Gathered(built.paths).config
    assert (found := decisions.former(root, wanted)) and found.source == "short-0001"
    looked: list[str] = []
    monkeypatch.setattr(decisions, "beyond", lambda one: looked.append(one.paths.id) or [])
    for number in range(2, 21):
        search = SEARCH if number % 2 else {**SEARCH, "name": "random", "num_rungs": None}
        Builder(root / f"short-{number:04d}", searcher=search)
        Builder(root / f"other-{number:04d}", searcher=SEARCH)
    assert decisions.former(root, wanted) is None
    assert looked == [f"short-{number:04d}" for number in range(19, 0, -2)]
    Builder(root / "short-0021", searcher=SEARCH)
    looked.clear()
    assert decisions.former(root, wanted) is None
    assert looked == [f"short-{number:04d}" for number in range(21, 1, -2)]


def test_a_submission_warns_by_what_a_former_one_has_shown(
    cli: Cli,  # noqa: F811
    built: Builder,
    tmp_path: Path,
) -> None:
    config = tmp_path / "model" / "short.yaml"
    config.parent.mkdir()
    config.write_text(CONFIG)
    asked = ("submit", config, "--site", "local", "-n", "--no-test")
    said = cli(*asked).err
    assert "rungs come faster than decisions: from 10 to 30 batches" in said
    assert "(short-0001)" in said
    said = cli(*asked, "--set", "searcher.wait_at_rungs_s=60").err
    assert "faster" not in said
    assert built
