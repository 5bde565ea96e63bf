"""The policies that hpcdet ships: what each allows, on models as people name their parts."""

from __future__ import annotations

import re

import pytest

from hpcdet.config.policy.policy_file import read_policy, shipped_policies
from tests import TOP

HEADS = ("head.weight", "lm_head.weight", "classifier.0.bias", "fc.weight", "score.weight")
TRUNK = (
    "conv1.weight",
    "layer1.0.bn1.bias",
    "transformer.h.0.mlp.c_fc.weight",
    "blocks.0.attn.heads.weight",
    "encoder.fc.weight",
    "header.weight",
    "0.weight",
    "plane.weight",
)
LANES = ("lane.weight", "blocks.3.lane_x.up.weight", "lanes.0.bias")


@pytest.mark.parametrize(
    ("name", "weights", "assurance"),
    [
        ("open", {"public": {"model": 1}, "restricted": {"model": 1}}, "state_clean"),
        (
            "head-only",
            {"public": {"trunk": 1, "head": 1}, "restricted": {"trunk": 0, "head": 1}},
            "state_clean",
        ),
        (
            "lane-isolated",
            {"public": {"trunk": 1, "lane": 0}, "restricted": {"trunk": 0, "lane": 1}},
            "isolated",
        ),
        (
            "frozen-trunk",
            {"public": {"trunk": 0, "head": 1}, "restricted": {"trunk": 0, "head": 1}},
            "state_clean",
        ),
        (
            "enclave",
            {"public": {"trunk": 1, "head": 1}, "restricted": {"trunk": 0, "head": 1}},
            "state_clean",
        ),
    ],
)
def test_a_shipped_policy_allows_what_its_text_says(
    name: str, weights: dict[str, dict[str, float]], assurance: str
) -> None:
    policy = read_policy(name).compiled
    layers = [one.id for one in policy.layers]
    found = {
        source.id: dict(zip(layers, row, strict=True))
        for source, row in zip(policy.sources, policy.matrix, strict=True)
    }
    assert (policy.name, found, policy.assurance) == (name, weights, assurance)
    assert [one.id for one in policy.layers if one.frozen] == (
        ["trunk"] if name == "frozen-trunk" else []
    )
    nodes = (policy.on_nodes.capabilities, policy.on_nodes.statement)
    assert nodes == ((("enclave",), "signed") if name == "enclave" else ((), "declared"))


@pytest.mark.parametrize("name", sorted(shipped_policies()))
def test_each_parameter_is_in_one_layer_and_a_head_of_another_name_counts_as_trunk(
    name: str,
) -> None:
    found = {
        parameter: [
            one.id for one in read_policy(name).compiled.layers if re.search(one.match, parameter)
        ]
        for parameter in (*HEADS, *TRUNK, *LANES)
    }
    assert all(len(layers) == 1 for layers in found.values()), found
    ends = {"lane": LANES, "head": HEADS}
    for layer, members in ends.items():
        if layer in [one.id for one in read_policy(name).compiled.layers]:
            assert {each for each, layers in found.items() if layers == [layer]} == set(members)


def test_the_page_for_auditors_lists_each_policy() -> None:
    text = (TOP / "governance" / "README.md").read_text()
    assert sorted(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)) == sorted(
        shipped_policies()
    )
