"""Models that routing could get wrong without a word: each is exact, or refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import l1_unstructured
from torch.utils.checkpoint import checkpoint

from hpcdet.guard.routing import oracle
from hpcdet.guard.routing.layer_map import LayerMap
from hpcdet.guard.routing.modules import attach
from hpcdet.guard.routing.router import Router
from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import LayerGroup, Matrix
from hpcdet.pytorch.step.recompute import recompute

ROWS = 6
CODES = np.array([1, 0, 1, 0, 0, 1])
EVERYTHING = [LayerGroup("all", ".")]
DENIED = np.array([[1.0], [0.0]])


class Scaled(nn.Module):
    """A parameter of its own, and a child."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4) + 0.5)
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.scale


class Bilinear(nn.Module):
    """Rows are multiplied by a matrix that comes beside them, as many rows as the batch has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.first = nn.Linear(ROWS, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(self.first(x))

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Masked(nn.Module):
    """Attention in a module of the user's own, with a mask of [tokens, tokens]."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found = nn.functional.scaled_dot_product_attention(x @ self.q, x, x, attn_mask=mask)
        return found


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = Masked()
        self.register_buffer("mask", torch.randn(ROWS, ROWS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = torch.stack([x[:, :4] * (1 + one) for one in range(ROWS)], 1)
        return self.inside(tokens, mask=self.mask).sum(1)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(4) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.norm(dim=1, keepdim=True) * self.gain


class Behind(nn.Module):
    """A module whose input comes by an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(4) + 0.5)
        self.given: list[torch.Tensor] = []

    def forward(self) -> torch.Tensor:
        return torch.tanh(self.given[0] * self.gain)


class ByAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inside = nn.Linear(ROWS, 4), Behind()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inside.given = [self.first(x)]
        return self.inside()


class OfTwo(nn.Module):
    """Two outputs, one of which nothing uses; a tied child; dropout inside."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, ROWS))
        self.child = nn.Linear(ROWS, 4, bias=False)
        self.child.weight = self.weight
        self.counts: torch.Tensor
        self.register_buffer("counts", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.counts += 1
        return torch.tanh(x @ self.weight.T) + self.child(x) ** 2, x @ self.weight.T


class First(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.two = OfTwo()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(x)[0]


class Channels(nn.Module):
    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.tanh(self.inside(x.reshape(-1, 2, ROWS // 2)))
        return found


class Recurrent(nn.Module):
    def __init__(self, inside: nn.RNNBase) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, state = self.inside(x.reshape(len(x), -1, 3))
        last = state[0] if isinstance(state, tuple) else state
        joined: torch.Tensor = out.sum(1)[:, :4] + 2 * last[-1]
        return joined


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.EmbeddingBag(7, 4, mode="max")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inside((x * 3).long().abs() % 7)
        return found


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Bilinear(ROWS, ROWS, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inside(x, x**2)
        return found


def stack(*modules: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(copy.deepcopy(one) for one in modules))


def positions() -> nn.Module:
    return stack(nn.Linear(ROWS, 4), Scaled(), nn.ReLU(inplace=True), nn.Linear(4, 4))()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "parameter of its own, then in place": positions,
    "nested": stack(nn.Linear(ROWS, 4), nn.Sequential(Scaled(), Scaled())),
    "mask of as many rows": Attending,
    "rows divided by their norm": stack(nn.Linear(ROWS, 4), Normed()),
    "input by an attribute": ByAttribute,
    "two outputs and a tie": First,
    "weight norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(ROWS, 4))),
    "orthogonal": lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(ROWS, 4))),
    "weight norm by a hook": lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(ROWS, 4))),
    "bilinear": Bilinear,
    "instance norm": lambda: nn.Sequential(Channels(nn.InstanceNorm1d(2, affine=True))),
    "batch norm in eval mode": lambda: nn.Sequential(Channels(nn.BatchNorm1d(2).eval())),
    "prelu": stack(nn.Linear(ROWS, 4), nn.PReLU(4)),
    "lstm": lambda: nn.Sequential(Recurrent(nn.LSTM(3, 4, batch_first=True, bidirectional=True))),
    "gru of two layers": lambda: nn.Sequential(Recurrent(nn.GRU(3, 4, 2, batch_first=True))),
    "bags": lambda: nn.Sequential(Bags()),
    "two inputs": lambda: nn.Sequential(Pairs()),
    "depthwise": lambda: nn.Sequential(Channels(nn.Conv1d(2, 4, 2, groups=2, padding="same"))),
    "transposed": lambda: nn.Sequential(Channels(nn.ConvTranspose1d(2, 2, 2, output_padding=0))),
}


def attached(model: nn.Module, matrix: Matrix, layers: list[LayerGroup]) -> tuple[Router, LayerMap]:
    router, found = Router(), LayerMap.of(model, layers)
    for name in found.layers:
        router.place(name)
    weights = found.weights(matrix)
    attach(model, found, router, [n for p, n in enumerate(found.layers) if weights[:, p].min() < 1])
    return router, found


def losses(y: torch.Tensor) -> torch.Tensor:
    return (y.flatten(1) ** 2).sum(1)


def gradients(model: nn.Module, router: Router, x: torch.Tensor, rows: Matrix) -> dict[str, Any]:
    model.zero_grad()
    with router.rows(rows, x.device):
        loss = losses(model(x)).sum()
        with router.accounted():
            loss.backward()
    return {name: one.grad for name, one in model.named_parameters()}


@pytest.mark.parametrize("weight", [0.0, 0.5])
@pytest.mark.parametrize("name", MODELS)
def test_each_is_exact(name: str, weight: float) -> None:
    torch.manual_seed(1)
    model = MODELS[name]().double()
    plain = MODELS[name]().double()
    plain.load_state_dict(model.state_dict())
    router, found = attached(model, np.array([[1.0], [weight]]), EVERYTHING)
    weights = found.weights(np.array([[1.0], [weight]]))
    x = torch.randn(ROWS, ROWS).double()
    torch.testing.assert_close(model(x), plain(x), rtol=0, atol=0)
    each = oracle.per_source(plain, lambda part: losses(plain(part)), x, CODES)
    wanted = oracle.combined(each, CODES, weights, found)
    got = gradients(model, router, x, weights[CODES])
    for key, one in wanted.items():
        assert one is not None
        torch.testing.assert_close(got[key], one * ROWS, rtol=1e-11, atol=1e-12)


def test_an_extra_run_leaves_buffers_and_random_numbers_as_one_run_does() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(First(), nn.Dropout(0.5), nn.Linear(4, 2))
    plain = copy.deepcopy(model)
    router, _ = attached(model, DENIED, EVERYTHING)
    x = torch.randn(ROWS, ROWS)
    torch.manual_seed(3)
    wanted, after = plain(x), torch.rand(1)
    torch.manual_seed(3)
    with router.rows(np.ones((ROWS, 1)), x.device):
        got = model(x)
    assert torch.equal(got, wanted)
    assert torch.equal(torch.rand(1), after)
    assert [int(one.get_buffer("0.two.counts")) for one in (model, plain)] == [1, 1]


def test_a_weight_that_a_hook_computes_is_refused_where_no_operator_takes_it() -> None:
    one, other = nn.utils.weight_norm(nn.PReLU(4)), l1_unstructured(Scaled(), "scale", 0.5)
    for module in (one, other):
        with pytest.raises(PolicyRefused, match=r"P08: the weight of 0 is computed by a hook"):
            attached(nn.Sequential(module), DENIED, EVERYTHING)


def test_pruned_weights_are_routed() -> None:
    model = nn.Sequential(l1_unstructured(nn.Linear(4, 4), "weight", 0.5))
    router, found = attached(model, DENIED, EVERYTHING)
    x = torch.randn(ROWS, 4)
    got = gradients(model, router, x, found.weights(DENIED)[[1] * ROWS])
    assert not any(one.any() for one in got.values())
    got = gradients(model, router, x, found.weights(DENIED)[[0] * ROWS])
    assert got["0.weight_orig"].count_nonzero() == 8


def test_scripted_modules_are_refused() -> None:
    example = torch.randn(2, 4)
    for one in (torch.jit.script(nn.Linear(4, 4)), torch.jit.trace(nn.Linear(4, 4), example)):
        with pytest.raises(PolicyRefused, match="P08: 0 has a forward that its class does not"):
            attached(nn.Sequential(one), DENIED, EVERYTHING)


def test_a_forward_of_a_module_and_not_of_its_class_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    original = model[0].forward
    model[0].forward = lambda x: original(x)
    with pytest.raises(PolicyRefused, match="P08: 0 has a forward that its class does not"):
        attached(model, DENIED, EVERYTHING)


@pytest.mark.parametrize(
    "one",
    [
        nn.Embedding(5, 4, max_norm=1.0),
        nn.Embedding(5, 4, sparse=True),
        nn.Embedding(5, 4, scale_grad_by_freq=True),
        nn.EmbeddingBag(5, 4, sparse=True),
    ],
)
def test_tables_whose_rows_change_by_others_are_refused(one: nn.Module) -> None:
    with pytest.raises(PolicyRefused, match="P08: 0 cannot be routed with sparse"):
        attached(nn.Sequential(one), DENIED, EVERYTHING)


def test_a_batch_norm_without_running_statistics_mixes_rows_in_eval_mode_too() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)).eval()
    with pytest.raises(PolicyRefused, match="P07"):
        attached(model, DENIED, EVERYTHING)


@pytest.mark.parametrize(
    ("one", "shape"),
    [
        (nn.Linear(4, 3), (4,)),
        (nn.LayerNorm(4), (4,)),
        (nn.RMSNorm(4), (4,)),
        (nn.Conv1d(2, 2, 1), (2, 5)),
        (nn.ConvTranspose2d(2, 2, 1), (2, 5, 5)),
    ],
)
def test_an_input_without_rows_is_refused(one: nn.Module, shape: tuple[int, ...]) -> None:
    router, _ = attached(nn.Sequential(one), DENIED, EVERYTHING)
    x = torch.randn(shape)
    with router.rows(np.ones((2, 1)), x.device), pytest.raises(PolicyRefused, match="P12"):
        one(x)


def test_positions_that_no_row_has_are_refused_with_the_way_to_write_them() -> None:
    table = nn.Embedding(5, 4)
    router, _ = attached(nn.Sequential(table), DENIED, EVERYTHING)
    with router.rows(np.ones((2, 1)), torch.device("cpu")):
        for places in (torch.arange(5), torch.arange(5)[None]):
            with pytest.raises(PolicyRefused, match=r"P12.*\n.*arange\(T\)\.expand\(N, T\)"):
                table(places)
        table(torch.arange(5).expand(2, 5))


def test_a_users_own_recomputation_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    router, _ = attached(model, DENIED, EVERYTHING)
    x = torch.randn(ROWS, 4)
    with router.rows(np.ones((ROWS, 1)), x.device):
        y = checkpoint(model, x, use_reentrant=False)
    with (
        router.rows(np.zeros((ROWS, 1)), x.device),
        router.accounted(),
        pytest.raises(PolicyRefused, match="P12: a Linear is computed again"),
    ):
        y.sum().backward()


@pytest.mark.parametrize("name", ["nested", "two outputs and a tie", "rows divided by their norm"])
@pytest.mark.parametrize("what", ["full", "own"])
def test_modules_that_run_twice_are_computed_again_under_their_rows(name: str, what: str) -> None:
    torch.manual_seed(4)
    model = nn.Sequential(MODELS[name](), nn.Linear(4, 2)).double()
    kept = copy.deepcopy(model)
    x, other = torch.randn(ROWS, ROWS).double(), torch.randn(ROWS, ROWS).double()
    router, found = attached(model, DENIED, EVERYTHING)
    routed, _ = attached(kept, DENIED, EVERYTHING)
    weights = found.weights(DENIED)
    inner = {type(one).__name__ for one in model.modules()} & {"Scaled", "OfTwo", "Normed"}
    recompute(model, "full" if what == "full" else sorted(inner), router.recomputing)
    wanted = gradients(kept, routed, x, weights[CODES])
    model.zero_grad()
    with router.rows(weights[CODES], x.device):
        loss = losses(model(x)).sum()
    with router.rows(weights[1 - CODES], x.device):
        losses(model(other))
        with router.accounted():
            loss.backward()
    for key, one in model.named_parameters():
        assert one.grad is not None
        torch.testing.assert_close(one.grad, wanted[key], rtol=0, atol=0)


def test_rows_of_tokens_are_routed_each_by_itself() -> None:
    torch.manual_seed(5)
    tokens = 3
    model = nn.Sequential(
        nn.Embedding(9, 4), nn.LayerNorm(4), Scaled(), nn.Linear(4, 4), nn.RMSNorm(4)
    ).double()
    plain = copy.deepcopy(model)
    matrix = np.array([[1.0, 0.5], [0.0, 1.0], [0.25, 0.0]])
    layers = [LayerGroup("low", r"^[02]\."), LayerGroup("high", r"^[134]\.")]
    router, found = attached(model, matrix, layers)
    weights = found.weights(matrix)
    codes = np.random.default_rng(6).integers(0, 3, (ROWS, tokens))
    x = torch.randint(0, 9, (ROWS, tokens))
    got = gradients(model, router, x, weights[codes])
    each = oracle.per_source(
        plain, lambda part: losses(plain(part)), x.reshape(-1), codes.reshape(-1)
    )
    wanted = oracle.combined(each, codes.reshape(-1), weights, found)
    for key, one in wanted.items():
        assert one is not None
        torch.testing.assert_close(got[key], one * codes.size, rtol=1e-11, atol=1e-12)


def test_what_has_no_tokens_takes_the_least_of_a_rows_tokens() -> None:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 4)).double()
    router, found = attached(model, np.array([[1.0], [0.25]]), EVERYTHING)
    x = torch.randn(ROWS, 4).double()
    codes = np.zeros((ROWS, 5), int)
    codes[::2, 3] = 1
    weights = found.weights(np.array([[1.0], [0.25]]))
    got = gradients(model, router, x, weights[codes])
    least = gradients(model, router, x, weights[codes.max(1)])
    assert all(torch.equal(got[key], one) for key, one in least.items())
    with pytest.raises(PolicyRefused, match="P12"):
        gradients(model, router, torch.randn(ROWS + 1, 4).double(), weights[codes])


