"""Routed operators give the gradients that one backward pass per source gives."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hpcdet.guard.routing.layer_map import LayerMap
from hpcdet.guard.routing.modules import attach
from hpcdet.guard.routing.router import Router
from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import LayerGroup
from tests.dose import dice

Loss = Callable[[Any], torch.Tensor]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.n, self.b = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.n(self.a(x))))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular")
        self.n = nn.GroupNorm(2, 4)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.c = nn.Conv2d(4, 4, 3, stride=2, groups=2, padding="valid")
        self.b = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.reshape(len(x), 2, 3)[..., None].expand(-1, -1, -1, 4)
        return self.b(torch.tanh(self.c(self.up(self.n(self.a(x))))).mean((2, 3)))


class Words(nn.Module):
    """Tied embeddings, a positional parameter of its own, attention of both kinds, an RMSNorm."""

    def __init__(self, *, weights: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8, padding_idx=0)
        self.places = nn.Parameter(torch.randn(1, 5, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.n = nn.RMSNorm(8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight
        self._weights = weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.words((x[:, :5] * 3).long().abs() % 11) + self.places
        causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=x.dtype)
        padding = torch.zeros(len(x), 5, dtype=x.dtype)
        padding[:, -1] = -torch.inf
        out, _ = self.attention(
            x, x, x, padding, need_weights=self._weights, attn_mask=causal, is_causal=False
        )
        return self.head(self.block(self.n(out))).mean(1)


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.GRU(3, 5, num_layers=2), nn.Linear(5, 3)
        self.slope = nn.PReLU(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, last = self.a(x.reshape(len(x), 2, 3).transpose(0, 1))
        return self.b(self.slope(out[-1] + last[-1]))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": Mlp,
    "cnn": Cnn,
    "words": Words,
    "words with weights": lambda: Words(weights=True),
    "gru": Gru,
}


def layers_of(model: nn.Module, count: int) -> list[LayerGroup]:
    """Parameters dealt to layers in turn, each module's whole; ties keep what comes out."""
    names = model.named_parameters(remove_duplicate=False)
    owners = sorted({name.rpartition(".")[0] for name, _ in names})
    dealt: dict[int, list[str]] = {}
    for place, owner in enumerate(owners):
        dealt.setdefault(place % count, []).append(owner)
    return [
        LayerGroup(f"l{place}", "|".join(f"^{o}\\.[^.]+$" if o else "^[^.]+$" for o in of_one))
        for place, of_one in sorted(dealt.items())
    ]


def routed(model: nn.Module, matrix: np.ndarray, layers: list[LayerGroup]) -> tuple[Router, Any]:
    router, found = Router(), LayerMap.of(model, layers)
    for name in found.layers:
        router.place(name)
    weights = found.weights(matrix)
    closed = [name for place, name in enumerate(found.layers) if (weights[:, place] < 1).any()]
    attach(model, found, router, closed)
    return router, found


def one_backward_per_source(
    model: nn.Module, x: torch.Tensor, codes: np.ndarray, weights: np.ndarray, found: LayerMap
) -> dict[str, torch.Tensor]:
    """The reference: each source's rows alone, its gradients weighted, and added up."""
    total = {name: torch.zeros_like(one) for name, one in model.named_parameters()}
    layer = {one.name: one.layer for one in found.parameters}
    for code in range(len(weights)):
        rows = np.flatnonzero(codes == code)
        if len(rows) == 0:
            continue
        model.zero_grad()
        loss_of(model(x[rows]), rows).backward()
        for name, one in model.named_parameters():
            if one.grad is not None:
                total[name] += weights[code, layer[name]] * one.grad
    return total


def loss_of(y: torch.Tensor, rows: Any) -> torch.Tensor:
    wanted = torch.sin(torch.as_tensor(rows, dtype=y.dtype))[:, None]
    return functional.huber_loss(y, wanted.expand_as(y), reduction="sum")


