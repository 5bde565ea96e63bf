"""A compiled policy: what it refuses, and its way through ``policy.json``."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest

from hpcdet.policy.admission import exposure
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.compiled import (
    CompiledPolicy,
    DataSource,
    Entropy,
    FileDigest,
    LayerGroup,
    Memorization,
    TrustedKey,
    Twins,
    UseAgreement,
)

POLICY = CompiledPolicy(
    name="notes",
    version=3,
    text_digest="sha256:00",
    layers=(LayerGroup("low", r"^blocks\.0\.", (0.0, 0.5)), LayerGroup("head", "^head", (1, 1))),
    sources=(
        DataSource("a", {"license": "CC0"}, FileDigest("a.json", "sha256:11")),
        DataSource("b", agreement=UseAgreement("DUA-1", "2027-12-31", ("enclave",))),
    ),
    matrix=((1.0, 1.0), (0.0, 0.25)),
    trust=(TrustedKey("site", "site", "ab"),),
    entropy=Entropy(reference={"low": (0.9, 0.001)}),
    memorization=Memorization(Twins(pairs=7, withhold=("b",))),
)


def test_a_policy_survives_its_file() -> None:
    assert CompiledPolicy.from_json(POLICY.to_json()) == POLICY
    assert CompiledPolicy.from_json(POLICY.to_json()).digest == POLICY.digest


def test_each_changed_value_of_the_file_is_found() -> None:
    raw = json.loads(POLICY.to_json())
    for key in raw:
        if key == "schema":
            continue
        changed = json.loads(POLICY.to_json())
        changed[key] = "else" if isinstance(changed[key], str) else None
        with pytest.raises(GovernanceBroken, match="G110") as found:
            CompiledPolicy.from_json(json.dumps(changed))
        assert found.value.exit_code == 9
    weights = json.loads(POLICY.to_json())
    weights["matrix"][1][0] = 1.0
    with pytest.raises(GovernanceBroken, match="not what was written"):
        CompiledPolicy.from_json(json.dumps(weights))


def test_a_file_of_another_version_is_named_so() -> None:
    with pytest.raises(GovernanceBroken, match="G101"):
        CompiledPolicy.from_json(POLICY.to_json().replace("hpcdet-policy/1", "hpcdet-policy/9"))


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 100_000])
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(GovernanceBroken):
        CompiledPolicy.from_json(text)


@pytest.mark.parametrize(
    "change",
    [
        {"matrix": ((1.0, 1.0),)},
        {"matrix": ((1.0, 1.0), (0.0,))},
        {"matrix": ((1.0, 1.0), (0.0, math.nan))},
        {"matrix": ((1.0, 1.0), (0.0, 1.5))},
        {"matrix": ((1.0, 1.0), (0.0, -0.1))},
        {"sources": POLICY.sources[::-1]},
        {"sources": (), "matrix": ()},
        {"layers": (POLICY.layers[0], POLICY.layers[0])},
    ],
)
def test_what_no_compiler_makes_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        dataclasses.replace(POLICY, **change)


def test_exposure_counts_each_source_of_a_row_by_the_least_weight() -> None:
    found = exposure(POLICY, {"a": 30, "b": 8, "a+b": 4})
    np.testing.assert_array_equal(found, [[30 + 0, 30 + 1], [0, 2 + 1]])
    with pytest.raises(KeyError):
        exposure(POLICY, {"c": 1})
