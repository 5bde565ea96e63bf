"""An experiment that was submitted under a policy is nothing without it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from hpcdet.policy import named_policy
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.policy.compiled import Coverage
from hpcdet.store.config.resolved_config import Resolved, resolve
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Revealed
from hpcdet.store.fs import files
from tests.governed_nodes import under
from tests.policy.test_policy_changes import BASE

PLAIN = resolve({"entrypoint": "m:M", "searcher": {"metric": "loss"}})
POLICY = dataclasses.replace(BASE, coverage=Coverage(min=0.5))


@pytest.fixture
def paths(tmp_path: Path) -> ExperimentPaths:
    found = ExperimentPaths(tmp_path)
    found.compiled_policy.write_text(POLICY.to_json())
    return found


def gated(*constraints: dict[str, Any]) -> Resolved:
    named = under(PLAIN, POLICY)
    searcher = dataclasses.replace(named.searcher, constraints=list(constraints))
    return dataclasses.replace(named, searcher=searcher)


def refusal(paths: ExperimentPaths, config: Resolved) -> str:
    with pytest.raises(GovernanceBroken) as found:
        named_policy.require(paths, config)
    assert (found.value.check, found.value.exit_code) == ("G110", 9)
    return str(found.value)


def test_whoever_has_none_needs_none(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    paths.provenance.write_bytes(files.canonical({"user": "ada"}))
    assert named_policy.require(paths, PLAIN) is None


LEFT = ("policy.json", "policy.yaml", "policies", "provenance.json", "secrets.json")


@pytest.mark.parametrize("left", LEFT)
def test_a_config_that_has_lost_its_policy_is_told_by_what_is_left(
    left: str, tmp_path: Path
) -> None:
    path = tmp_path / left
    if left == "policies":
        path.mkdir()
    else:
        names = {"policy": {"name": "p"}, "governance.run_key": "ab"}
        path.write_bytes(files.canonical(names))
    assert left in refusal(ExperimentPaths(tmp_path), PLAIN)


def test_the_policy_that_is_named_is_returned(paths: ExperimentPaths) -> None:
    assert named_policy.require(paths, under(PLAIN, POLICY)) == POLICY


def test_after_its_twins_were_revealed_nothing_trains(paths: ExperimentPaths) -> None:
    Revealed("onc-7f3a").write_once(paths.revealed)
    with pytest.raises(PolicyRefused, match="P10: its twin key was revealed"):
        named_policy.require(paths, under(PLAIN, POLICY))


VIOLATIONS = {"metric": "gov.violations", "upper": 0.0, "mode": "hard", "origin": "policy"}
COVERAGE = {"metric": "gov.coverage", "lower": 0.5, "mode": "hard", "origin": "policy"}


def test_gates_may_be_stricter_and_others_may_stand_beside_them(paths: ExperimentPaths) -> None:
    own = {"metric": "loss", "upper": 3.0}
    assert named_policy.require(paths, gated(own, VIOLATIONS, {**COVERAGE, "lower": 0.75}))


@pytest.mark.parametrize(
    ("metric", "constraints"),
    [
        ("gov.coverage", [VIOLATIONS]),
        ("gov.coverage, gov.violations", []),
        ("gov.coverage", [VIOLATIONS, {**COVERAGE, "lower": 0.25}]),
        ("gov.coverage", [VIOLATIONS, {**COVERAGE, "mode": "soft"}]),
        ("gov.coverage", [VIOLATIONS, {**COVERAGE, "tolerance": 9.0}]),
        ("gov.coverage", [VIOLATIONS, {**COVERAGE, "warmup": {"batches": 10**6}}]),
        ("gov.violations", [COVERAGE, {"metric": "gov.violations", "mode": "hard"}]),
    ],
)
def test_gates_that_were_taken_away_or_softened_are_named(
    metric: str, constraints: list[dict[str, Any]], paths: ExperimentPaths
) -> None:
    assert f"lacks the policy's constraints on {metric}" in refusal(paths, gated(*constraints))