def through_router(
    model: nn.Module, router: Router, x: torch.Tensor, rows: np.ndarray
) -> dict[str, torch.Tensor]:
    model.zero_grad()
    with router.rows(rows, x.device):
        y = model(x)
        with router.accounted():
            loss_of(y, range(len(x))).backward()
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", MODELS)
def test_routed_gradients_are_those_of_one_backward_per_source(
    name: str, dtype: torch.dtype
) -> None:
    random = dice(f"operators {name} {dtype}")
    worst = 0.0
    for binary, sources in itertools.product((True, False), (2, 5)):
        torch.manual_seed(random.randrange(2**31))
        numbers = np.random.default_rng(random.randrange(2**31))
        plain = MODELS[name]().to(dtype)
        layers = layers_of(plain, 3)
        matrix = numbers.random((sources, len(layers)))
        if binary:
            matrix = np.round(matrix)
        codes = numbers.integers(0, sources, 12)
        x = torch.randn(12, 6, dtype=dtype)
        model = copy.deepcopy(plain)
        router, found = routed(model, matrix, layers)
        weights = found.weights(matrix)
        torch.testing.assert_close(model(x), plain(x))
        got = through_router(model, router, x, weights[codes])
        wanted = one_backward_per_source(plain, x, codes, weights, found)
        assert all(not got[key].any() for key, one in wanted.items() if not one.any())
        off = torch.cat([(got[key] - one).flatten() for key, one in wanted.items()])
        whole = torch.cat([one.flatten() for one in wanted.values()])
        worst = max(worst, float(off.norm() / whole.norm()))
    assert worst <= (1e-12 if dtype == torch.float64 else 1e-6)


def test_permuted_rows_and_no_routing_are_found_by_the_same_comparison() -> None:
    torch.manual_seed(3)
    plain = Mlp().double()
    layers = [LayerGroup("low", "^a"), LayerGroup("high", "^[nb]")]
    matrix = np.array([[1.0, 1.0], [0.0, 1.0]])
    codes = np.array([0, 1, 0, 1, 1, 0])
    x = torch.randn(6, 6, dtype=torch.float64)
    model = copy.deepcopy(plain)
    router, found = routed(model, matrix, layers)
    weights = found.weights(matrix)
    wanted = one_backward_per_source(plain, x, codes, weights, found)["a.weight"]
    for wrong in (weights[codes[::-1]], np.ones((6, 2))):
        got = through_router(model, router, x, wrong)["a.weight"]
        assert (got - wanted).norm() / wanted.norm() > 0.05


@pytest.mark.parametrize("name", MODELS)
def test_a_row_that_is_not_a_number_does_not_reach_what_its_source_may_not_change(
    name: str,
) -> None:
    torch.manual_seed(4)
    model = MODELS[name]().double()
    layers = layers_of(model, 2)
    matrix = np.array([[1.0, 1.0], [0.0, 0.0]])
    x = torch.randn(6, 6, dtype=torch.float64)
    if not name.startswith("words"):  # whose inputs are integers
        x[3] = torch.nan
    router, found = routed(model, matrix, layers)
    with router.rows(found.weights(matrix)[[0, 0, 0, 1, 0, 0]], x.device), router.accounted():
        scale = torch.where(torch.arange(6) == 3, torch.nan, 1.0)
        (model(x).sum(1) * scale).sum().backward()
    assert all(one.grad is not None and one.grad.isfinite().all() for one in model.parameters())


def test_a_denied_layer_has_gradients_of_exactly_zero() -> None:
    torch.manual_seed(5)
    model = Words().double()
    layers = layers_of(model, 1)
    router, found = routed(model, np.array([[1.0], [0.0]]), layers)
    got = through_router(
        model, router, torch.randn(4, 6).double(), np.zeros((4, len(found.layers)))
    )
    assert all(torch.equal(one, torch.zeros_like(one)) for one in got.values())


def test_a_tied_parameter_takes_the_minimum_of_its_layers() -> None:
    model = Words()
    layers = [
        LayerGroup("embed", "^words"),
        LayerGroup("head", "^head"),
        LayerGroup("rest", "^(places|attention|n|block)"),
    ]
    found = LayerMap.of(model, layers)
    assert found.layers == ("embed", "head", "rest", "embed+head")
    matrix = np.array([[1.0, 0.25, 1.0], [0.5, 0.75, 0.0]])
    np.testing.assert_array_equal(found.weights(matrix)[:, 3], [0.25, 0.5])
    [tied] = [one for one in found.parameters if len(one.names) > 1]
    assert tied.names == ("words.weight", "head.weight")


def test_parameters_in_no_layer_or_in_two_are_refused() -> None:
    with pytest.raises(PolicyRefused, match=r"P02.*n\.weight"):
        LayerMap.of(Mlp(), [LayerGroup("a", "^[ab]")])
    with pytest.raises(PolicyRefused, match=r"P03.*a\.weight.*low, all"):
        LayerMap.of(Mlp(), [LayerGroup("low", "^a"), LayerGroup("all", ".")])


