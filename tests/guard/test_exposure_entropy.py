"""How evenly layers learn from the sources, beside what the policies plan under which they did."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from hpcdet.data.sample_order import Order, shuffled
from hpcdet.data.sourced import Sourced
from hpcdet.guard.resume import policy_eras
from hpcdet.policy import measures
from hpcdet.policy.compiled import CompiledPolicy, DataSource
from tests.guard.test_governed import MATRIX, policy
from tests.guard.test_state import TIGHT, Trial, changed, order

HALVED = policy(((1.0, 0.5, 0.5), (0.0, 1.0, 1.0), (0.0, 0.0, 1.0)))
SHARES = np.array([7, 5, 3]) / 15
"""Of the sources of ``test_state``'s data."""


def shared(shares: Any, wanted: CompiledPolicy | None = None) -> CompiledPolicy:
    """A policy that plans these shares."""
    base = wanted or policy()
    pairs = zip(base.sources, shares, strict=True)
    return dataclasses.replace(
        base, sources=tuple(dataclasses.replace(one, share=share) for one, share in pairs)
    )


def g118(checks: Any) -> tuple[str, str]:
    [found] = [one for one in checks if one.code == "G118"]
    return found.outcome, found.detail


def test_a_mixture_other_than_the_planned_one_is_told() -> None:
    for shares, outcome in (((7, 5, 3), "passed"), ((0, 0, 0), "passed"), ((1, 1, 30), "warned")):
        trial = Trial(shared(shares)).train(40)
        saved = trial.state.encode()
        assert saved["expected"]["value"][0] == 0  # of one source only
        said, detail = g118(Trial(shared(shares)).load(saved, trial.records))
        assert said == outcome and ("head is " in detail) == (outcome == "warned")


def test_canaries_are_expected_beside_what_is_planned() -> None:
    epoch = order().epoch_records
    shares = SHARES * (epoch - 12) / epoch + np.array([0, 0, 12]) / epoch
    trial, other = Trial(shared((7, 5, 3))).train(40), Trial(shared(shares)).train(40)
    assert trial.state.encode()["expected"] != other.state.encode()["expected"]
    trial.state.planned.plan(order(), {"c": 12})
    assert trial.state.encode()["expected"] == other.state.encode()["expected"]


def test_without_a_plan_nothing_is_expected() -> None:
    trial = Trial().train(5)
    trial.state.planned.plan(None)
    assert trial.state.encode()["expected"] is None
    assert trial.state.summary()["entropy"]["expected"] is None
    trained = policy_eras.rows_by_era((), trial.guard.exposure, trial.guard.policy)
    [check] = trial.state.planned.check(trained)
    assert (check.code, check.outcome) == ("G118", "unknown")


@pytest.mark.parametrize("after", [TIGHT, HALVED])
def test_each_era_is_expected_as_its_policy_admitted(after: CompiledPolicy) -> None:
    first = Trial().train(200)
    then = Trial(decided=changed(policy(), after))
    assert g118(then.load(first.state.encode(), first.records))[0] == "passed"
    then.go_on(200)
    saved = then.state.encode()
    rows = [sum(one.state.exposure()[0][:1]) for one in (first, then)]  # of a, in the first layer
    of_eras = [rows[0] / SHARES[0], (rows[1] - rows[0]) / SHARES[0]]
    expected = sum(
        units * SHARES[:, None] * np.array(one.matrix)
        for units, one in zip(of_eras, (policy(), after), strict=True)
    )
    by_hand = measures.source_entropy(expected)
    np.testing.assert_allclose(saved["expected"]["value"], by_hand, atol=0.01)
    again = Trial(decided=changed(policy(), after))
    assert g118(again.load(saved, then.records)) == ("passed", "")
    now_only = SHARES[:, None] * np.array(after.matrix)
    alone = measures.source_entropy(now_only)
    off = np.abs(alone - measures.source_entropy(saved["E"]))
    assert (off > saved["expected"]["tolerance"]).any()  # by the present policy alone it would warn


