"""What a checkpoint holds of a policy is verified before training goes on: each check by itself."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hpcdet.data.sample_order import Order, shuffled
from hpcdet.data.sourced import Sourced
from hpcdet.guard.guard import Guard
from hpcdet.guard.resume import closed_layers
from hpcdet.guard.resume.governance_state import GovernanceState
from hpcdet.policy.changes.policy_in_effect import PolicyInEffect
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.compiled import CompiledPolicy, UseAgreement
from tests.guard.test_governed import LAYERS, policy
from tests.guard.test_stepping import OPTIMIZERS

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

    def __init__(
        self, wanted: CompiledPolicy | None = None, decided: PolicyInEffect | None = None
    ) -> None:
        wanted = decided.policy if decided else wanted
        self.guard = Guard(wanted or policy(), torch.device("cpu"), lambda value: [value])
        self.model = model()
        self.guard.take(self.model)
        self.guard.optimizers.watch(torch.optim.SGD(self.model.parameters()))
        self.guard.use(DATA.sources, counted=True)
        self.state = GovernanceState(self.guard, decided=decided)
        self.records = 0

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return {f"0.{name}": one for name, one in self.model.named_parameters()}

    def train(self, steps: int, by: Order | None = None) -> Trial:
        self.state.planned.plan(by or order())
        self.state.start(self.parameters)
        return self.go_on(steps, by)

    def go_on(self, steps: int, by: Order | None = None) -> Trial:
        for part, _ in zip((by or order()).slices(self.records, 0, 1), range(steps), strict=False):
            self.guard.begin(part.whole)
            self.guard.end()
            self.records += part.records
        return self

    def load(self, saved: Any, records: int, by: Order | None = None, **how: Any) -> Any:
        self.records = records
        options = {"inherited": False, **how}
        self.state.planned.plan(by or order())
        checks = self.state.load(
            saved, self.parameters, records=records, order=by or order(), **options
        )
        return checks + self.state.settle()


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


def moments() -> list[str]:
    """What torch's optimizers keep that is 0, or an epsilon, without a gradient only."""
    found: set[str] = set()
    for make, options in OPTIMIZERS.values():
        for size in (4,), (4, 4):
            idle, moved = (torch.nn.Parameter(torch.ones(size)) for _ in range(2))
            optimizer = make([idle, moved], **options)
            optimizer.param_groups[0]["weight_decay"] = 0.0
            for _ in range(2):
                idle.grad, moved.grad = torch.zeros(size), torch.rand(size) + 1
                optimizer.step()
            without = optimizer.state[idle]
            for name, value in optimizer.state[moved].items():
                if isinstance(value, torch.Tensor) and without[name].abs().max() < 1e-6:
                    found |= {name} if value.any() else set()
    return sorted(found)


@pytest.mark.parametrize("slot", moments())
def test_no_optimizer_holds_a_moment_of_a_layer_that_nothing_may_change(slot: str) -> None:
    frozen = policy(((0.0, 1.0, 1.0),) * 3)
    trial = Trial(frozen).train(3)
    saved = trial.state.encode()
    for name, value, code in (("0.1.bias", 1e-9, "G115"), ("0.1.bias", 0, ""), ("0.4.bias", 1, "")):
        later = Trial(frozen)
        parameter = later.parameters[name]
        [optimizer] = later.guard.optimizers.watched
        optimizer.state[parameter][slot] = torch.full_like(parameter, value)
        if code:
            with pytest.raises(GovernanceBroken, match=rf"G115.*0\.1\.bias.*{slot}"):
                later.load(saved, trial.records)
        else:
            later.load(saved, trial.records)


