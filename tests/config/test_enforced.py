"""Submitting under a policy: the search gets its gates, and what is not enforced is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

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


def asking(tmp_path: Path, memorization: object) -> Path:
    """The config of the example, whose policy asks for more."""
    folder = tmp_path / "governed"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    policy = yaml.safe_load((EXAMPLE / "policy.yaml").read_text())
    policy["memorization"] = memorization
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    return folder / "governed.yaml"


def test_what_nothing_enforces_is_refused_by_name(cli: Cli, tmp_path: Path) -> None:
    config = asking(tmp_path, {"max_advantage": 0.1})
    ran = cli("plan", config, "--site", "local", code=4)
    assert "memorization without twins and canaries" in ran.err and "does not enforce" in ran.err


def test_canaries_alone_have_a_gate(tmp_path: Path) -> None:
    config = asking(tmp_path, {"canaries": {}, "max_advantage": 0.1})
    found = governed(load_config.load(config), read_policy("policy.yaml", config.parent))
    gates = {one["metric"]: one for one in found.resolved()["searcher"]["constraints"]}
    assert gates["gov.memorization"]["upper"] == 0.1 and gates["gov.memorization"]["mode"] == "hard"
