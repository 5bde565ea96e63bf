"""What verbs and the report say of trials that were judged by twins and canaries."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hpcdet.policy import governed_metrics
from hpcdet.policy.compiled import (
    Canaries,
    CompiledPolicy,
    DataSource,
    LayerGroup,
    Memorization,
    Twins,
)
from hpcdet.policy.memorization import canary_evidence, twin_evidence
from hpcdet.policy.memorization.canaries import CanaryVerdict
from hpcdet.policy.memorization.twins import TwinVerdict
from hpcdet.read.experiment.gather import gather
from hpcdet.read.governed.governed_trials import DEPTH, governance
from hpcdet.read.report import render
from tests.builders import Builder
from tests.commands import Cli

POLICY = CompiledPolicy(
    "notes",
    1,
    "sha256:00",
    (LayerGroup("all", ""),),
    (DataSource("notes"),),
    ((1.0,),),
    memorization=Memorization(Twins(), max_advantage=0.2),
)


def search(root: Path, policy: CompiledPolicy, *wins: int) -> Builder:
    """Trials of a search, of which each won so many of 100 pairs at step 200, and half at 100."""
    built = Builder(
        root,
        governance={"policy": "notes", "digest": policy.digest},
        searcher={
            "name": "random",
            "metric": "validation_loss",
            "smaller_is_better": True,
            "max_length": {"batches": 200},
            "max_trials": len(wins),
            "constraints": governed_metrics.constraints(policy)[1:],
        },
    )
    built.paths.compiled_policy.write_text(policy.to_json())
    for won in wins:
        trial = built.trial()
        attempt = trial.attempt()
        for step, count in ((100, 50), (200, won)):
            verdict = TwinVerdict(count, 100 - count, 0, 0, 6e-4, 0.2, tpr=0.03)
            metrics = twin_evidence.memorization({"notes": verdict})
            values = {"validation_loss": 1.0 / won, "gov.violations": 0.0, **metrics}
            attempt.metrics("validation", step, **values)
        attempt.end("stopped" if verdict.violated else "completed")
    built.close()
    return built


def test_the_evidence_of_the_last_validation_is_reported(cli: Cli) -> None:
    built = search(cli.root / "notes-7f3a", POLICY, 80, 55)
    memorizer, honest = governance(built.paths)
    assert memorizer.memorization is not None and honest.memorization is not None
    found = memorizer.memorization["notes"]
    assert found.advantage == pytest.approx(0.6)
    assert (found.pairs, found.tpr) == (100, 0.03)
    assert found.bound and found.upper and found.bound < 0.6 < found.upper
    assert honest.memorization["notes"].advantage == pytest.approx(0.1)
    items = cli("policy", "report", "notes-7f3a", "-o", "json").items
    assert cli.checked == {"policy.report"}
    assert items[0]["memorization"]["notes"]["power"] == pytest.approx(0.777, abs=0.01)
    said = " ".join(cli("policy", "report", "notes-7f3a").out.split())
    assert "notes: advantage 0.6 of 100 pairs of twins, at least 0.446 and at most 0.727" in said
    assert "power 0.78, TPR at 1 % FPR 0.03, epsilon at least 0.96" in said
    page = render(gather(built.paths), 1e9)
    for text in ("TPR at 1 % FPR", "<td>0.446</td>", "trained against their withheld twins"):
        assert text in page


def test_canaries_are_reported_beside_twins_or_alone(cli: Cli) -> None:
    rules = Memorization(None, Canaries(), max_advantage=0.2)
    built = search(cli.root / "notes-7f3a", dataclasses.replace(POLICY, memorization=rules))
    attempt = built.trial().attempt()
    verdict = CanaryVerdict((9.0, 1.0), 1000, 6e-4, 0.2, (16, 1))
    metrics = canary_evidence.memorization({"notes": verdict})
    attempt.metrics("validation", 200, validation_loss=1.0, **{"gov.violations": 0.0, **metrics})
    attempt.end("stopped")
    built.close()
    [item] = cli("policy", "report", "notes-7f3a", "-o", "json").items
    assert cli.checked == {"policy.report"} and item["memorization"] is None
    found = item["canaries"]["notes"]
    assert (found["canaries"], found["exposure"], found["exposure_alpha"]) == (2, 5.0, 6e-4)
    assert found["exposure_at"] == {"1": 1.0, "16": 9.0}
    said = " ".join(cli("policy", "report", "notes-7f3a").out.split())
    assert "notes: exposure 5 bits of 2 canaries (1 at 1 x, 9 at 16 x), 1.443 if untrained" in said
    page = render(gather(built.paths), 1e9)
    assert "1 at 1 ×, 9 at 16 ×" in page and "<td>0.357</td>" in page
    assert DEPTH in said and DEPTH in page


def test_a_search_in_which_all_memorize_has_no_best(cli: Cli) -> None:
    built = search(cli.root / "notes-7f3a", POLICY, 80, 90)
    assert "no trial is feasible" in cli("best", "notes-7f3a").err
    assert "infeasible" in cli("status", "notes-7f3a").out
    assert "infeasible" in render(gather(built.paths), 1e9)


def test_what_is_not_measured_is_null(cli: Cli) -> None:
    built = search(cli.root / "notes-7f3a", POLICY)
    trial = built.trial()
    attempt = trial.attempt()
    attempt.metrics("validation", 100, validation_loss=1.0, **{"gov.violations": 0.0})
    attempt.end()
    assert [one.memorization for one in governance(built.paths)] == [None]