@pytest.mark.parametrize("first", [0.0, 0.5])
def test_no_adagrad_holds_a_sum_of_a_layer_that_nothing_may_change(first: float) -> None:
    """It begins with one that an option names, which the code may have changed since."""
    frozen = policy(((0.0, 1.0, 1.0),) * 3)
    for sums, option, code in ((first, first, ""), (first, 0.3, ""), (first + 1e-6, first, "G115")):
        later = Trial(frozen)
        parameter = later.parameters["0.1.bias"]
        saved = torch.optim.Adagrad([parameter], initial_accumulator_value=first)
        saved.state[parameter]["sum"].fill_(sums)
        made = torch.optim.Adagrad([parameter], initial_accumulator_value=option)
        made.load_state_dict(saved.state_dict())
        later.guard.optimizers.watched.append(made)
        known = dict.fromkeys(["0.1.bias"], "")
        if code:
            with pytest.raises(GovernanceBroken, match=r"G115.*0\.1\.bias.*sum"):
                closed_layers.without_moments(later.guard, known, later.parameters)
        else:
            closed_layers.without_moments(later.guard, known, later.parameters)


def test_an_heir_begins_with_its_parents_exposure() -> None:
    parent = Trial().train(9)
    saved = parent.state.encode()
    heir = Trial()
    checks = heir.load(saved, parent.records, inherited=True)
    assert heir.guard.exposure.encode() == parent.guard.exposure.encode()
    assert "G114" not in {one.code for one in checks}
    heir.go_on(6, order(5))
    again = Trial()
    checks = again.load(heir.state.encode(), heir.records, order(5))
    assert {one.outcome for one in checks} == {"passed"}


def test_an_heir_may_be_under_a_tighter_policy_and_not_under_a_looser_one() -> None:
    parent = Trial().train(3)
    saved = parent.state.encode()
    tighter = policy(((1.0, 1.0, 1.0), (0.0, 0.0, 1.0), (0.0, 0.0, 0.25)))
    checks = Trial(tighter).load(saved, parent.records, inherited=True)
    recorded = [one.detail for one in checks if one.outcome == "recorded"]
    assert recorded == ["tighten", "optimizers begin anew in high"]
    for matrix in (np.ones((3, 3)), ((1.0, 1.0, 1.0), (0.0, 0.0, 1.0), (0.0, 1.0, 0.5))):
        with pytest.raises(GovernanceBroken, match="G108"):
            Trial(policy(matrix)).load(saved, parent.records, inherited=True)
    with pytest.raises(GovernanceBroken, match="G108"):
        Trial(tighter).load(saved, parent.records)


def test_weights_without_a_history_are_told_so() -> None:
    heir = Trial()
    check, covered = sorted(heir.load(None, 8, inherited=True), key=lambda one: one.number)
    assert (covered.code, covered.outcome) == ("G111", "passed")
    assert (check.code, check.outcome) == ("G101", "unknown")
    assert heir.state.summary()["complete"] is False
    assert len(LAYERS) == len(heir.state.summary()["layers"])


# -- changes of the policy -----------------------------------------------------------------

