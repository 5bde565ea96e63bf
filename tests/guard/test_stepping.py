"""Windows of several optimizers, and steps that are left out: divisors as the oracle's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import swa_utils

from hpcdet.guard.guard import Guard
from hpcdet.guard.stepping.step_watch import StepWatch
from hpcdet.policy.codes import PolicyRefused
from tests.guard.test_governed import policy

LAYER = {"0": 0, "1": 0, "4": 1, "6": 2}


def network() -> nn.Sequential:
    torch.manual_seed(3)
    layers = [nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Identity(), nn.Linear(8, 8)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(8, 1)).double()


class Loop:
    """A governed model on one process, and the same without any guard."""

    def __init__(self) -> None:
        self.guard = Guard(policy(), torch.device("cpu"), lambda value: [value])
        self.model, self.plain = network(), network()
        self.guard.take(self.model)
        self.guard.meet((("a",), ("b",), ("c",)))
        self.draw = torch.Generator().manual_seed(5)

    def rows(self, *counts: int) -> tuple[torch.Tensor, np.ndarray[Any, Any]]:
        """A batch of so many rows of each source."""
        x = torch.randn(sum(counts), 6, generator=self.draw, dtype=torch.float64)
        return x, np.repeat([0, 1, 2], counts)

    def backward(self, batch: tuple[torch.Tensor, Any], scale: float = 1.0) -> None:
        x, codes = batch
        with self.guard.batch(codes, np.bincount(codes, minlength=3)), self.guard.passing():
            (self.model(x).square().mean() * scale).backward()

    def step(self, optimizer: torch.optim.Optimizer, scaler: Any = None) -> None:
        self.guard.optimizers.adopt(optimizer)
        with self.guard.optimizers.step(optimizer, zeroes=True, scaler=scaler):
            optimizer.step() if scaler is None else scaler.step(optimizer)
        optimizer.zero_grad()

    def oracle(self, batches: Sequence[tuple[torch.Tensor, Any]]) -> dict[str, torch.Tensor | None]:
        """The mean over admitted rows, of whole batches that count alike."""
        weights = policy().weights()
        total = {name: torch.zeros_like(one) for name, one in self.plain.named_parameters()}
        share = np.zeros(3)
        self.plain.load_state_dict(self.model.state_dict())
        for x, codes in batches:
            for source in np.unique(codes):
                self.plain.zero_grad()
                (self.plain(x[codes == source]).square().sum() / len(x)).backward()
                share += weights[source] * (codes == source).mean()
                for name, one in self.plain.named_parameters():
                    assert one.grad is not None
                    total[name] += weights[source, LAYER[name[0]]] * one.grad
        return {
            name: one / share[LAYER[name[0]]] if share[LAYER[name[0]]] else None
            for name, one in total.items()
        }

    def steps_by(self, optimizer: torch.optim.Optimizer, names: str, batches: Any) -> None:
        """Step by a rate of 1, and compare the way with the oracle's gradient."""
        wanted = self.oracle(batches)
        before = {name: one.detach().clone() for name, one in self.model.named_parameters()}
        self.step(optimizer)
        for name, one in self.model.named_parameters():
            gradient = wanted[name] if name[0] in names else None
            if gradient is None:
                assert torch.equal(one, before[name]), name
            else:
                off = (before[name] - one - gradient).norm() / gradient.norm()
                assert off <= 1e-12, (name, float(off))


def sgd(model: nn.Module, names: str) -> torch.optim.SGD:
    return torch.optim.SGD([p for n, p in model.named_parameters() if n[0] in names], lr=1.0)


@pytest.mark.parametrize("drop", ["optimizer", "model"])
def test_what_the_code_drops_is_in_no_divisor(drop: str) -> None:
    """As GANs are trained: a pass for one optimizer leaves gradients for the other, dropped."""
    loop = Loop()
    ours, theirs = sgd(loop.model, "01"), sgd(loop.model, "46")
    one, two, three = loop.rows(5, 4, 3), loop.rows(1, 6, 5), loop.rows(8, 1, 1)
    for optimizer in (ours, theirs):
        loop.guard.optimizers.watch(optimizer)
    drops: dict[str, Callable[[], None]] = {
        "optimizer": theirs.zero_grad,
        "model": loop.model.zero_grad,
    }
    loop.backward(one)
    loop.steps_by(ours, "01", [one])
    drops[drop]()
    loop.backward(two)
    loop.steps_by(theirs, "46", [two])
    ours.zero_grad()
    loop.backward(three)
    loop.steps_by(ours, "01", [three])


def test_optimizers_that_step_at_times_of_their_own_have_windows_of_their_own() -> None:
    loop = Loop()
    often, seldom = sgd(loop.model, "01"), sgd(loop.model, "46")
    for optimizer in (seldom, often):
        loop.guard.optimizers.watch(optimizer)
    for optimizer in (often, seldom):
        optimizer.param_groups[0]["lr"] = 0.0  # so that both passes see the same weights
    batches = [loop.rows(5, 4, 3), loop.rows(0, 2, 10)]
    for batch in batches:
        loop.backward(batch, 0.5)
        loop.step(often)
    seldom.param_groups[0]["lr"] = 1.0
    loop.steps_by(seldom, "46", batches)