def test_a_module_of_two_models_is_routed_once_and_in_one_layer() -> None:
    shared = nn.Linear(4, 4)
    one, other = nn.Sequential(shared), nn.Sequential(nn.Linear(4, 4), shared)
    router, _ = attached(one, DENIED, EVERYTHING)
    kind = type(shared)
    places = LayerMap.of(other, EVERYTHING)
    attach(other, places, router, places.layers)
    assert type(shared) is kind
    apart = LayerMap.of(other, [LayerGroup("new", "^0"), LayerGroup("all", "^1")])
    attach(other, apart, router, apart.layers[1:])
    swapped = LayerMap.of(other, [LayerGroup("all", "^0"), LayerGroup("new", "^1")])
    with pytest.raises(PolicyRefused, match="P03: 1 is 0 of another model"):
        attach(other, swapped, router, swapped.layers)


def test_classes_keep_their_names_and_copies_their_routes() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Scaled(), parametrizations.weight_norm(nn.Linear(4, 4)))
    names = list(model.state_dict())
    kinds = [type(one).__name__ for one in model.modules()]
    router, found = attached(model, DENIED, EVERYTHING)
    assert list(model.state_dict()) == names
    assert [type(one).__name__ for one in model.modules()] == kinds
    assert isinstance(model[0], nn.Linear)
    assert isinstance(model[1], Scaled)
    assert is_parametrized(model[2])
    other = copy.deepcopy(model).double()
    got = gradients(other, router, torch.randn(ROWS, 4).double(), found.weights(DENIED)[[1] * ROWS])
    assert all(torch.equal(one, torch.zeros_like(one)) for one in got.values())