TIGHT = policy(((1.0, 1.0, 1.0), (0.0, 0.0, 1.0), (0.0, 0.0, 0.25)))
LOOSE = policy(((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (0.0, 0.0, 0.25)))


def changed(*history: CompiledPolicy, dropped: Any = None) -> PolicyInEffect:
    """The newest of some policies in effect; that they may follow each other was verified."""
    acts = [{"act": "change", "number": number} for number in range(1, len(history))]
    now = history[-1].denying((dropped or {}).keys())
    return PolicyInEffect(now, history, dropped or {}, tuple(acts))


def test_exposure_is_split_where_the_policy_changes() -> None:
    """Rows count by the weights under which they were trained, whatever holds later."""
    first = Trial().train(4)
    then = Trial(decided=changed(policy(), TIGHT))
    checks = then.load(first.state.encode(), first.records)
    [recorded] = [one.detail for one in checks if one.code == "G108" and "change" in one.detail]
    assert recorded == "tighten: change 0001"
    then.go_on(5)
    saved = then.state.encode()
    until = first.guard.exposure.rows
    rest = {name: count - until[name] for name, count in then.guard.exposure.rows.items()}
    by_hand = np.array(
        [
            [(until[s] * a + rest[s] * b) for a, b in zip(old, new, strict=True)]
            for s, old, new in zip("abc", policy().matrix, TIGHT.matrix, strict=True)
        ]
    )
    np.testing.assert_array_equal(saved["E"], by_hand)
    assert (saved["E"] != then.guard.exposure.matrix(TIGHT)).any()
    # and once more, to a looser one that was approved; then as it is
    last = Trial(decided=changed(policy(), TIGHT, LOOSE))
    last.load(saved, then.records)
    last.go_on(3)
    again = Trial(decided=changed(policy(), TIGHT, LOOSE))
    checks = again.load(last.state.encode(), last.records)
    assert {one.outcome for one in checks} == {"passed"}
    np.testing.assert_array_equal(again.state.exposure(), last.state.exposure())


def era_more(state: Any) -> None:
    rows = state["eras"][0]["exposure"]["rows"]
    rows["a"] += 1


def era_swapped(state: Any) -> None:
    """As many rows, and the same E in the end; but which were trained before is another tale."""
    state["eras"][0]["until"] -= 1


ERAS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "rows of an era": ("G114", era_more),
    "its end": ("G114", era_swapped),
    "its policy": ("G114", lambda s: s["eras"][0].update(compiled=LOOSE.to_json())),
    "no eras": ("G114", lambda s: s.update(eras=[])),
}


@pytest.mark.parametrize("how", ERAS)
def test_eras_are_counted_again(how: str) -> None:
    first = Trial().train(4)
    then = Trial(decided=changed(policy(), TIGHT))
    then.load(first.state.encode(), first.records)
    saved = copy.deepcopy(then.go_on(5).state.encode())
    Trial(decided=changed(policy(), TIGHT)).load(saved, then.records)
    code, tamper = ERAS[how]
    tamper(saved)
    with pytest.raises(GovernanceBroken) as found:
        Trial(decided=changed(policy(), TIGHT)).load(saved, then.records)
    assert found.value.check == code


def test_an_era_under_a_policy_that_never_was_is_found() -> None:
    first = Trial(LOOSE).train(4)
    saved = copy.deepcopy(first.state.encode())
    with pytest.raises(GovernanceBroken, match="G108"):  # a change was taken away
        Trial(decided=changed(policy(), TIGHT)).load(saved, first.records)
    then = Trial(decided=changed(LOOSE, TIGHT))
    then.load(saved, first.records)
    later = then.go_on(2).state.encode()
    with pytest.raises(GovernanceBroken, match=r"G108.*never in effect"):
        Trial(decided=changed(policy(), TIGHT)).load(later, then.records)


def stepped(trial: Trial) -> None:
    """One step of momentum in all layers, and gradients that wait for the next."""
    [optimizer] = trial.guard.optimizers.watched
    for _ in range(2):
        for one in trial.model.parameters():
            one.grad = torch.ones_like(one)
        optimizer.step()


def test_optimizers_forget_what_a_source_may_change_no_more() -> None:
    saved = Trial().train(4).state.encode()
    then = Trial(decided=changed(policy(), TIGHT))
    then.guard.optimizers.watched[0].param_groups[0]["momentum"] = 0.9
    stepped(then)
    then.load(saved, 15)
    [optimizer] = then.guard.optimizers.watched
    kept = {n for n, one in then.model.named_parameters() if optimizer.state.get(one)}
    waits = {n for n, one in then.model.named_parameters() if one.grad is not None}
    high = {"4.weight", "4.bias"}  # b is denied there
    assert kept == waits == {n for n, _ in then.model.named_parameters()} - high


