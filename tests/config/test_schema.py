"""The schema for editors, explanations, the plan, and the documentation of every key."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from hpcdet.config import api as config
from hpcdet.config.check import problems
from hpcdet.config.determined import unsupported_keys
from hpcdet.errors import NotFound
from hpcdet.space.language import TYPES
from tests import TOP

EXAMPLES = sorted((TOP / "examples").glob("[ad]*/*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_the_examples_are_configs_without_doubts(file: Path) -> None:
    loaded = config.load(file)
    assert loaded.warnings == []
    assert config.load(file).resolved() == loaded.resolved()  # their seed is written down


def test_the_schema_describes_every_key() -> None:
    made = config.schema()
    definitions = made["$defs"]

    def properties(node: dict[str, Any]) -> dict[str, dict[str, Any]]:
        options = cast("list[dict[str, Any]]", node.get("anyOf", [node]))
        reference = next((str(option["$ref"]) for option in options if "$ref" in option), "")
        target = definitions[reference.rpartition("/")[2]] if reference else node
        return target.get("properties", {})

    for key in problems.all_keys():
        node: dict[str, Any] = made
        for part in key.split("."):
            node = properties(node)[part]
        is_section = problems.model_at(key) is not None
        assert is_section or node["description"], key
    assert made["additionalProperties"] is False
    kinds = {
        entry["properties"]["type"]["const"]
        for entry in definitions["Hyperparameter"]["anyOf"]
        if "type" in entry.get("properties", {})
    }
    assert kinds == set(TYPES)


def test_every_key_is_explained_and_documented() -> None:
    text = (TOP / "docs" / "reference" / "config.md").read_text()
    for key in problems.all_keys():
        assert config.explain(key).startswith(key)
        if problems.model_at(key) is None:
            assert f"| `{key}` |" in text, key
    for key in unsupported_keys.KEYS:
        assert f"`{key}`" in text, key
    assert "default: 5" in config.explain("max_restarts")
    assert "harmless" in config.explain("resources.shm_size")
    with pytest.raises(NotFound, match="'max_restarts'"):
        config.explain("max_restart")


def test_a_plan_says_trials_lengths_and_cost(tmp_path: Path) -> None:
    digits = TOP / "examples" / "digits"
    loaded = config.load(digits / "random.yaml", ["resources.walltime_s=3600"])
    made = config.plan(loaded.config, checkpoint_bytes=1000)
    whole = {"rungs": [300], "trials": 4, "ends": [4], "concurrent_trials": 2}
    assert made["brackets"] == [whole]
    assert (made["trials"], made["unit"], made["units"]) == (4, "batches", 1200)
    assert made["slots"] == {"per_trial": 2, "at_once": 4, "nodes_per_trial": 1}
    assert made["cost"] == {
        "slot_hours": 8.0,
        "walltime_s": 3600,
        "run_s": 7200,
        "unit_s": None,
        "queue_s": None,
        "allocations": 2,
        "end_s": None,
    }
    assert config.plan(loaded.config, queue_s=600)["cost"]["end_s"] == 7200 + 2 * 600
    assert made["storage"]["bytes"] == 1000 * made["storage"]["checkpoints"]

    loaded = config.load(digits / "adaptive.yaml", ["resources.walltime_s=3600"])
    adaptive = config.plan(loaded.config)
    assert adaptive["brackets"] == [
        {"rungs": [18, 75, 300], "trials": 12, "ends": [9, 2, 1], "concurrent_trials": 2},
        {"rungs": [75, 300], "trials": 4, "ends": [3, 1], "concurrent_trials": 2},
    ]
    units = 9 * 18 + (2 + 3) * 75 + 2 * 300
    assert (adaptive["rule"], adaptive["units"]) == ("hybrid", units)
    assert adaptive["cost"]["slot_hours"] == pytest.approx(units / 300)
    assert config.plan(loaded.config, unit_s=2)["cost"]["run_s"] == max(600, 2 * units / 4)

    sets = ["searcher.name=bayesian", "searcher.sampler={name: gp}"]
    for said, sampler in ((sets, "gp"), (sets[:1], "tpe"), ([], None)):
        whole = config.plan(config.load(digits / "random.yaml", said).config)
        assert (whole["rule"], whole["sampler"]) == (None, sampler)  # nobody is compared at a rung

    file = tmp_path / "command.yaml"
    file.write_text("entrypoint: ./train.sh\n")
    unknown = config.plan(config.load(file).config)
    assert unknown["brackets"] == [{"rungs": [], "trials": 1, "ends": [], "concurrent_trials": 1}]
    assert (unknown["units"], unknown["cost"]["slot_hours"]) == (None, None)
