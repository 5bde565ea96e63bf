"""A lazy model has no layers yet; the digest of a layer map knows all that a mask rests on."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from hpcdet.guard.routing.governed_models import GovernedModels
from hpcdet.guard.routing.layer_map import LayerMap
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.policy.compiled import LayerGroup
from tests.guard.test_governed import policy

LOW, HIGH = LayerGroup("low", r"^0\."), LayerGroup("high", r"^[12]\.")


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.emb.weight


def test_a_lazy_module_is_refused() -> None:
    with pytest.raises(PolicyRefused, match=r"P08: parameter 0\.weight has no shape"):
        LayerMap.of(nn.Sequential(nn.LazyLinear(3)), [LayerGroup("all", "")])


def test_one_of_two_names_of_a_parameter_in_no_layer_is_p02() -> None:
    with pytest.raises(PolicyRefused, match=r"P02: parameter head\.weight"):
        LayerMap.of(Tied(), [LayerGroup("emb", "^emb")])


def test_frozen_parameters_need_no_layer() -> None:
    model = network()
    model[2].requires_grad_(False)
    assert len(LayerMap.of(model, [LOW]).parameters) == 2


def test_the_digest_knows_names_shapes_types_ties_and_layers() -> None:
    base = LayerMap.of(network(), [LOW, HIGH])
    tied = network()
    tied[2].weight = tied[0].weight
    others = [
        LayerMap.of(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), [LOW, HIGH]),
        LayerMap.of(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3)), [LOW, HIGH]),
        LayerMap.of(network().to(torch.float64), [LOW, HIGH]),
        LayerMap.of(network(), [LayerGroup("low", r"^2\."), LayerGroup("high", r"^0\.")]),
        LayerMap.of(tied, [LOW, HIGH]),
    ]
    assert len({base.digest, *(one.digest for one in others)}) == 6
    assert LayerMap.of(network(), [HIGH, LOW]).digest == base.digest
    base.check(base.encode())
    for one in others:
        with pytest.raises(GovernanceBroken, match="G109"):
            base.check(one.encode())


def test_a_tied_parameter_in_layers_with_different_rules_is_told_and_not_refused() -> None:
    layers = (LayerGroup("emb", "^emb"), LayerGroup("head", "^head"), LayerGroup("r", "^$"))

    def told(*rows: tuple[float, float, float]) -> list[str]:
        return LayerMap.of(Tied(), layers).torn(policy(rows, layers=layers))

    assert told((1, 1, 1), (0, 0, 1), (0.5, 0.5, 0)) == [], "the same rules in both"
    [line] = told((1, 1, 1), (0, 1, 0), (0, 0, 0))
    assert line.startswith("P04: emb.weight and head.weight are one parameter, in layers emb and")


def test_a_tied_parameter_that_no_source_may_change_everywhere_is_p05() -> None:
    """Each layer learns from a source, and the minimum over both is 0 for all."""
    emb, head, rest = LayerGroup("emb", "^emb"), LayerGroup("head", "^head"), LayerGroup("r", "^$")
    apart = policy(((1, 0, 1), (0, 1, 1), (0, 1, 1)), layers=(emb, head, rest))
    with pytest.raises(PolicyRefused, match=r"P05: emb\.weight and head\.weight.*emb and head"):
        GovernedModels(apart).take(Tied())
    GovernedModels(policy(((1, 0, 1), (0, 1, 1), (0.1, 1, 1)), layers=apart.layers)).take(Tied())
    frozen = (emb, dataclasses.replace(head, frozen=True), rest)
    GovernedModels(dataclasses.replace(apart, layers=frozen)).take(Tied())
    untied = Tied()
    untied.head.weight = nn.Parameter(torch.zeros(5, 4))
    GovernedModels(apart).take(untied)
    # nobody may change anything of a source that is dropped: the trial goes on without it
    GovernedModels(dataclasses.replace(apart, matrix=((1, 0, 1), (0, 1, 1), (0, 0, 0)))).take(
        Tied()
    )