def test_a_layer_that_closes_is_as_it_was_from_then_on() -> None:
    closing = policy(((0.0, 1.0, 1.0), (0.0, 1.0, 1.0), (0.0, 0.0, 0.5)))
    first = Trial().train(2)
    first.parameters["0.1.bias"].data.add_(1.0)  # a may change it
    saved = first.state.encode()
    assert not saved["forbidden"]
    then = Trial(decided=changed(policy(), closing))
    then.model.load_state_dict(first.model.state_dict())
    then.load(saved, first.records)
    closed = then.go_on(1).state.encode()
    assert sorted(closed["forbidden"]) == ["0.0.bias", "0.0.weight", "0.1.bias", "0.1.weight"]
    with pytest.raises(GovernanceBroken, match=r"G108.*0001 of the policy is gone"):
        Trial().load(closed, then.records)
    leaked = Trial(decided=changed(policy(), closing, policy()))
    leaked.model.load_state_dict(first.model.state_dict())
    with torch.no_grad():
        leaked.parameters["0.1.bias"][0] += 1e-6
    with pytest.raises(GovernanceBroken, match="G115"):  # although it may be changed from now on
        leaked.load(closed, then.records)
    reopened = Trial(decided=changed(policy(), closing, policy()))
    reopened.model.load_state_dict(first.model.state_dict())
    reopened.load(closed, then.records)
    assert not reopened.state.encode()["forbidden"]


def test_what_has_ended_stays_out_whatever_the_clock_says() -> None:
    agreed = dataclasses.replace(policy().sources[1], agreement=UseAgreement("DUA-1", "2027-12-31"))
    base = policy(sources=(policy().sources[0], agreed, policy().sources[2]))
    gone = {"b": "the agreement DUA-1 on source b ended on 2027-12-31"}
    first = Trial(base).train(3)
    then = Trial(decided=changed(base, dropped=gone))
    checks = then.load(first.state.encode(), first.records)
    assert [(one.number, one.outcome) for one in checks if one.code == "G112"] == [(12, "dropped")]
    assert next(one.outcome for one in checks if one.number == 8) == "passed"
    saved = then.go_on(3).state.encode()
    np.testing.assert_array_equal(saved["E"][1], first.state.exposure()[1])
    assert then.guard.exposure.rows["b"] > first.guard.exposure.rows["b"]
    with pytest.raises(GovernanceBroken, match=r"G112.*clock"):  # which is two days off
        Trial(decided=changed(base)).load(saved, then.records)
    renewed = dataclasses.replace(agreed, agreement=UseAgreement("DUA-2", "2028-12-31"))
    new = policy(sources=(base.sources[0], renewed, base.sources[2]))
    Trial(decided=changed(base, new)).load(saved, then.records)


def test_an_heir_keeps_the_eras_of_its_parent() -> None:
    first = Trial().train(4)
    parent = Trial(decided=changed(policy(), TIGHT))
    parent.load(first.state.encode(), first.records)
    saved = parent.go_on(5).state.encode()
    heir = Trial(decided=changed(TIGHT))
    heir.load(saved, parent.records, inherited=True)
    np.testing.assert_array_equal(heir.state.exposure(), parent.state.exposure())
    heir.go_on(4, order(5))
    again = Trial(decided=changed(TIGHT))
    checks = again.load(heir.state.encode(), heir.records, order(5))
    assert {one.outcome for one in checks} == {"passed"}


class Wrapped(torch.optim.Optimizer):
    """An optimizer around another one, as Lookahead is."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})
        self.param_groups = inner.param_groups


def test_optimizers_inside_of_others_forget_what_a_source_may_change_no_more() -> None:
    trial = Trial()
    inner = torch.optim.AdamW(trial.model.parameters(), amsgrad=True)
    for one in trial.model.parameters():
        one.grad = torch.ones_like(one)
    inner.step()
    outer = Wrapped(Wrapped(inner))
    trial.guard.optimizers.watch(outer)
    trial.guard.optimizers.forget([1])
    kept = {name[0] for name, one in trial.model.named_parameters() if one in inner.state}
    assert kept == {"0", "1", "6"}, "the layer of 4 has begun anew"
