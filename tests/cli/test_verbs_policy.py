"""Verbs of policies: what is allowed, for people and for programs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from hpcdet.control.requests import fork
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Revealed
from tests import TOP
from tests.builders import Builder
from tests.commands import Cli
from tests.config.test_policies import POLICY

EXAMPLE = TOP / "examples" / "governed"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "p.yaml"
    text = POLICY.replace("2027-12-31", "2999-12-31")
    file.write_text(re.sub(r"chain: {.*}", "share: 1", text) + "coverage: {min: 0}\n")
    return file


def prepared(cli: Cli, policy: Path, search: str = "single") -> str:
    """An experiment under a policy that requires nothing of nodes, and no provenance."""
    text = policy.read_text().replace(", requires: [no_egress]", "")
    policy.write_text(text.replace("requires: {capabilities: [enclave]}\n", ""))
    config = policy.with_name("config.yaml")
    config.write_text(
        "entrypoint: ['true']\n"
        f"searcher: {{name: {search}, metric: loss, max_length: {{batches: 1}}}}\n"
        f"name: ruled\ngovernance: {{policy: {policy.name}}}\nsite: local\n"
    )
    return cli("submit", config, "--prepare", "--no-test", "-o", "id").out.strip()


def test_a_policy_is_checked_and_shown(cli: Cli, policy: Path) -> None:
    [item] = cli("policy", "check", policy, "-o", "json").items
    assert item == {
        "path": str(policy),
        "name": "notes",
        "version": 3,
        "assurance": "state_clean",
        "policy_digest": cli("policy", "check", policy, "-o", "id").out.strip(),
        "sources": ["hosp-a", "hosp-b", "public"],
        "layers": ["low", "high", "head"],
        "matrix": [[0, 0.5, 0.5], [0, 0.5, 0.5], [1, 1, 1]],
    }
    [shown] = cli("policy", "show", policy, "-o", "json").items
    [compiled] = cli("policy", "compile", policy, "-o", "json").items
    assert shown == compiled == item
    lines = cli("policy", "show", policy).out.splitlines()
    assert lines[0] == "notes, version 3: STATE CLEAN"
    assert lines[2:4] == ["SOURCE  low  high  head", "hosp-a    0   0.5   0.5"]
    assert cli("policy", "check", policy, "open", "-o", "jsonl").out.count("policy_digest") == 2


def test_a_wrong_policy_is_refused_with_line_and_repair(cli: Cli, policy: Path) -> None:
    policy.write_text(policy.read_text().replace("weight: 0.5", "weight: .nan"))
    err = cli("policy", "check", policy, code=4).err
    assert f"{policy}:21: rules.1.weight: P01: expected a finite number" in err
    policy.chmod(0o666)
    assert f"hint: chmod go-w {policy}" in cli("policy", "check", policy, code=4).err
    err = cli("policy", "check", "haed-only", code=4).err
    assert "hpcdet ships no policy named 'haed-only'" in err and "'head-only'?" in err


def test_what_two_policies_allow_is_compared(cli: Cli, policy: Path, tmp_path: Path) -> None:
    other = tmp_path / "q.yaml"
    other.write_text(
        policy.read_text()
        .replace("weight: 0.5", "weight: 0.75")
        .replace("weight: 1}", "weight: 0.9}")
    )
    rows = cli("policy", "diff", policy, other, "-o", "json").items
    assert {(row["source"], row["layer"]): row["kind"] for row in rows} == {
        ("hosp-a", "head"): "loosen",
        ("hosp-a", "high"): "loosen",
        ("hosp-b", "head"): "loosen",
        ("hosp-b", "high"): "loosen",
        ("public", "head"): "tighten",
        ("public", "high"): "tighten",
        ("public", "low"): "tighten",
    }
    assert (rows[0]["before"], rows[0]["after"]) == (0.5, 0.75)
    assert "all together: mixed" in cli("policy", "diff", policy, other).err
    assert "both allow the same" in cli("policy", "diff", policy, policy).err
    other.write_text(policy.read_text().replace("{min: 0}", "{min: 0.5}") + "assurance: direct\n")
    rows = cli("policy", "diff", policy, other, "-o", "json").items
    assert [(row["what"], row["source"], row["layer"], row["kind"]) for row in rows] == [
        ("assurance", "", "", "loosen"),
        ("coverage.min", "", "", "tighten"),
    ]
    err = cli("policy", "diff", policy, other).err
    assert "all together: mixed" in err and "coverage.min cannot change while" in err
    [row] = cli(
        "policy", "diff", "open", "head-only", "--fields", "before", "-o", "jsonl"
    ).out.split("\n")[:1]
    assert row == '{"before": null}'  # the layers have other names


def test_the_policy_of_an_experiment_is_shown_and_compared(cli: Cli, policy: Path) -> None:
    id = prepared(cli, policy)
    [item] = cli("policy", "show", id, "-o", "json").items
    named = resolved_config.load(cli.root / id / "experiment.yaml").governance
    assert named is not None and item["policy_digest"] == named.digest
    assert item["path"] == str(cli.root / id / "policy.json")
    assert cli("policy", "diff", id, policy, "-o", "json").items == []
    (cli.root / id / "policy.json").unlink()
    assert "G110: the experiment's policy is gone" in cli("policy", "show", id, code=9).err
    plain = Builder(cli.root / "plain-7f3a")
    assert "the experiment has no policy" in cli("policy", "show", plain.paths.id, code=3).err
    assert "head-only" in cli("policy", "show", "nothing", code=3).err


@pytest.mark.parametrize("verb", ["resume", "release", "policy show", "fork"])
def test_a_config_that_has_lost_its_policy_is_refused(cli: Cli, policy: Path, verb: str) -> None:
    id = prepared(cli, policy)
    config = yaml.safe_load((cli.root / id / "experiment.yaml").read_text())
    config["governance"], config["searcher"]["constraints"] = None, []
    (cli.root / id / "experiment.yaml").write_bytes(resolved_config.dump(config))
    assert "G110" in cli(*verb.split(), id, code=9).err


@pytest.mark.parametrize("verb", ["resume", "release", "fork"])
def test_after_its_twin_key_was_revealed_nothing_goes_on(cli: Cli, policy: Path, verb: str) -> None:
    id = prepared(cli, policy)
    Revealed(id).write_once(ExperimentPaths(cli.root / id).revealed)
    assert "P10: its twin key was revealed" in cli(verb, id, code=4).err


def test_an_archive_has_the_policy_and_a_copy_elsewhere_too(
    cli: Cli, policy: Path, tmp_path: Path
) -> None:
    id = prepared(cli, policy)
    digest = cli("policy", "show", id, "-o", "json").items[0]["policy_digest"]
    kept = tmp_path / "kept"
    kept.mkdir()
    cli("cancel", id, "-y")
    cli("move", id, kept)
    assert cli("policy", "show", kept / id, "-o", "json").items[0]["policy_digest"] == digest
    out = cli("archive", kept / id, "-o", "json").items[0]["path"]
    with tarfile.open(out) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"policy.yaml", "policy.json"} <= names and "secrets.json" not in names


def test_a_fork_has_the_policy_its_changes_and_the_keys(cli: Cli, policy: Path) -> None:
    id = prepared(cli, policy, "random, max_trials: 2")
    source = ExperimentPaths(cli.root / id)
    cli("policy", "change", id, "--revoke", "hosp-b", "--reason", "withdrawn")
    made = fork.fork(source, {}).paths
    assert made.id != id
    for name in ("policy.yaml", "policy.json", "secrets.json", "policies/0001.json"):
        assert (made.root / name).read_bytes() == (source.root / name).read_bytes(), name
    assert cli("policy", "diff", id, made.id, "-o", "json").items == []


def test_a_test_of_the_code_is_under_the_policy(cli: Cli, tmp_path: Path) -> None:
    """A parameter in no layer is found by the rank that trains, not by the verb."""
    shutil.copytree(EXAMPLE, tmp_path / "governed")
    file = tmp_path / "governed" / "policy.yaml"
    file.write_text(file.read_text().replace("'^head", "'^heed"))
    err = cli("test", tmp_path / "governed" / "governed.yaml", code=4).err
    assert "P02: parameter head.weight is in no layer of the policy" in err


def test_shipped_policies_are_listed(cli: Cli) -> None:
    rows = {row["name"]: row for row in cli("policy", "ls", "-o", "json").items}
    assert {"open", "head-only", "lane-isolated", "frozen-trunk", "enclave"} == set(rows)
    assert rows["lane-isolated"]["assurance"] == "isolated"
    assert all(row["description"] for row in rows.values())


def test_the_layers_of_a_model_come_from_its_code(cli: Cli, tmp_path: Path) -> None:
    [item] = cli(
        "policy",
        "compile",
        EXAMPLE / "policy.yaml",
        "--model",
        EXAMPLE / "governed.yaml",
        "-o",
        "json",
    ).items
    layers = {one["name"]: one["layer"] for one in item["parameters"]}
    assert layers["conv.weight"] == "low" and layers["head.bias"] == "head"
    assert {one["module"]: one["how"] for one in item["operators"]} == {
        "conv": "routed",
        "norm": "routed",
        "body": "routed",
        "head": "plain",
    }
    bad = tmp_path / "bad.yaml"
    bad.write_text((EXAMPLE / "policy.yaml").read_text().replace("'^head", "'^heed"))
    ran = cli("policy", "compile", bad, "--model", EXAMPLE / "governed.yaml", code=4)
    assert f"{bad}: layers: P02: parameter head.weight is in no layer" in ran.err
    assert "Traceback" not in ran.err


def test_checking_a_policy_brings_neither_numpy_nor_other_verbs() -> None:
    """They take longer than all the rest of it."""
    code = (
        "import sys; from hpcdet.cli import main; main.run(sys.argv[1:]);"
        "slow = {'numpy', 'torch', 'hpcdet.config.check', 'hpcdet.store.config.resolved_config',"
        " 'hpcdet.cli.govern.policy_change', 'hpcdet.cli.govern.policy_report'};"
        "print(sorted(slow & set(sys.modules)))"
    )
    argv = [sys.executable, "-c", code, "policy", "check", str(EXAMPLE / "policy.yaml"), "-o", "id"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[1:] == ["[]"]
