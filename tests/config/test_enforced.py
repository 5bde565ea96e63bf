"""Submitting under a policy: the search gets its gates, and what is not enforced is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from hpcdet.config.load import load_config
from hpcdet.config.load.enforced import governed
from hpcdet.config.policy.policy_file import read_policy
from tests import TOP
from tests.commands import Cli

EXAMPLE = TOP / "examples" / "governed"


def test_the_search_of_a_governed_experiment_has_the_policys_gates() -> None:
    loaded = load_config.load(EXAMPLE / "governed.yaml")
    found = governed(loaded, read_policy("policy.yaml", EXAMPLE))
    gates = {one["metric"]: one for one in found.resolved()["searcher"]["constraints"]}
    assert gates["gov.violations"] == {
        "metric": "gov.violations",
        "upper": 0.0,
        "mode": "hard",
        "origin": "policy",
    }
    assert gates["gov.coverage"]["lower"] == 1.0
    assert found.origins["searcher.constraints"] == "policy"
    assert found.policy is not None


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("memorization", {"max_advantage": 0.1}, "memorization without twins"),
        ("memorization", {"canaries": {}}, "memorization.canaries"),
    ],
)
def test_what_nothing_enforces_is_refused_by_name(
    key: str, value: object, named: str, cli: Cli, tmp_path: Path
) -> None:
    folder = tmp_path / "governed"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    policy = yaml.safe_load((EXAMPLE / "policy.yaml").read_text())
    policy[key] = value
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    ran = cli("plan", folder / "governed.yaml", "--site", "local", code=4)
    assert named in ran.err and "does not enforce" in ran.err
