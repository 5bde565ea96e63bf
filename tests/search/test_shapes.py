"""The search over network shapes: a tree reaches the model, and a sampler learns from it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcdet.config import api as config
from hpcdet.search.api.sampling import Observation
from hpcdet.search.samplers.optuna_samplers import ModelBased
from hpcdet.space.space import Space
from tests import TOP, ranks

EXAMPLE = TOP / "examples" / "architecture_search"


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return config.load(EXAMPLE / "experiment.yaml").resolved()


def test_every_sample_is_a_network_and_all_shapes_occur(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("shapes_model_def", EXAMPLE / "model_def.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    space = Space(values["hyperparameters"])
    samples = [space.sample(1, k) for k in range(1, 60)]
    for sample in samples:
        assert len(sample["blocks"]) == sample["depth"]
        assert module.network(sample)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    blocks = [block for sample in samples for block in sample["blocks"]]
    assert {block["name"] for block in blocks} == {"convolution", "residual", "pooling"}
    assert {sample["depth"] for sample in samples} == {1, 2, 3, 4}


def test_a_trial_trains_the_network_that_its_hyperparameters_describe(
    values: dict[str, Any], tmp_path: Path
) -> None:
    space = Space(values["hyperparameters"])
    samples = (space.sample(1, k) for k in range(1, 200))
    sample = next(s for s in samples if len({block["name"] for block in s["blocks"]}) == 3)
    trial = ranks.experiment(
        tmp_path / "e", code=EXAMPLE, hparams=sample, until=8, entrypoint=values["entrypoint"]
    )
    verdict = ranks.run(trial).verdict()
    assert verdict is not None and verdict.verdict == "done"
    assert "accuracy" in ranks.result(trial).validations[8]


@dataclass(frozen=True)
class Shown:
    """A search in which trials with few blocks and a dense head were better."""

    samples: Mapping[int, Mapping[str, Any]]

    def params(self) -> Mapping[int, Mapping[str, Any]]:
        return self.samples

    def observations(self, most: int | None = None) -> Iterator[Observation]:
        losses = {
            n: len(sample["blocks"]) + (sample["head"]["name"] == "linear")
            for n, sample in self.samples.items()
        }
        for n in sorted(losses, key=lambda n: (losses[n], n)):
            yield Observation(n, 10, float(losses[n]))

    def open(self) -> list[int]:
        return []


def test_a_model_learns_which_shapes_are_good(values: dict[str, Any]) -> None:
    space = Space(values["hyperparameters"])
    view = Shown({k: space.sample(1, k) for k in range(1, 60)})
    model = ModelBased(space, 1, "tpe", startup=8, random_fraction=0.0)
    found = [model.suggest(view, k) for k in range(100, 112)]
    assert found == [model.suggest(view, k) for k in range(100, 112)]
    assert sum(len(sample["blocks"]) for sample in found) < 1.8 * len(found)
    assert all(len(sample["blocks"]) == sample["depth"] for sample in found)
