"""Routing beside the oracle over what moves, compiles, recomputes and rounds gradients."""

from __future__ import annotations

import copy
import functools
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hpcdet import checkpoint
from hpcdet.policy.compiled import LayerGroup
from tests import ranks
from tests.experiments import same_bits
from tests.guard.test_governed import (
    DROPS,
    EXACT,
    MODEL,
    UNTIL,
    make,
    oracle,
    policy,
    state_of,
    traced,
)
from tests.guard.test_operators import Mlp, loss_of, one_backward_per_source, routed, through_router
from tests.guard.test_own_loop import LONG, SCRIPT, ended, last, loop

pytestmark = pytest.mark.xdist_group("governed")

KINDS = '''

class Scaled(Governed):
    def __init__(self, context):
        super().__init__(context)
        self.scaler = context.wrap_scaler(torch.amp.GradScaler("cpu"))

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = (one.to(self.dtype) for one in batch)
        loss = functional.mse_loss(self.model(x)[:, 0], y)
        self.context.backward(self.scaler.scale(loss))
        self.context.step_optimizer(self.optimizer, scaler=self.scaler)
        self.scaler.update()
        return {"loss": loss.item()}


class Two(Governed):
    def __init__(self, context):
        self.others = []
        make = context.wrap_optimizer
        context.wrap_optimizer = lambda one: make(self.divided(one, make))
        super().__init__(context)

    def divided(self, one, make):
        kind, options = type(one), self.context.get_hparams()["options"]
        parameters = list(self.model.parameters())
        self.others.append(make(kind(parameters[4:], **options)))
        return kind(parameters[:4], **options)

    def train_batch(self, batch, epoch_idx, batch_idx):
        found = super().train_batch(batch, epoch_idx, batch_idx)
        if (batch_idx + 1) % self.every == 0:
            for one in self.others:
                self.context.step_optimizer(one)
        return found


class Net(nn.Sequential):
    """Calls its layers one by one: of a ``Sequential`` of routed layers nothing is compiled."""

    def forward(self, x):
        x = torch.tanh(self[1](self[0](x)))
        x = torch.tanh(self[4](self[3](x)))
        return self[6](x)


class Compiled(Governed):
    def __init__(self, context):
        wrap = context.wrap_model
        context.wrap_model = lambda model: wrap(Net(*model))
        super().__init__(context)

    def evaluate_batch(self, batch):
        from torch._dynamo.utils import counters

        assert counters["stats"]["unique_graphs"], "nothing was compiled"
        return super().evaluate_batch(batch)
'''
SGD: dict[str, Any] = {"optimizer": "SGD", "options": {"lr": 0.05, "momentum": 0.5}}
FSDP2: dict[str, Any] = {"strategy": "fsdp2"}
needs_mpi = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun here")


def first_and_last(trial: Any, world: int, folder: Path, *, mpi: bool = False) -> Any:
    start: Callable[..., ranks.Attempt] = ranks.by_mpirun if mpi else ranks.run
    attempt = start(trial, world, BEGIN=str(folder / "begin"))
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    [*_, path] = sorted(trial.checkpoints.glob("0*.g1"))
    return torch.load(folder / "begin"), checkpoint.load(path).shared["models"][0]


def distance(got: Any, should: Any) -> float:
    """The largest relative distance of a parameter."""
    return max(float((got[n] - one).norm() / one.norm()) for n, one in should.items())


COMPILED: dict[str, Any] = {
    "entrypoint": "model_def:Compiled",
    "optimizations": {"compile": {"backend": "aot_eager"}},
}
ONE_UNIT: dict[str, Any] = {**FSDP2, "fsdp2": {"units": 1000}}
"""Routed operators are not in graphs: a unit that is one of them alone compiles to nothing."""
CELLS: dict[str, Any] = {
    "gloo, 3 ranks, compiled": (3, COMPILED, {}),
    "gloo, 2 ranks, fsdp2, compiled": (2, {"distributed": ONE_UNIT, **COMPILED}, {}),
    "gloo, 2 ranks, fsdp2, recomputed": (
        2,
        {"distributed": FSDP2, "optimizations": {"activation_checkpointing": "full"}},
        {},
    ),
    "gloo, 3 ranks, fsdp2, aggregation": (
        3,
        {"distributed": FSDP2, "optimizations": {"aggregation_frequency": 2}},
        {},
    ),
    "gloo, 2 ranks, own accumulation": (2, {}, {"every": 3}),
    "gloo, 2 ranks, scaler": (2, {"entrypoint": "model_def:Scaled"}, {}),
    "gloo, 2 ranks, two optimizers": (2, {"entrypoint": "model_def:Two"}, {}),
    "gloo, 2 ranks, float32": (2, {}, {"dtype": "float32"}),
    "mpi, 3 ranks, recomputed": (
        3,
        {"distributed": {"backend": "mpi"}, "optimizations": {"activation_checkpointing": "full"}},
        {},
    ),
    "mpi, 2 ranks, fsdp2": (2, {"distributed": {**FSDP2, "backend": "mpi"}}, {}),
    "mpi, 2 ranks, compiled": (2, {"distributed": {"backend": "mpi"}, **COMPILED}, {}),
}


