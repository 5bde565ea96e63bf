"""What code changes of closed layers by itself is refused before it counts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hpcdet.guard.audit import audit
from hpcdet.policy.codes import PolicyRefused
from tests.guard import test_stepping
from tests.guard.test_governed import policy
from tests.guard.test_stepping import Loop, sgd

Act = Callable[[nn.Sequential], None]


def first(model: nn.Sequential) -> nn.Linear:
    """The module of a layer that only one source may change."""
    found = model[0]
    assert isinstance(found, nn.Linear)
    return found


def adds_to_a_gradient(model: nn.Sequential) -> None:
    weight = first(model).weight
    assert weight.grad is not None
    weight.grad = weight.grad + 1


def writes_to_a_gradient(model: nn.Sequential) -> None:
    weight = first(model).weight
    assert weight.grad is not None
    weight.grad.add_(1)


def makes_a_gradient(model: nn.Sequential) -> None:
    """Of a weight whose gradient was dropped, which may lie where that lay."""
    first(model).weight.grad = None
    first(model).weight.grad = torch.ones_like(first(model).weight)


def writes_to_a_weight(model: nn.Sequential) -> None:
    with torch.no_grad():
        first(model).weight.mul_(2)


def gives_a_weight_other_memory(model: nn.Sequential) -> None:
    first(model).weight.data = first(model).weight.data * 2


def exchanges_a_parameter(model: nn.Sequential) -> None:
    first(model).weight = nn.Parameter(first(model).weight.detach().clone())


def exchanges_a_module_for_one_of_the_same_parameters(model: nn.Sequential) -> None:
    new = nn.Linear(6, 8)
    new.weight, new.bias = first(model).weight, first(model).bias
    model[0] = new


def exchanges_a_module_and_its_parameters(model: nn.Sequential) -> None:
    model[0] = nn.Linear(6, 8).double()


def gives_a_module_a_forward(model: nn.Sequential) -> None:
    one = first(model)
    vars(one)["forward"] = lambda x: functional.linear(x, one.weight, one.bias)


def gives_a_module_its_class_back(model: nn.Sequential) -> None:
    first(model).__class__ = nn.Linear


CHANGES: dict[Act, str] = {
    adds_to_a_gradient: "P15: the gradient of 0.weight was changed",
    writes_to_a_gradient: "P15: the gradient of 0.weight was changed",
    makes_a_gradient: "P15: the gradient of 0.weight was changed",
    writes_to_a_weight: "P15: 0.weight was changed",
    gives_a_weight_other_memory: "P15: 0.weight was changed",
    exchanges_a_parameter: "P08: the parameter 0.weight is another one",
    exchanges_a_module_for_one_of_the_same_parameters: "P08: the module 0 is another one",
    exchanges_a_module_and_its_parameters: "P08: the module 0 is another one",
    gives_a_module_a_forward: "P08: the module 0 is another one",
    gives_a_module_its_class_back: "P08: the module 0 is another one",
}


def trained() -> tuple[Loop, torch.optim.Optimizer]:
    """A loop of one step, and of a pass behind it."""
    loop = Loop()
    optimizer = sgd(loop.model, "0146")
    loop.guard.optimizers.watch(optimizer)
    loop.backward(loop.rows(5, 4, 3))
    loop.step(optimizer)
    loop.backward(loop.rows(5, 4, 3))
    return loop, optimizer


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("then", ["step", "pass", "checkpoint"])
def test_what_the_code_changes_by_itself_is_refused(change: Act, then: str) -> None:
    loop, optimizer = trained()
    change(loop.model)
    acts: dict[str, Callable[[], object]] = {
        "step": lambda: loop.step(optimizer),
        "pass": lambda: loop.backward(loop.rows(5, 4, 3)),
        "checkpoint": loop.guard.optimizers.encode,
    }
    with pytest.raises(PolicyRefused, match=CHANGES[change]):
        acts[then]()


def drops(model: nn.Sequential) -> None:
    model.zero_grad()


def zeroes(model: nn.Sequential) -> None:
    model.zero_grad(set_to_none=False)


def evaluates(model: nn.Sequential) -> None:
    model.eval()
    with torch.no_grad():
        model(torch.ones(2, 6, dtype=torch.float64))
    model.train()


@pytest.mark.parametrize("act", [drops, zeroes, evaluates])
def test_what_changes_nothing_is_spared(act: Act) -> None:
    loop, optimizer = trained()
    act(loop.model)
    loop.backward(loop.rows(5, 4, 3))
    loop.guard.optimizers.encode()
    loop.step(optimizer)


def test_layers_that_every_source_may_change_are_the_codes_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(test_stepping, "policy", lambda: policy(np.ones((3, 3))))
    loop, optimizer = trained()
    for change in (adds_to_a_gradient, writes_to_a_weight, gives_a_module_a_forward):
        change(loop.model)
    loop.step(optimizer)


@pytest.mark.parametrize("through", ["data", "the weight"])
def test_a_weight_that_training_itself_writes_to_is_found_by_probes_and_put_back(
    through: str,
) -> None:
    loop = Loop()
    x, codes = loop.rows(4, 4, 4)
    before = first(loop.model).weight.detach().clone()

    def loss(part: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = loop.model(part).square().mean()
        weight = first(loop.model).weight
        with torch.no_grad():
            (weight.data if through == "data" else weight).sub_(float(part.mean()))
        return found

    with (
        loop.guard.batch(codes, np.bincount(codes)),
        pytest.raises(PolicyRefused, match=r"P12: train_batch changes 0\.weight itself"),
    ):
        audit(loop.guard, x, loss)
    assert torch.equal(first(loop.model).weight, before)
