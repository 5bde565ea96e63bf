"""Routing that is broken on purpose: each mutation breaks the statements that guard against it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hpcdet.guard import guard as guards
from hpcdet.guard.routing import modules
from hpcdet.guard.routing.router import RowWeights
from hpcdet.guard.stepping.windows import Window
from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import LayerGroup
from tests.guard.test_operators import Mlp, routed
from tests.guard.test_stepping import LAYER, Loop, sgd

Batch = tuple[torch.Tensor, np.ndarray[Any, Any]]


def optimizer_of(loop: Loop, kind: Any = torch.optim.AdamW, **options: Any) -> Any:
    made = kind(loop.model.parameters(), **{"lr": 0.01, "weight_decay": 0.1, **options})
    loop.guard.optimizers.watch(made)
    return made


def low(loop: Loop, optimizer: Any) -> list[torch.Tensor]:
    """The layer that only source a may change, with its optimizer's state."""
    own = [one for name, one in loop.model.named_parameters() if LAYER[name[0]] == 0]
    slots = [slot for one in own for slot in optimizer.state[one].values()]
    return [one.detach().clone() for one in [*own, *slots]]


def without_denied(batch: Batch) -> Batch:
    """The batch as if the rows that may not change the low layer were not in it."""
    x, codes = batch
    return x[codes == 0], codes[codes == 0]


def t1_routed_is_one_pass_per_source() -> None:
    loop = Loop()
    optimizer = sgd(loop.model, "0146")
    loop.guard.optimizers.watch(optimizer)
    batch = loop.rows(5, 4, 3)
    loop.backward(batch)
    loop.steps_by(optimizer, "0146", [batch])


def t1_over_a_window() -> None:
    loop = Loop()
    optimizer = sgd(loop.model, "0146")
    loop.guard.optimizers.watch(optimizer)
    batches = [loop.rows(5, 4, 3), loop.rows(1, 2, 9)]
    for batch in batches:
        loop.backward(batch, 0.5)
    loop.steps_by(optimizer, "0146", batches)


def t2_steps_of_a_denied_source_leave_layer_and_state() -> None:
    loop = Loop()
    optimizer = optimizer_of(loop)
    for _ in range(3):  # so that there is a momentum
        loop.backward(loop.rows(6, 3, 3))
        loop.step(optimizer)
    before = low(loop, optimizer)
    for _ in range(5):
        loop.backward(loop.rows(0, 8, 4))
        gradients = [one.grad for one in loop.model[0].parameters()]
        assert all(one is None or not one.any() for one in gradients)
        loop.step(optimizer)
    assert all(map(torch.equal, before, low(loop, optimizer)))


def t3_a_step_is_that_of_a_batch_without_the_denied_rows() -> None:
    """To the bit where shares are powers of two, else to rounding."""
    for counts, exactly in (((4, 2, 2), True), ((5, 4, 3), False)):
        one, other = Loop(), Loop()
        batch = one.rows(*counts)
        for loop, rows in ((one, batch), (other, without_denied(batch))):
            optimizer = optimizer_of(loop, torch.optim.SGD, momentum=0.9)
            loop.backward(rows)
            loop.step(optimizer)
        for ours, theirs in zip(
            one.model[0].parameters(), other.model[0].parameters(), strict=True
        ):
            if exactly:
                assert torch.equal(ours, theirs)
            else:
                assert (ours - theirs).norm() <= 1e-12 * theirs.norm()


def t10_a_row_that_is_no_number_stays_out() -> None:
    loop = Loop()
    optimizer = optimizer_of(loop)
    x, codes = loop.rows(6, 3, 3)
    x[7] = torch.inf  # of source b, which may not change the low layer
    loop.backward((x, codes))
    loop.step(optimizer)
    assert all(one.isfinite().all() for one in low(loop, optimizer))


STATEMENTS: dict[str, Callable[[], None]] = {
    "T1": t1_routed_is_one_pass_per_source,
    "T1 window": t1_over_a_window,
    "T2": t2_steps_of_a_denied_source_leave_layer_and_state,
    "T3": t3_a_step_is_that_of_a_batch_without_the_denied_rows,
    "T10": t10_a_row_that_is_no_number_stays_out,
}


