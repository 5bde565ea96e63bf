"""A dose of each campaign of governance, by the programs that ``make`` runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import TOP

BENCHMARKS = TOP / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import bench_governance  # type: ignore[import-not-found] # noqa: E402
import governed_search  # type: ignore[import-not-found] # noqa: E402

from benchmarks.governance import ungoverned, whole_processes  # noqa: E402
from benchmarks.governed.recipe_searches import Bench  # noqa: E402

MEASURED = {
    *("routed", "weighted", "run twice", "per source", "per sample"),
    *("ledger and measures", "measures of a checkpoint"),
    *("checks of a resume", "checks, with digests of Adam"),
}


@pytest.mark.xdist_group("governed-recovery")
def test_a_kill_and_a_change_for_each_outcome_are_what_the_campaign_wants() -> None:
    """Of each outcome one check; the whole is ``make governed-recovery``."""
    program = BENCHMARKS / "governed_recovery.py"
    numbers = ["3", "6", "12", "16", "17", "21"]
    done = subprocess.run(
        [sys.executable, program, "--ranks", "2", "--checks", *numbers],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = ("older checkpoint", "recorded", "dropped", "stopped", "warned", "refused by the")
    assert all(f" {outcome}" in done.stdout for outcome in outcomes)
    assert done.stdout.endswith("14 of 14 claims are met: shown\n")


@pytest.mark.xdist_group("governed-search")
def test_a_search_that_a_memorizer_would_win_prunes_it_under_the_policy(tmp_path: Path) -> None:
    found = governed_search.run(Bench(tmp_path), governed_search.TUNED[0], "validation_loss")
    assert len(found) == 7 and not [one for one in found if not one.met]


def test_the_benchmark_measures_all_that_it_has_goals_for() -> None:
    rows = list(bench_governance.model_rows("mlp", 3, 1))
    assert {row["what"] for row in rows} == {f"mlp, 3 sources, {kind}" for kind in MEASURED}
    assert all(row["ours"] > 0 and row["peer"] > 0 for row in rows)
    proof, check = whole_processes.rows(1)
    assert proof["what"].startswith("statement") and "policy check" in check["what"]
    assert proof["ours"] > 0 and check["ours"] > 0


def test_a_trial_without_a_policy_has_the_digest_of_the_version_before() -> None:
    imported, digest, step = ungoverned.rows(1)
    assert imported["met"] and imported["ours"] == []
    assert len(digest["ours"]) == 1 and step["ours"] > 0
    assert digest["met"] is not False  # None: the history does not reach back so far
