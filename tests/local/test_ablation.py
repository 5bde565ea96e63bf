"""``fork --without-routing`` on an experiment that trains: what routing costs, side by side."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdet.config.policy.policy_file import read_policy
from hpcdet.control.requests import ablate
from hpcdet.errors import UsageError
from hpcdet.guard.resume.same_policy import same_policy
from hpcdet.policy.changes import strictness
from hpcdet.policy.changes.policy_in_effect import PolicyInEffect
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy, PolicyText
from hpcdet.read.experiment.gather import gather
from hpcdet.read.governed.governed_trials import governance
from hpcdet.read.report import render
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths
from tests import TOP
from tests import experiments as x
from tests.commands import Cli, cli  # noqa: F401

EXAMPLE = TOP / "examples" / "governed"


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path) -> Iterator[None]:
    with x.local_jobs(tmp_path / "state"):
        yield


def allowing(*, ablation: bool = True) -> PolicyText:
    written = read_policy(str(EXAMPLE / "policy.yaml"))
    wanted = dataclasses.replace(
        written.compiled, ablation="allowed" if ablation else "refused", probe_every=0
    )
    return dataclasses.replace(written, compiled=wanted)


def submit(root: Path, policy: PolicyText, **changes: Any) -> ExperimentPaths:
    values = x.config(
        8,
        name="governed",
        entrypoint="model_def:GovernedDigits",
        hyperparameters={"global_batch_size": 64, "learning_rate": 0.003, "hidden": 16},
        searcher={
            "name": "single",
            "metric": "accuracy",
            "smaller_is_better": False,
            "max_length": {"batches": 8},
        },
        governance={"policy": "policy.yaml"},
        **changes,
    )
    return x.submit(values, root, x.local_site(), EXAMPLE, policy)


def trained(paths: ExperimentPaths) -> dict[str, Any]:
    """What its checkpoint records of the policy."""
    assert x.run_to_end(paths).state == "COMPLETED"
    [folder] = paths.trial(1).checkpoints.glob("*8.g1")
    found: dict[str, Any] = json.loads((folder / "MANIFEST.json").read_text())["meta"]
    return dict(found["governance"])


def test_a_control_differs_by_its_routing_alone_and_is_never_taken_for_governed(
    cli: Cli,  # noqa: F811
) -> None:
    policy = allowing()
    first = submit(cli.root, policy)
    assert trained(first)["assurance"] == "state_clean"
    control = ablate.ablate(first, {}, "control")
    x.turn(control)
    said = trained(control)
    assert said["assurance"] == "none"
    assert said["exposure"] == [[n] * 3 for n in map(said["rows"].get, said["sources"])]

    mine, theirs = (resolved_config.load(one.config).raw for one in (control, first))
    changed = {key for key in mine if mine[key] != theirs[key]}
    assert changed == {"governance"} and mine["governance"]["digest"] == said["policy_digest"]
    assert {**mine["governance"], "digest": ""} == {**theirs["governance"], "digest": ""}
    assert control.secrets.read_bytes() == first.secrets.read_bytes()
    assert control.policy.read_bytes() == first.policy.read_bytes()
    assert json.loads(control.provenance.read_text())["policy"]["ablates"] == first.id
    assert governance(first)[0].cost == []

    [item] = cli("policy", "report", control.id, "-o", "json").items
    assert (item["assurance"], item["ablates"]) == ("none", first.id)
    cost = {one["what"]: one for one in item["cost"]}
    assert cost["accuracy"]["step"] == 8
    assert all(one["routed"] and one["unrouted"] for one in cost.values()) and len(cost) == 2
    text = cli("policy", "report", control.id).out
    assert "ASSURANCE NONE (ABLATION)" in text and "what routing costs" in text
    assert max(map(len, text.splitlines())) <= 80
    assert ": NONE (ABLATION)" in cli("policy", "show", control.id).out
    page = render(gather(control), 1e9)
    assert "none (ablation)</p>" in page and f"{first.id}/1" in page

    refused = cli("policy", "export", control.id, "in-toto", "--to", str(cli.root / "x"), code=4)
    assert "P18" in refused.err and not (cli.root / "x").exists()
    with pytest.raises(UsageError, match="already"):
        ablate.ablate(control, {})


def test_without_the_owners_word_nothing_is_trained(tmp_path: Path) -> None:
    first = submit(tmp_path / "root", allowing(ablation=False))
    with pytest.raises(PolicyRefused, match="P18"):
        ablate.ablate(first, {})
    routes_nothing = ablate.without_routing(allowing().compiled, "x")
    opened = dataclasses.replace(routes_nothing, assurance="direct", ablates="")
    another = submit(tmp_path / "root", dataclasses.replace(allowing(), compiled=opened))
    with pytest.raises(UsageError, match="routes nothing"):
        ablate.ablate(another, {}, dry=True)
    assert len(list((tmp_path / "root").iterdir())) == 2


def test_a_control_has_the_trials_of_its_experiment(cli: Cli) -> None:  # noqa: F811
    first = submit(cli.root, allowing())
    assert "same trials" in cli("fork", first.id, "--without-routing", "--trials", "1", code=2).err
    [item] = cli("fork", first.id, "--without-routing", "-n", "-o", "json").items
    assert (item["id"], item["of"], item["path"]) == ("", first.id, "")
    assert [one.name for one in cli.root.glob("governed-*")] == [first.id]


def test_frozen_layers_and_lanes_stay_what_they_are() -> None:
    lane = read_policy("lane-isolated").compiled
    assert ablate.without_routing(lane, "x").matrix == ((1.0, 0.0), (1.0, 1.0))
    frozen = read_policy("frozen-trunk").compiled
    assert ablate.without_routing(frozen, "x").matrix == frozen.matrix


def test_its_digest_is_its_own_and_those_of_other_policies_stay() -> None:
    policy = allowing(ablation=False).compiled
    assert not {"ablation", "ablates"} & policy.encode().keys()
    control = ablate.without_routing(policy, "x-7f3a")
    assert CompiledPolicy.from_json(control.to_json()) == control
    assert control.digest != ablate.without_routing(policy, "y-7f3a").digest != policy.digest
    with pytest.raises(ValueError, match="assures none"):
        dataclasses.replace(control, assurance="isolated")
    with pytest.raises(ValueError, match="assures none"):
        dataclasses.replace(control, ablates="")


def test_no_change_and_no_heir_makes_it_governed() -> None:
    policy = allowing().compiled
    control = ablate.without_routing(policy, "x-7f3a")
    assert "control" in strictness.fixed_difference(control, policy)
    assert strictness.kind_between(allowing(ablation=False).compiled, policy) == "loosen"
    with pytest.raises(GovernanceBroken, match=r"G108.*ablation of x-7f3a"):
        same_policy(PolicyInEffect.of(policy), control, {}, 0, inherited=True)