def _all_rows(weights: Any, device: torch.device, **_: Any) -> RowWeights:
    return RowWeights(len(weights), None, None)


def _multiplied(self: RowWeights, rows: torch.Tensor) -> torch.Tensor:
    if self.kept is None:
        return rows
    mask = torch.zeros(len(rows), dtype=rows.dtype).index_fill_(0, self.kept, 1)
    return rows * mask.reshape(-1, *[1] * (rows.dim() - 1))


def _zeros(self: Window, gathered: Any = (), plain: Any = Window.mean) -> Any:
    found = plain(self, gathered)
    return np.where(found == 0, 1.0, found)


def _last_pass(self: Window, share: Any, *, first: bool) -> None:
    self.passes, self.shares = 1, share


MUTATIONS: dict[str, tuple[Any, str, Any, set[str]]] = {
    "no mask": (RowWeights, "of", staticmethod(_all_rows), {"T1", "T1 window", "T2", "T3", "T10"}),
    "no weight": (RowWeights, "weigh", lambda self, kept: kept, {"T1", "T1 window"}),
    "no divisor": (
        guards,
        "admitted_share",
        lambda counts, matrix: (counts @ matrix > 0).astype(float),
        {"T1", "T1 window", "T3"},
    ),
    "zeros for None": (Window, "mean", _zeros, {"T2"}),
    "rows multiplied, not left out": (RowWeights, "select", _multiplied, {"T10"}),
    "a window of its last pass": (Window, "add", _last_pass, {"T1 window"}),
}


def broken() -> set[str]:
    """The statements that do not hold."""
    found = set()
    for name, statement in STATEMENTS.items():
        try:
            statement()
        except AssertionError:
            found.add(name)
    return found


def test_unbroken_every_statement_holds() -> None:
    assert broken() == set()


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_breaks_the_statements_that_are_about_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, what, by, wanted = MUTATIONS[name]
    monkeypatch.setattr(where, what, by)
    assert broken() >= wanted


# -- T8: what is refused would leak ------------------------------------------------------------


class Packed(nn.Module):
    """Documents of two sources in one row of the batch's memory: attention without a mask."""

    def __init__(self, *, masked: bool) -> None:
        super().__init__()
        self.a = nn.Linear(6, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.b = nn.Linear(8, 3)
        self.masked = masked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)[None]
        mask = torch.eye(x.shape[1]) == 0 if self.masked else None
        out, _ = self.attention(x, x, x, attn_mask=mask, need_weights=False)
        return self.b((x + out)[0])


class Normed(Mlp):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.n = kind(8)


def leak(model: nn.Module) -> float:
    """What a denied source's loss alone sends to the layer, relative to all of its gradient."""
    torch.manual_seed(9)
    model = copy.deepcopy(model).double()
    layers = [LayerGroup("low", r"^a\."), LayerGroup("high", r"^(?!a\.)")]
    router, found = routed(model, np.array([[1.0, 1.0], [0.0, 1.0]]), layers)
    weights, codes = found.weights(np.array([[1.0, 1.0], [0.0, 1.0]])), np.array([0, 1] * 6)
    x = torch.randn(12, 6, dtype=torch.float64)
    norms = []
    for rows in (weights[codes], np.ones((12, 2))):
        model.zero_grad()
        with router.rows(rows, x.device), router.accounted():
            model(x)[torch.from_numpy(codes == 1)].square().mean().backward()
        weight: Any = model.a.weight.grad  # type: ignore[union-attr]
        norms.append(float(weight.norm()))
    return norms[0] / norms[1]


def test_batch_norm_would_leak_where_it_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PolicyRefused, match="P07"):
        leak(Normed(nn.BatchNorm1d))
    monkeypatch.setattr(modules, "_refuse_coupled", lambda module, name: None)
    assert leak(Normed(nn.BatchNorm1d)) > 0.01
    assert leak(Normed(nn.LayerNorm)) == 0


def test_packed_documents_would_leak_without_a_mask() -> None:
    """No module says so: probes find it (``test_probes``)."""
    assert leak(Packed(masked=False)) > 0.01
    assert leak(Packed(masked=True)) == 0