@pytest.mark.parametrize(
    "cell", [pytest.param(one, marks=needs_mpi if one.startswith("mpi") else ()) for one in CELLS]
)
def test_steps_are_those_of_one_backward_per_source(cell: str, tmp_path: Path) -> None:
    """Each with a smaller last batch: 62 samples in batches of 12, which three ranks share."""
    world, changes, more = CELLS[cell]
    hparams = {**SGD, "dtype": "float64", **more}
    trial = make(tmp_path / "EXP", world, policy(), hparams, **changes)
    (tmp_path / "EXP" / "code" / "model_def.py").write_text(MODEL + KINDS)
    begin, got = first_and_last(trial, world, tmp_path, mpi=cell.startswith("mpi"))
    every = changes.get("optimizations", {}).get("aggregation_frequency", more.get("every", 1))
    dtype = getattr(torch, hparams["dtype"])
    # who accumulates himself has the sum of batches, and not their mean
    rate = SGD["options"]["lr"] * more.get("every", 1)
    options = {**SGD["options"], "lr": rate}
    wanted = {**hparams, "begin": begin, "aggregation": every, "options": options}
    [*_, should] = oracle(policy(), wanted, dtype, UNTIL)
    assert distance(got, should) <= (1e-12 if dtype == torch.float64 else 1e-6)
    [*_, plain] = oracle(policy(np.ones((3, 3))), wanted, dtype, UNTIL)
    assert distance(got, plain) > 1e-4  # no routing is found


def test_one_digest_on_one_two_and_four_ranks(tmp_path: Path) -> None:
    """With another number for each attempt: ``test_governed``."""
    slots = {"resources": {"slots_per_trial": 4, "slots_per_node": 4}}
    found = []
    for world in (1, 2, 4):
        trial = make(tmp_path / str(world), world, policy(), DROPS, **slots, **EXACT, until=6)
        assert ranks.run(trial, world).verdict() is not None
        found.append(state_of(trial)[0])
    same_bits(found[1:], found[:1] * 2)


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_gradients_that_travel_as_sixteen_bits_are_as_exact_as_ungoverned_ones(
    kind: str, tmp_path: Path
) -> None:
    """Both miss the way that 64 bits go by about as much: some units of the type's rounding."""
    hparams = {**SGD, "dtype": "float32"}
    missed = []
    for name, wanted in (("governed", policy()), ("plain", None)):
        changes = {"optimizations": {"gradient_compression": kind}}
        trial = make(tmp_path / name, 2, wanted, hparams, **changes)
        folder = tmp_path / name
        begin, got = first_and_last(trial, 2, folder)
        asked = {**hparams, "begin": begin}
        [*_, should] = oracle(wanted or policy(np.ones((3, 3))), asked, torch.float64, UNTIL)
        off = sum(float((got[name] - one).norm()) ** 2 for name, one in should.items())
        way = sum(float((begin[name] - one).norm()) ** 2 for name, one in should.items())
        missed.append((off / way) ** 0.5)
    assert 1e-6 < missed[0] <= 4 * missed[1], missed


def test_what_keeps_gradients_back_for_later_steps_is_refused(tmp_path: Path) -> None:
    """PowerSGD: what it adds later is divided by what later batches admit."""
    changes = {"optimizations": {"gradient_compression": "powersgd", "powersgd": {"start_step": 2}}}
    trial = make(tmp_path / "routed", 2, policy(), SGD, **changes)
    attempt = ranks.run(trial, 2)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict in ("fail", "norestart"), attempt.log()
    assert "P15: powersgd" in attempt.log(), attempt.log()
    found = []
    for name, wanted in (("open", policy(np.ones((3, 3)))), ("none", None)):
        trial = make(tmp_path / name, 2, wanted, SGD, **changes)
        found.append(traced(trial, 2)[-1])
    assert all(torch.equal(one[0], found[1][name][0]) for name, (*one,) in found[0].items())