def test_a_plan_that_changes_counts_from_then_on() -> None:
    """Rows of before are expected as they were planned, not as later ones are."""
    first = Trial(shared((7, 5, 3))).train(40)
    late = shared((1, 1, 30))
    then = Trial(decided=changed(shared((7, 5, 3)), late))
    assert g118(then.load(first.state.encode(), first.records))[0] == "passed"
    then.go_on(40)
    again = Trial(decided=changed(shared((7, 5, 3)), late))
    assert g118(again.load(then.state.encode(), then.records))[0] == "warned"


# -- heirs ------------------------------------------------------------------------------------

FOUR = dataclasses.replace(
    policy(), sources=tuple(DataSource(name) for name in "abcz"), matrix=(*MATRIX, (1.0, 1.0, 0.5))
)
DATA = Sourced({"a": range(7), "b": range(5), "c": range(3), "z": range(20)})


def parent_with_z(steps: int = 50) -> Trial:
    """A trial of four sources, one of which its heir's policy does not know."""
    trial = Trial(FOUR)
    trial.guard.use(DATA.sources, counted=True)
    return trial.train(steps, Order(35, 4, lambda epoch: shuffled(35, 3, epoch)))


def test_an_heir_of_a_parent_with_another_source() -> None:
    """What reached its layers reached them, and is expected as it is."""
    parent = parent_with_z()
    heir = Trial()
    checks = heir.load(parent.state.encode(), parent.records, inherited=True)
    assert g118(checks) == ("passed", "")
    np.testing.assert_array_equal(heir.state.exposure(), parent.state.exposure())
    summary = heir.go_on(30).state.summary()
    assert summary["sources"] == ["a", "b", "c", "z"]
    assert summary["exposure"][3] == parent.state.exposure()[3].tolist()
    saved = heir.state.encode()
    assert len(saved["E"]) == 4
    again = Trial()
    checks = again.load(saved, heir.records)
    assert g118(checks) == ("passed", "")
    assert {one.outcome for one in checks} == {"passed"}
    grandchild = Trial()
    checks = grandchild.load(again.state.encode(), heir.records, inherited=True)
    assert g118(checks) == ("passed", "")
    np.testing.assert_array_equal(grandchild.state.exposure(), heir.state.exposure())


def test_an_heir_of_the_same_policy_whose_policy_changes_later() -> None:
    """The era that ends then holds rows of the parent, and rows of the heir."""
    parent = Trial().train(50)
    heir = Trial()
    heir.load(parent.state.encode(), parent.records, order(5), inherited=True)
    heir.go_on(30, order(5))
    tight = Trial(decided=changed(policy(), TIGHT))
    tight.load(heir.state.encode(), heir.records, order(5))
    tight.go_on(60, order(5))
    trained = tight.state._trained(tight.guard.exposure)
    counts = [[sum(rows.rows.values()) for rows in (one.inherited, one.own)] for one in trained]
    assert counts[0] == [parent.records, heir.records - parent.records]
    assert counts[1] == [0, tight.records - heir.records]
    again = Trial(decided=changed(policy(), TIGHT))
    checks = again.load(tight.state.encode(), tight.records, order(5))
    assert {one.outcome for one in checks} == {"passed"}


def test_what_an_heir_did_not_see_covered_is_not_covered() -> None:
    """A source that its policy does not name is covered as it was for the parent."""
    parent = parent_with_z()
    saved = parent.state.encode()
    link = {"source": "z", "head": "h", "root": "r", "agreement": "", "expires": ""}
    for chains, least in (([], 0.0), ([{**link, "active": True}], None)):
        heir = Trial()
        heir.load({**saved, "chains": chains}, parent.records, inherited=True)
        exposed = heir.state.exposure()
        share = exposed[3] / exposed.sum(axis=0)
        wanted = least if least is not None else float(share.min())
        assert heir.state.metrics()["gov.coverage"] == pytest.approx(wanted)