def test_a_pass_that_admits_nothing_to_an_optimizer_counts_in_its_mean() -> None:
    loop = Loop()
    low, rest = sgd(loop.model, "01"), sgd(loop.model, "46")
    for optimizer in (low, rest):
        loop.guard.optimizers.watch(optimizer)
    denied, mixed = loop.rows(0, 7, 3), loop.rows(4, 4, 4)
    loop.backward(denied, 0.5)  # no gradient for the low layers: it is not dropped by anyone
    loop.backward(mixed, 0.5)
    wanted = loop.oracle([mixed])  # its weighted sum over 2, by the mean of 0 and its share
    before = loop.model.get_parameter("0.weight").detach().clone()
    loop.step(low)
    gradient = wanted["0.weight"]
    assert gradient is not None
    assert (
        before - loop.model.get_parameter("0.weight") - gradient
    ).norm() / gradient.norm() <= 1e-12


@pytest.mark.parametrize("named", [True, False])
def test_a_resume_gives_each_optimizer_its_own_window(named: bool) -> None:
    """Whatever the order in which they step first: also of ones that nobody has named."""
    first, then = Loop(), Loop()
    own = {loop: [sgd(loop.model, "01"), sgd(loop.model, "46")] for loop in (first, then)}
    for loop, optimizers in own.items():
        for optimizer in optimizers if named else ():
            loop.guard.optimizers.watch(optimizer)
    low, rest = own[first]
    first.backward(first.rows(5, 4, 3))
    first.step(rest)
    first.step(low)
    first.backward(first.rows(1, 6, 5), 0.5)
    first.step(rest)  # the window of ``low`` stays open
    saved = first.guard.optimizers.encode()
    assert sorted(one["passes"] for one in saved) == [0, 1]
    then.model.load_state_dict(first.model.state_dict())
    then.guard.optimizers.load(saved)
    assert then.guard.optimizers.open
    for ours, theirs in zip(then.model.parameters(), first.model.parameters(), strict=True):
        ours.grad = None if theirs.grad is None else theirs.grad.clone()
    batch = first.rows(3, 3, 6)
    for loop, (low, rest) in own.items():
        loop.backward(batch, 0.5)
        loop.step(low)
        assert loop.guard.optimizers.open
        loop.step(rest)
    assert all(map(torch.equal, first.model.parameters(), then.model.parameters()))
    assert then.guard.optimizers.encode() == first.guard.optimizers.encode()


def test_a_first_window_of_an_optimizer_that_nobody_has_named_is_saved() -> None:
    first, then = Loop(), Loop()
    one, two = first.rows(5, 4, 3), first.rows(1, 6, 5)
    first.backward(one, 0.5)
    saved = first.guard.optimizers.encode()
    assert [window["passes"] for window in saved] == [1]
    then.guard.optimizers.load(saved)
    assert then.guard.optimizers.open  # so that a loop without its gradients is an error
    for ours, theirs in zip(then.model.parameters(), first.model.parameters(), strict=True):
        ours.grad = None if theirs.grad is None else theirs.grad.clone()
    then.backward(two, 0.5)
    mean = then.oracle([one, two])
    before = then.model.get_parameter("6.weight").detach().clone()
    then.step(sgd(then.model, "0146"))
    gradient = mean["6.weight"]
    assert gradient is not None
    assert (
        before - then.model.get_parameter("6.weight") - gradient
    ).norm() / gradient.norm() <= 1e-12


def test_open_windows_of_other_optimizers_are_refused() -> None:
    first, then = Loop(), Loop()
    first.guard.optimizers.watch(sgd(first.model, "01"))
    first.backward(first.rows(5, 4, 3))
    saved = first.guard.optimizers.encode()
    then.guard.optimizers.watch(sgd(then.model, "46"))
    with pytest.raises(PolicyRefused, match=r"P15.*of other optimizers"):
        then.guard.optimizers.load([one for one in saved if one["of"]])


# -- scalers of gradients --------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_leaves_out_is_none(fused: bool) -> None:
    loop = Loop()
    optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1, fused=fused)
    optimizers, scaler = loop.guard.optimizers, torch.amp.GradScaler("cpu", init_scale=4.0)

    def refuse() -> None:
        raise AssertionError("it steps past the guard")

    watch = StepWatch(refuse, optimizers.accounted)
    try:
        for value, left_out in ((1.0, False), (float("inf"), True), (1.0, False)):
            x, codes = loop.rows(4, 4, 4)
            x[0] *= value  # a row of a source that may change everything
            before = [one.detach().clone() for one in loop.model.parameters()]
            with loop.guard.batch(codes, np.bincount(codes)), loop.guard.passing():
                scaler.scale(loop.model(x).square().mean()).backward()
            loop.step(optimizer, scaler)
            scaler.update()
            after = list(loop.model.parameters())
            assert all(map(torch.equal, before, after)) == left_out
            assert optimizers.skipped == left_out
            assert not optimizers.open  # its rows are in no divisor of a later step
            optimizers.skipped = False
    finally:
        watch.close()


