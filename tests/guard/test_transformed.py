"""Routing under compilation, recomputation and mixed precision; broken routing is found."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from hpcdet.guard.routing import operators, oracle
from hpcdet.guard.routing.router import Router, RowWeights
from hpcdet.policy.compiled import LayerGroup
from hpcdet.pytorch.step.recompute import recompute
from tests.guard.test_hostile_models import ROWS, Scaled, attached, gradients, losses

LAYERS = [LayerGroup("low", r"^[012]\."), LayerGroup("high", r"^[^012]\.")]
MATRIX = np.array([[1.0, 0.5], [0.0, 1.0]])
STEPS = [np.array([0, 1, 0, 1, 1, 0]), np.array([1, 1, 0, 0, 1, 1]), np.zeros(ROWS, int)]

needs_compiler = pytest.mark.skipif(
    not shutil.which("g++"), reason="torch.compile needs a C++ compiler"
)


class Net(nn.Sequential):
    """Calls its parts one by one: of a ``Sequential`` of routed layers nothing is compiled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self[1](self[0](x)))
        y: torch.Tensor = self[3](torch.tanh(self[2](x)))
        return y


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return Net(
        nn.Linear(ROWS, 4), nn.LayerNorm(4), Scaled(), nn.Sequential(nn.GELU(), nn.Linear(4, 3))
    ).double()


def wanted(model: nn.Module, x: torch.Tensor, codes: np.ndarray) -> dict[str, torch.Tensor]:
    plain = network()
    plain.load_state_dict(model.state_dict())
    _, found = attached(copy.deepcopy(plain), MATRIX, LAYERS)
    each = oracle.per_source(plain, lambda part: losses(plain(part)), x, codes)
    result = oracle.combined(each, codes, found.weights(MATRIX), found)
    return {name: one * ROWS for name, one in result.items() if one is not None}


def is_exact(model: nn.Module, got: dict[str, Any], x: torch.Tensor, codes: np.ndarray) -> bool:
    return all(
        torch.allclose(got[name], one, rtol=1e-10, atol=1e-12)
        for name, one in wanted(model, x, codes).items()
    )


@pytest.mark.parametrize(
    "backend", ["eager", "aot_eager", pytest.param("inductor", marks=needs_compiler)]
)
@pytest.mark.parametrize("recomputed", [False, True])
def test_compiled_models_follow_the_rows_of_each_step(backend: str, recomputed: bool) -> None:
    torch._dynamo.reset()
    counters.clear()
    model = network()
    router, found = attached(model, MATRIX, LAYERS)
    if recomputed:
        recompute(model, "full", router.recomputing)
    model.forward = torch.compile(model.forward, backend=backend, dynamic=False)  # type: ignore[method-assign]
    weights = found.weights(MATRIX)
    for codes in STEPS:
        x = torch.randn(ROWS, ROWS).double()
        assert is_exact(model, gradients(model, router, x, weights[codes]), x, codes)
    assert counters["stats"]["unique_graphs"] > 0


def test_under_autocast_parameters_learn_as_the_plain_ones_do() -> None:
    """Also where the backward pass runs under it."""
    torch.manual_seed(2)
    plain = nn.Sequential(
        *(nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 8), nn.LayerNorm(8)),
        nn.Linear(8, 4),
    )
    model = copy.deepcopy(plain)
    router, _ = attached(model, np.array([[1.0], [0.0]]), [LayerGroup("all", ".")])
    x = torch.randn(ROWS, 2, 6)
    for one, around in ((plain, None), (model, router)):
        with torch.autocast("cpu", torch.bfloat16):
            if around is None:
                losses(one(x)).sum().backward()
                continue
            with around.rows(np.ones((ROWS, 1)), x.device), around.accounted():
                losses(one(x)).sum().backward()
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None
        assert ours.grad.dtype == theirs.grad.dtype
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0.05, atol=0.05, msg=name)