def test_a_mean_of_ranks_means_is_found(tmp_path: Path) -> None:
    """The naive divisor: each rank's mean, whatever the number of its rows."""
    naive = SCRIPT.replace(" * batch.weight", "").replace(
        "counts=counts)", "counts=counts, weighed=True)"
    )
    assert naive != SCRIPT and "weighed=True" in naive
    off = []
    for name, script in (("right", SCRIPT), ("naive", naive)):
        folder = tmp_path / name
        trial = loop(folder, 3, policy(), {**LONG, "cut": "first"}, script=script)
        ended(trial, 3, BEGIN=str(folder / "begin"))
        asked = {**LONG, "begin": torch.load(folder / "begin")}
        [*_, should] = oracle(policy(), asked, torch.float64, UNTIL)
        off.append(distance(last(trial)[1]["state"]["model"], should))
    assert off[0] <= 1e-12 and off[1] > 1e-3


# -- types of 16 bits ------------------------------------------------------------------------

LAYERS = [LayerGroup("low", "^a"), LayerGroup("high", "^[nb]")]
MATRIX = np.array([[1.0, 1.0], [0.0, 0.5], [0.0, 1.0]])


def _parameters(model: nn.Module, x: torch.Tensor, run: Any) -> Any:
    return run(model.bfloat16(), x.bfloat16())


def _autocast(dtype: torch.dtype) -> Any:
    def around(model: nn.Module, x: torch.Tensor, run: Any) -> Any:
        with torch.autocast("cpu", dtype):
            return run(model, x)

    return around


SIXTEEN = {
    "bf16 parameters": _parameters,
    "bf16 autocast": _autocast(torch.bfloat16),
    "fp16 autocast": _autocast(torch.float16),
}


@pytest.mark.parametrize("kind", SIXTEEN)
def test_in_sixteen_bits_routing_is_as_exact_as_the_plain_model(kind: str) -> None:
    """Both beside the same pass in 64 bits, over several draws."""
    missed = {"routed": 0.0, "plain": 0.0}
    for seed in range(8):
        torch.manual_seed(seed)
        plain = Mlp()
        x, codes = torch.randn(48, 6), np.arange(48) % 3
        for name, matrix in (("routed", MATRIX), ("plain", np.ones((3, 2)))):
            exact = copy.deepcopy(plain).double()
            _, found = routed(copy.deepcopy(plain), MATRIX, LAYERS)
            weights = found.weights(matrix)
            wanted = one_backward_per_source(exact, x.double(), codes, weights, found)
            model = copy.deepcopy(plain)
            rows = weights[codes] if name == "routed" else None
            got = SIXTEEN[kind](model, x, functools.partial(_gradients, rows=rows))
            off = sum(float((got[key].double() - one).norm()) ** 2 for key, one in wanted.items())
            whole = sum(float(one.norm()) ** 2 for one in wanted.values())
            missed[name] += (off / whole) ** 0.5
            if name == "routed":
                low = wanted["a.weight"]
                assert (got["a.weight"].double() - low).norm() < 0.1 * low.norm()
    assert 1e-4 < missed["routed"] <= 2 * missed["plain"], missed


def _gradients(
    model: nn.Module, x: torch.Tensor, *, rows: np.ndarray[Any, Any] | None
) -> dict[str, torch.Tensor]:
    if rows is not None:
        router, _ = routed(model, MATRIX, LAYERS)
        return through_router(model, router, x, rows)
    loss_of(model(x), range(len(x))).backward()
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


def test_in_sixteen_bits_steps_of_a_denied_source_leave_the_layer_and_its_state(
    tmp_path: Path,
) -> None:
    hparams = {"optimizer": "AdamW", "options": {"lr": 0.01}, "dtype": "bfloat16"}
    steps = traced(make(tmp_path / "EXP", 1, policy(), hparams, until=7), 1, ONLY="b")
    for name, (values, state) in steps[3].items():
        denied = re.match("[01]", name) is not None
        assert torch.equal(values, steps[-1][name][0]) == denied, name
        for key, one in state.items():
            same = torch.equal(torch.as_tensor(one), torch.as_tensor(steps[-1][name][1][key]))
            assert same or not denied, (name, key)