def test_a_scaler_steps_an_optimizer_whose_layers_admit_nothing() -> None:
    loop = Loop()
    low, rest = sgd(loop.model, "01"), sgd(loop.model, "46")
    scaler = torch.amp.GradScaler("cpu")
    x, codes = loop.rows(0, 5, 5)
    with loop.guard.batch(codes, np.bincount(codes, minlength=3)), loop.guard.passing():
        scaler.scale(loop.model(x).square().mean()).backward()
    before = [one.detach().clone() for one in loop.model[0].parameters()]
    loop.step(low, scaler)
    loop.step(rest, scaler)
    scaler.update()
    assert all(map(torch.equal, before, loop.model[0].parameters()))
    assert loop.guard.optimizers.nulls["low"] == 1


OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "foreach": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
    "amsgrad": (torch.optim.AdamW, {"lr": 0.1, "amsgrad": True}),
    "fused": (torch.optim.Adam, {"lr": 0.1, "fused": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.1, "momentum": 0.9, "centered": True}),
    "adafactor": (torch.optim.Adafactor, {"lr": 0.1}),
    "nadam": (torch.optim.NAdam, {"lr": 0.1}),
    "radam": (torch.optim.RAdam, {"lr": 0.1}),
    "adamax": (torch.optim.Adamax, {"lr": 0.1}),
    "adadelta": (torch.optim.Adadelta, {"lr": 0.1}),
    "asgd": (torch.optim.ASGD, {"lr": 0.1, "weight_decay": 0.1}),
    "rprop": (torch.optim.Rprop, {"lr": 0.1}),
}


def bits(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in model.named_parameters()}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_no_optimizer_moves_a_closed_layer_by_what_it_keeps(kind: str) -> None:
    """Where a step's rows may not change it, and after it has forgotten what a source has left."""
    make, options = OPTIMIZERS[kind]
    loop = Loop()
    optimizer = make(loop.model.parameters(), **options)
    loop.guard.optimizers.watch(optimizer)
    for counts in ((4, 3, 2), (2, 5, 1)):
        loop.backward(loop.rows(*counts))
        loop.step(optimizer)
    assert optimizer.state[loop.model.get_parameter("0.weight")]
    before = bits(loop.model)
    loop.backward(loop.rows(0, 5, 2))  # b and c may not change the layer "low"
    loop.step(optimizer)
    after = bits(loop.model)
    for name in before:
        assert torch.equal(before[name], after[name]) == (LAYER[name[0]] == 0), name
    loop.guard.optimizers.forget([0, 1, 2])
    anew = Loop()
    anew.model.load_state_dict(loop.model.state_dict())
    fresh = make(anew.model.parameters(), **options)
    anew.guard.optimizers.watch(fresh)
    for counts in ((4, 3, 2), (1, 1, 1)):
        batch = loop.rows(*counts)
        for one, steps in ((loop, optimizer), (anew, fresh)):
            one.backward(batch)
            one.step(steps)
        for name, wanted in bits(anew.model).items():
            assert torch.equal(loop.model.get_parameter(name), wanted), name


def test_an_average_of_weights_holds_nothing_of_a_source_that_may_not_change_them() -> None:
    """A copy of a governed model, as an exponential average keeps one."""
    loop = Loop()
    optimizer = torch.optim.AdamW(loop.model.parameters(), weight_decay=0.1)
    loop.guard.optimizers.watch(optimizer)
    average = swa_utils.AveragedModel(
        loop.model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    for _ in range(5):
        loop.backward(loop.rows(6, 3, 3))
        loop.step(optimizer)
    average.update_parameters(loop.model)  # the first one copies
    before = {name: one.clone() for name, one in average.module.named_parameters()}
    for _ in range(10):
        loop.backward(loop.rows(0, 8, 4))
        loop.step(optimizer)
        average.update_parameters(loop.model)
    for name, one in average.module.named_parameters():
        assert torch.equal(one, before[name]) == (LAYER[name[0]] == 0), name


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("how", ["watch", "adopt"])
def test_lbfgs_is_refused_by_name(how: str, inside: bool) -> None:
    """Its one direction would move a closed layer by what it has had of gradients before."""

    class Around(torch.optim.SGD):
        base: torch.optim.Optimizer

    loop = Loop()
    optimizer: torch.optim.Optimizer = torch.optim.LBFGS(loop.model.parameters())
    if inside:
        around = Around(loop.model.parameters(), lr=0.1)
        around.base, optimizer = optimizer, around
    with pytest.raises(PolicyRefused, match="P15: LBFGS"):
        getattr(loop.guard.optimizers, how)(optimizer)