def test_a_batch_norm_is_refused_unless_it_does_not_train() -> None:
    def model() -> nn.Sequential:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

    layers = [LayerGroup("a", "^0"), LayerGroup("b", "^1")]
    matrix = np.array([[1.0, 1.0], [0.0, 1.0]])
    with pytest.raises(PolicyRefused, match=r"P07.*BatchNorm1d"):
        routed(model(), matrix, layers)
    routed(model(), np.ones((2, 2)), layers)
    frozen = model()
    frozen[1].eval()
    routed(frozen, matrix, layers)
    with torch.no_grad():
        frozen(torch.randn(5, 3))
    frozen.train()
    with pytest.raises(PolicyRefused, match="P07"):
        frozen(torch.randn(5, 3))


def test_backward_that_nothing_accounts_for_is_an_error() -> None:
    model = Mlp()
    router, _ = routed(model, np.array([[0.0], [1.0]]), [LayerGroup("all", ".")])
    x = torch.randn(4, 6)
    with router.rows(np.ones((4, 1)), x.device), pytest.raises(PolicyRefused, match="P15"):
        model(x).sum().backward()
    with router.accounted(), pytest.raises(PolicyRefused, match="P12"):
        model(x).sum().backward()
    with torch.no_grad():
        model(x)


def test_rows_that_are_no_multiple_of_the_batch_are_refused() -> None:
    model = Mlp()
    router, _ = routed(model, np.array([[0.0], [1.0]]), [LayerGroup("all", ".")])
    with (
        router.rows(np.ones((4, 1)), torch.device("cpu")),
        pytest.raises(PolicyRefused, match=r"P12.*6 rows.*batch has 4"),
    ):
        model(torch.randn(6, 6))


def test_recomputation_sees_the_rows_of_its_forward_pass() -> None:
    torch.manual_seed(6)
    plain = Mlp().double()
    layers = [LayerGroup("low", "^a"), LayerGroup("high", "^[nb]")]
    matrix = np.array([[1.0, 1.0], [0.0, 1.0]])
    first, second = torch.randn(6, 6).double(), torch.randn(6, 6).double()
    model = copy.deepcopy(plain)
    router, found = routed(model, matrix, layers)
    weights = found.weights(matrix)
    codes = [np.array([0, 1, 0, 1, 1, 0]), np.array([1, 1, 1, 0, 0, 0])]

    def forward(x: torch.Tensor) -> torch.Tensor:
        back = router.recomputing()
        return torch.utils.checkpoint.checkpoint(
            model,
            x,
            use_reentrant=False,
            context_fn=lambda: (contextlib.nullcontext(), back()),
        )

    with router.rows(weights[codes[0]], first.device):
        one = forward(first)
    with router.rows(weights[codes[1]], first.device):
        other = forward(second)
        with router.accounted():  # both are computed again while the second's rows are current
            (loss_of(one, range(6)) + loss_of(other, range(6))).backward()
    wanted = [
        one_backward_per_source(plain, x, code, weights, found)
        for x, code in zip((first, second), codes, strict=True)
    ]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, wanted[0][name] + wanted[1][name])


def test_compiled_models_see_the_rows_of_each_step() -> None:
    torch.manual_seed(7)
    plain = Mlp().double()
    layers = [LayerGroup("low", "^a"), LayerGroup("high", "^[nb]")]
    matrix = np.array([[1.0, 1.0], [0.0, 1.0]])
    model = copy.deepcopy(plain)
    router, found = routed(model, matrix, layers)
    compiled = torch.compile(model, backend="aot_eager")
    weights = found.weights(matrix)
    x = torch.randn(6, 6).double()
    for codes in (np.array([0, 1, 0, 1, 1, 0]), np.array([1, 1, 0, 0, 1, 1]), np.zeros(6, int)):
        model.zero_grad()
        with router.rows(weights[codes], x.device):
            y = compiled(x)
            with router.accounted():
                loss_of(y, range(6)).backward()
        wanted = one_backward_per_source(plain, x, codes, weights, found)
        assert model.a.weight.grad is not None
        torch.testing.assert_close(model.a.weight.grad, wanted["a.weight"])


def test_mixed_precision_computes_in_the_types_of_the_plain_model() -> None:
    torch.manual_seed(8)
    plain = Words()
    model = copy.deepcopy(plain)
    layers = layers_of(plain, 2)
    router, _ = routed(model, np.array([[1.0, 0.0], [0.0, 1.0]]), layers)
    x = torch.randn(4, 6)
    with torch.autocast("cpu", torch.bfloat16), router.rows(np.ones((4, 4)), x.device):
        y, wanted = model(x), plain(x)
        assert y.dtype == wanted.dtype
        torch.testing.assert_close(y, wanted, rtol=0.02, atol=0.02)
        with router.accounted():
            y.float().sum().backward()
    wanted.float().sum().backward()
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert one.grad.dtype == other.grad.dtype, name
        torch.testing.assert_close(one.grad, other.grad, rtol=0.1, atol=0.1)