@pytest.mark.parametrize("one", [nn.Linear(4, 4), nn.LayerNorm(4), Scaled()])
def test_a_second_derivative_through_a_routed_module_is_an_error(one: nn.Module) -> None:
    router, _ = attached(nn.Sequential(one), np.array([[0.0]]), [LayerGroup("all", ".")])
    x = torch.randn(ROWS, 4, requires_grad=True)
    with router.rows(np.ones((ROWS, 1)), x.device), router.accounted():
        [slope] = torch.autograd.grad(losses(one(x)).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            slope.square().sum().backward()


def test_a_denied_layer_has_gradients_of_zero_and_not_none() -> None:
    """DDP waits for each parameter's."""
    model = network()
    router, found = attached(model, MATRIX, LAYERS)
    x = torch.randn(ROWS, ROWS).double()
    got = gradients(model, router, x, found.weights(MATRIX)[np.ones(ROWS, int)])
    assert got["0.weight"] is not None and not got["0.weight"].any()
    assert got["2.scale"] is not None and not got["2.scale"].any()
    assert got["3.1.weight"].any()


# -- broken routing fails the same comparisons ---------------------------------------------


def _multiplied(self: RowWeights, rows: torch.Tensor) -> torch.Tensor:
    if self.kept is None:
        return rows
    mask = torch.zeros(len(rows), dtype=rows.dtype).index_fill_(0, self.kept, 1)
    return rows * mask.reshape(-1, *[1] * (rows.dim() - 1))


def test_rows_that_are_multiplied_and_not_left_out_let_a_nan_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Sequential(nn.Linear(ROWS, 4), nn.LayerNorm(4)).double()
    router, found = attached(model, MATRIX[:, :1], [LayerGroup("all", ".")])
    x = torch.randn(ROWS, ROWS).double()
    x[1] = torch.nan
    rows = found.weights(MATRIX[:, :1])[STEPS[0]]
    assert all(one.isfinite().all() for one in gradients(model, router, x, rows).values())
    monkeypatch.setattr(RowWeights, "select", _multiplied)
    assert any(one.isnan().any() for one in gradients(model, router, x, rows).values())


BROKEN: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "weights are not applied": lambda patch: patch.setattr(
        RowWeights, "weigh", lambda _, kept: kept
    ),
    "rows are not left out": lambda patch: patch.setattr(
        RowWeights, "select", lambda _, rows: rows
    ),
    "a second run learns from all": lambda patch: patch.setattr(
        operators, "_masked", lambda gy, *_: gy
    ),
    "rows are those of another order": lambda patch: patch.setattr(
        Router,
        "rows",
        lambda self, rows, device, plain=Router.rows: plain(self, rows[::-1], device),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_routing_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    router, found = attached(model, MATRIX, LAYERS)
    x, codes = torch.randn(ROWS, ROWS).double(), STEPS[0]
    rows = found.weights(MATRIX)[codes]
    assert is_exact(model, gradients(model, router, x, rows), x, codes)
    BROKEN[name](monkeypatch)
    try:
        got = gradients(model, router, x, rows)
    except RuntimeError:  # shapes that do not fit
        return
    assert not is_exact(model, got, x, codes)


def test_rows_that_are_read_at_recomputation_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Router, "_check_recomputation", lambda self, what: None)
    for remembering in (True, False):
        model = network()
        router, found = attached(model, MATRIX, LAYERS)
        recompute(model, "full", router.recomputing if remembering else None)
        weights, x = found.weights(MATRIX), torch.randn(ROWS, ROWS).double()
        with router.rows(weights[STEPS[0]], x.device):
            loss = losses(model(x)).sum()
        with router.rows(weights[STEPS[1]], x.device), router.accounted():
            loss.backward()
        got = {key: one.grad for key, one in model.named_parameters()}
        assert is_exact(model, got, x, STEPS[0]) == remembering
