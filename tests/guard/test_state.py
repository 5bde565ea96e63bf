"""What a checkpoint holds of a policy is verified before training goes on: each check by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hpcdet.data.sample_order import Order, shuffled
from hpcdet.data.sourced import Sourced
from hpcdet.guard.guard import Guard
from hpcdet.guard.state import GovernanceState
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.compiled import CompiledPolicy
from tests.guard.test_governed import LAYERS, policy

DATA = Sourced({"a": range(7), "b": range(5), "c": range(3)})
BATCH = 4


def order(seed: int = 1, *, drop_last: bool = False, permutes: bool = True) -> Order:
    return Order(15, BATCH, lambda epoch: shuffled(15, seed, epoch), drop_last, permutes)


def model() -> nn.Sequential:
    torch.manual_seed(2)
    parts = [nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Identity(), nn.Linear(8, 8)]
    return nn.Sequential(*parts, nn.Tanh(), nn.Linear(8, 1))


class Trial:
    """A trial without ranks, batches or losses: rows are counted as if they were trained."""

    def __init__(self, wanted: CompiledPolicy | None = None) -> None:
        self.guard = Guard(wanted or policy(), torch.device("cpu"), lambda value: [value])
        self.model = model()
        self.guard.take(self.model)
        self.guard.watch(torch.optim.SGD(self.model.parameters()))
        self.guard.use(DATA.sources, indexed=True)
        self.state = GovernanceState(self.guard)
        self.records = 0

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return {f"0.{name}": one for name, one in self.model.named_parameters()}

    def train(self, steps: int, by: Order | None = None) -> Trial:
        self.state.start(self.parameters)
        for part, _ in zip((by or order()).slices(0, 0, 1), range(steps), strict=False):
            self.guard.begin(part.whole)
            self.guard.end()
            self.records += part.records
        return self

    def load(self, saved: Any, records: int, by: Order | None = None, **how: Any) -> Any:
        options = {"inherited": False, **how}
        return self.state.load(
            saved, self.parameters, records=records, order=by or order(), **options
        )


@pytest.mark.parametrize("steps", [0, 1, 4, 9, 40])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("permutes", [True, False])
def test_an_untampered_state_passes_all_checks(steps: int, drop_last: bool, permutes: bool) -> None:
    by = order(drop_last=drop_last, permutes=permutes)
    trial = Trial().train(steps, by)
    saved = trial.state.encode()
    later = Trial()
    checks = later.load(saved, trial.records, by)
    assert {one.outcome for one in checks} == {"passed"}
    assert later.state.encode()["exposure"] == saved["exposure"]
    np.testing.assert_array_equal(later.state.encode()["E"], saved["E"])


def one_more(state: Any) -> None:
    state["exposure"]["rows"]["a"] += 1
    state["E"][0] += 1


def swapped(state: Any) -> None:
    rows = state["exposure"]["rows"]
    rows["a"], rows["b"] = rows["a"] - 1, rows["b"] + 1
    state["E"] = np.array(state["E"])
    state["E"][0] -= 1
    state["E"][1] += np.array([0, 1, 1])


TAMPERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "version": ("G101", lambda state: state.update(schema=2)),
    "digest": ("G110", lambda state: state.update(policy="sha256:11")),
    "weights": (
        "G110",
        lambda state: state.update(compiled=state["compiled"].replace("0.0", "1.0", 1)),
    ),
    "another policy": (
        "G108",
        lambda state: state.update(
            compiled=policy(np.ones((3, 3))).to_json(), policy=policy(np.ones((3, 3))).digest
        ),
    ),
    "a layer renamed": ("G109", lambda state: state["layers"][0][0][0].__setitem__(0, "1.weight")),
    "a shape": ("G109", lambda state: state["layers"][0][2][1].__setitem__(0, 9)),
    "a model less": ("G109", lambda state: state["layers"].pop()),
    "exposure": ("G114", lambda state: state.update(E=np.array(state["E"]) + 1)),
    "a row more": ("G119", one_more),
    "rows of another source": ("G114", swapped),
    "began elsewhere": ("G119", lambda state: state.update(begun=3)),
    "no state": ("G101", lambda _: None),
}


@pytest.mark.parametrize("how", TAMPERS)
def test_each_tamper_is_found_by_its_own_code(how: str) -> None:
    code, tamper = TAMPERS[how]
    trial = Trial().train(9)
    saved = copy.deepcopy(trial.state.encode())
    tamper(saved)
    with pytest.raises(GovernanceBroken) as found:
        Trial().load(None if how == "no state" else saved, trial.records)
    assert found.value.check == code
    assert found.value.exit_code == 9


def test_sources_that_have_changed_since_are_found() -> None:
    trial = Trial().train(9)
    with pytest.raises(GovernanceBroken, match="G114"):
        Trial().load(trial.state.encode(), trial.records, order(seed=8))


def test_a_layer_that_nothing_may_change_must_be_as_it_was() -> None:
    frozen = policy(((0.0, 1.0, 1.0),) * 3)
    trial = Trial(frozen).train(3)
    saved = trial.state.encode()
    assert sorted(saved["forbidden"]) == ["0.0.bias", "0.0.weight", "0.1.bias", "0.1.weight"]
    later = Trial(frozen)
    later.load(saved, trial.records)
    changed = Trial(frozen)
    with torch.no_grad():
        changed.parameters["0.1.bias"][3] += 1e-7
    with pytest.raises(GovernanceBroken, match=r"G115.*0\.1\.bias"):
        changed.load(saved, trial.records)


def test_an_heir_begins_with_its_parents_exposure() -> None:
    parent = Trial().train(9)
    saved = parent.state.encode()
    heir = Trial()
    checks = heir.load(saved, parent.records, inherited=True)
    assert heir.guard.exposure.encode() == parent.guard.exposure.encode()
    assert "G114" not in {one.code for one in checks}
    for part, _ in zip(order(5).slices(parent.records, 0, 1), range(6), strict=False):
        heir.guard.begin(part.whole)
        heir.records += part.records
    again = Trial()
    checks = again.load(heir.state.encode(), parent.records + heir.records, order(5))
    assert {one.outcome for one in checks} == {"passed"}


def test_an_heir_may_be_under_a_tighter_policy_and_not_under_a_looser_one() -> None:
    parent = Trial().train(3)
    saved = parent.state.encode()
    tighter = policy(((1.0, 1.0, 1.0), (0.0, 0.0, 1.0), (0.0, 0.0, 0.25)))
    checks = Trial(tighter).load(saved, parent.records, inherited=True)
    assert [one.detail for one in checks if one.outcome == "recorded"] == ["tighten"]
    for matrix in (np.ones((3, 3)), ((1.0, 1.0, 1.0), (0.0, 0.0, 1.0), (0.0, 1.0, 0.5))):
        with pytest.raises(GovernanceBroken, match="G108"):
            Trial(policy(matrix)).load(saved, parent.records, inherited=True)
    with pytest.raises(GovernanceBroken, match="G108"):
        Trial(tighter).load(saved, parent.records)


def test_weights_without_a_history_are_told_so() -> None:
    heir = Trial()
    [check] = heir.load(None, 8, inherited=True)
    assert (check.code, check.outcome) == ("G101", "unknown")
    assert heir.state.summary()["complete"] is False
    assert len(LAYERS) == len(heir.state.summary()["layers"])
