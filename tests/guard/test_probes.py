"""Each probe finds what couples rows, and spares models whose rows are apart."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hpcdet.errors import HpcdetError
from hpcdet.guard.probing import row_probes as probes
from hpcdet.guard.probing.probe import Probe
from hpcdet.guard.routing.layer_map import LayerMap
from hpcdet.guard.routing.modules import attach
from hpcdet.guard.routing.router import Route, Router
from hpcdet.policy.compiled import LayerGroup

ROWS, WIDTH, TOKENS = 8, 6, 4
Batch = tuple[torch.Tensor, torch.Tensor]
LAYERS = [LayerGroup("first", "^first"), LayerGroup("rest", "^(?!first)")]
MATRIX = np.array([[1.0, 1.0], [0.0, 1.0], [0.5, 0.0]])
CODES = np.array([0, 1, 1, 2, 0, 2, 1, 0])


class Net(nn.Module):
    """``first``, then ``middle``, then a head."""

    def __init__(self, middle: Callable[..., torch.Tensor] | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.middle: Any = middle or torch.tanh
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.drop(self.middle(self.norm(self.first(x)))))
        return found


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm, self.head = nn.GroupNorm(2, 4), nn.Linear(4, 3)
        self.counts: torch.Tensor
        self.register_buffer("counts", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counts += 1
        x = torch.relu_(self.norm(self.first(x.reshape(-1, 1, 2, 3))))
        found: torch.Tensor = self.head(x.mean((2, 3)))
        return found


class Words(nn.Module):
    """A transformer over words and positions, of one document per row or of packed ones."""

    def __init__(self, *, packed: bool = False, expand: bool = True) -> None:
        super().__init__()
        self.first, self.places = nn.Embedding(20, 8), nn.Embedding(ROWS, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 3)
        self._packed, self._expand = packed, expand

    def forward(self, x: torch.Tensor, documents: torch.Tensor | None = None) -> torch.Tensor:
        places = torch.arange(x.shape[1])
        x = self.first(x) + self.places(places.expand(x.shape) if self._expand else places)
        mask = None
        if documents is not None and not self._packed:
            apart = documents[:, :, None] != documents[:, None, :]
            mask = apart.repeat_interleave(2, 0)
        found: torch.Tensor = self.head(self.block(x, mask))
        return found


class Capacity(nn.Module):
    """Experts that take no more than so many rows; what is more goes by."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 2)
        self.experts = nn.ParameterList([torch.randn(WIDTH, WIDTH) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.gate(x).argmax(1)
        out = x
        for number, weight in enumerate(self.experts):
            taken = (chosen == number) & ((chosen == number).cumsum(0) <= ROWS // 2)
            out = torch.where(taken[:, None], x @ weight, out)
        return out


class Sorted(nn.Module):
    """Sorts rows, learns, and puts them back."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = torch.arange(len(x) - 1, -1, -1)
        return self.inner(x[order])[torch.argsort(order)]


def cross_entropy(model: nn.Module, batch: Batch) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def per_row(model: nn.Module, batch: Batch) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def probe(
    model: nn.Module,
    loss: Callable[[nn.Module, Batch], torch.Tensor] = cross_entropy,
    *,
    codes: np.ndarray = CODES,
    inputs: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
) -> Probe:
    router, found = Router(), LayerMap.of(model, LAYERS)
    for name in found.layers:
        router.place(name)
    weights = found.weights(MATRIX)
    attach(model, found, router, [n for p, n in enumerate(found.layers) if weights[:, p].min() < 1])
    named = dict(model.named_parameters())
    x = torch.randn(ROWS, WIDTH) if inputs is None else inputs
    y = torch.arange(ROWS) % 3 if labels is None else labels
    return Probe(
        router=router,
        models=[model],
        loss=lambda batch: loss(model, batch),
        batch=(x, y),
        codes=codes,
        names=["a", "b", "c"],
        weights=weights,
        around=lambda now: router.rows(weights[now], torch.device("cpu")),
        places=[(one.name, named[one.name], one.layer) for one in found.parameters],
    )


def words(*, packed: bool = False, expand: bool = True) -> tuple[Words, torch.Tensor, torch.Tensor]:
    model = Words(packed=packed, expand=expand)
    return model, torch.randint(0, 20, (ROWS, TOKENS)), torch.randint(0, 3, (ROWS, TOKENS))


def of_tokens(model: nn.Module, batch: Batch) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def transformer() -> Probe:
    model, x, y = words()
    return probe(model, of_tokens, inputs=x, labels=y)


@pytest.fixture(autouse=True)
def _numbers() -> None:
    torch.manual_seed(11)


CLEAN: dict[str, Callable[[], Probe]] = {
    "mlp": lambda: probe(Net()),
    "mlp, one loss per row": lambda: probe(Net(), per_row),
    "mlp, float64": lambda: probe(Net().double(), inputs=torch.randn(ROWS, WIDTH).double()),
    "cnn": lambda: probe(Pictures()),
    "transformer": lambda: transformer(),
    "batch norm in eval mode": lambda: probe(Net(nn.BatchNorm1d(WIDTH, affine=False).eval())),
}


@pytest.mark.parametrize("name", CLEAN)
def test_clean_models_pass_and_are_as_before(name: str) -> None:
    one = CLEAN[name]()
    model = one.models[0]
    state = copy.deepcopy(model.state_dict())
    for parameter in one.parameters:
        parameter.grad = torch.ones_like(parameter)
    torch.manual_seed(12)
    random.seed(13)
    wanted, other = torch.rand(1), random.random()
    torch.manual_seed(12)
    random.seed(13)
    probes.check(one)
    assert torch.equal(torch.rand(1), wanted)
    assert random.random() == other
    assert all(torch.equal(state[key], now) for key, now in model.state_dict().items())
    grads = [parameter.grad for parameter in one.parameters]
    assert all(grad is not None and bool(grad.eq(1).all()) for grad in grads)


def test_mixed_precision_is_no_wrong_routing() -> None:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model, batch)

    one = probe(Net(), loss)
    probes.check(one)
    one.router.off = True
    with pytest.raises(HpcdetError, match="G123"):
        probes.as_the_oracle(one)


def only(one: Probe, wanted: Callable[[Probe], None]) -> list[str]:
    """What each probe that refuses says; ``wanted`` must be among them."""
    found = {}
    for tried in probes.ALL:
        try:
            tried(one)
        except HpcdetError as error:
            found[tried.__name__] = f"{tried.__name__}: {error}"
    assert wanted.__name__ in found, found
    with pytest.raises(HpcdetError):
        probes.check(one)
    return [*found.values()]


def test_rows_that_are_centred_by_hand_are_found_and_the_module_named() -> None:
    found = only(probe(Net(lambda x: x - x.mean(0))), probes.rows_are_apart)
    assert "P07: the model (Net)" in found[0]


def test_a_forced_batch_norm_is_found_and_named() -> None:
    model = Net(nn.BatchNorm1d(WIDTH, affine=False).eval())
    one = probe(model)
    model.middle._forward_pre_hooks.clear()  # which would refuse it by its class
    model.middle.train()
    found = only(one, probes.rows_are_apart)
    assert "P07: middle (BatchNorm1d)" in found[0]


def test_a_capacity_of_experts_is_found() -> None:
    assert "P07: middle (Capacity)" in only(probe(Net(Capacity())), probes.rows_are_apart)[0]


def test_rows_that_a_model_gives_back_in_another_order_are_found() -> None:
    assert "P07" in only(probe(Net(lambda x: x.flip(0))), probes.rows_are_apart)[0]


def test_packed_documents_without_a_mask_are_found_and_spared_with_one() -> None:
    codes = np.repeat([[0, 0, 1, 1]], ROWS, axis=0)
    documents = torch.from_numpy(codes.copy())

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(
            model(batch[0], documents).flatten(0, 1), batch[1].flatten()
        )

    model, x, y = words(packed=True)
    assert (
        "P07: block.self_attn"
        in only(probe(model, loss, codes=codes, inputs=x, labels=y), probes.rows_are_apart)[0]
    )
    model, x, y = words()
    probes.check(probe(model, loss, codes=codes, inputs=x, labels=y))


def test_rows_in_another_order_inside_are_found() -> None:
    found = only(probe(Net(Sorted())), probes.rows_are_the_batch)
    assert any("P12: the rows of middle.inner (Linear)" in text for text in found)


def test_positions_that_belong_to_no_row_are_found_where_their_number_fits() -> None:
    model, _, _ = words(expand=False)
    x, y = torch.randint(0, 20, (ROWS, ROWS)), torch.randint(0, 3, (ROWS, ROWS))
    found = only(probe(model, of_tokens, inputs=x, labels=y), probes.rows_are_the_batch)
    assert any("P12: the rows of places (Embedding)" in text for text in found)


def test_a_contrastive_loss_is_found() -> None:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        y = functional.normalize(model(batch[0]), dim=1)
        return functional.cross_entropy(y @ y.T * 5, torch.arange(len(y)).roll(1))

    assert any("P13" in text for text in only(probe(Net(), loss), probes.loss_is_apart))


def test_a_contrastive_loss_per_row_is_found_by_its_rows() -> None:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        y = model(batch[0])
        return functional.cross_entropy(y @ y.T, torch.arange(len(y)), reduction="none")

    assert "P07" in only(probe(Net(), loss), probes.rows_are_apart)[0]


def test_a_loss_that_mixes_rows_by_steps_is_found() -> None:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        y = model(batch[0])
        best: torch.Tensor = y.max(dim=0).values.sum()  # has no second derivative
        return best

    assert any("P13" in text for text in only(probe(Net(), loss), probes.loss_is_apart))


def test_a_loss_whose_own_backward_mixes_rows_is_found() -> None:
    class Centred(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(y)
            return y.var(0).sum()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, gy: torch.Tensor) -> torch.Tensor:
            [y] = ctx.saved_tensors
            return gy * (y - y.mean(0))

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        found: torch.Tensor = Centred.apply(model(batch[0]))
        return found

    assert any("P13" in text for text in only(probe(Net(), loss), probes.loss_is_apart))


def test_a_part_of_the_loss_that_a_model_computes_over_the_batch_is_found() -> None:
    class Balanced(Net):
        def forward(self, x: torch.Tensor) -> Any:
            y = super().forward(x)
            return y, y.detach().softmax(1).mean(0).square().sum() * y.mean()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        y, balance = model(batch[0])
        found: torch.Tensor = functional.cross_entropy(y, batch[1]) + balance
        return found

    assert any(
        "P13: a part of the loss that is of no row" in text
        for text in only(probe(Balanced(), loss), probes.loss_is_apart)
    )


class Losing(Net):
    """Gives its outputs and its loss, as models of other libraries do; a mean over rows or not."""

    mixes = False

    def forward(self, x: torch.Tensor, labels: Any = None) -> Any:
        y = super().forward(x)
        centred = y - y.mean(0) * 0.5 if self.mixes else y
        return {"loss": functional.cross_entropy(centred, labels), "logits": y}


@pytest.mark.parametrize("mixes", [False, True])
def test_a_loss_that_the_model_computes_itself_is_probed_by_its_outputs(mixes: bool) -> None:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        found: torch.Tensor = model(*batch)["loss"]
        return found

    model = Losing()
    model.mixes = mixes
    if mixes:
        assert any(
            "P13: the loss of rows" in text
            for text in only(probe(model, loss), probes.loss_is_apart)
        )
    else:
        probes.check(probe(model, loss))


def test_a_weight_penalty_in_the_loss_is_found() -> None:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return (
            cross_entropy(model, batch) + 1e-3 * model.get_parameter("first.weight").square().sum()
        )

    found = only(probe(Net(), loss), probes.denied_stay)
    assert any("G123: source b changes first.weight, in first" in text for text in found)
    assert any("P13: a part of the loss" in text for text in found)


def test_a_weight_that_is_used_outside_of_its_module_is_found() -> None:
    class Tied(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(functional.linear(x, self.first.weight))

    assert any(
        "G123: source b changes first.weight" in text
        for text in only(probe(Tied()), probes.denied_stay)
    )


def test_a_model_that_gives_its_loss_alone_is_refused() -> None:
    class Whole(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).square().mean()

    found = only(probe(Whole(), lambda model, batch: model(batch[0])), probes.rows_are_the_batch)
    assert any("P12: the model gives no value per row" in text for text in found)


@pytest.mark.parametrize("wrong", ["no mask", "whole scale"])
def test_a_router_that_does_not_route_is_found(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = probe(Net())
    if wrong == "no mask":
        one.router.off = True
        assert any(text.startswith("denied_stay") for text in only(one, probes.as_the_oracle))
        return
    check = Route.check

    def unscaled(self: Route, what: str) -> Any:
        rows = copy.copy(check(self, what))
        rows.scale = None
        return rows

    monkeypatch.setattr(Route, "check", unscaled)
    assert "G123: routed gradients are not" in only(one, probes.as_the_oracle)[0]
