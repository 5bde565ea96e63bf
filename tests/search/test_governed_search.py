"""Searches under a policy: its gates, who is pruned with what evidence, and who is not."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from hpcdet.policy import governed_metrics as metrics
from hpcdet.policy.compiled import CompiledPolicy, Coverage, DataSource, LayerGroup, Twins
from hpcdet.policy.compiled import Memorization as Rules
from hpcdet.policy.memorization import canaries, canary_evidence, twin_evidence, twins
from hpcdet.policy.memorization.twins import TwinVerdict
from hpcdet.search.api.codec import decode_action, encode_action
from hpcdet.search.api.events import Ask, Halt, SegmentEnd, Stop
from hpcdet.search.searcher_factory import searcher
from hpcdet.store.config.resolved_config import resolve
from hpcdet.store.config.sections.searcher_keys import Constraint
from hpcdet.store.fs import typed_fields
from tests.search.test_goals import Run, make

POLICY = CompiledPolicy(
    "notes",
    1,
    "sha256:00",
    (LayerGroup("all", ""),),
    (DataSource("notes"),),
    ((1.0,),),
    coverage=Coverage(0.9),
    memorization=Rules(Twins(), max_advantage=0.2),
)
CLEAN = {"gov.coverage": 1.0, "gov.violations": 0, "gov.memorization": 0.0}


def gate(mode: str) -> list[dict[str, Any]]:
    return [{"metric": "gov.memorization", "upper": 0.2, "mode": mode, "origin": "policy"}]


def governed(**found: TwinVerdict) -> dict[str, float]:
    return {"gov.coverage": 1.0, "gov.violations": 0, **twin_evidence.memorization(found)}


def twins_of(wins: int, pairs: int = 100, alpha: float = 6e-4) -> TwinVerdict:
    return TwinVerdict(wins, pairs - wins, 0, 0, alpha, 0.2)


# -- gates -----------------------------------------------------------------------------------


def test_the_gates_of_a_policy() -> None:
    coverage = {"metric": "gov.coverage", "lower": 0.9, "mode": "hard", "origin": "policy"}
    violations = {"metric": "gov.violations", "upper": 0.0, "mode": "hard", "origin": "policy"}
    assert metrics.constraints(POLICY) == [coverage, violations, *gate("hard")]
    for asked, mode in (("prune", "hard"), ("stop", "stop"), ("warn", "soft")):
        rules = dataclasses.replace(POLICY.memorization, on_violation=asked)  # type: ignore[type-var]
        found = metrics.constraints(dataclasses.replace(POLICY, memorization=rules))
        assert found[2:] == gate(mode)
    for rules in (None, Rules(None)):
        found = metrics.constraints(dataclasses.replace(POLICY, memorization=rules))
        assert found == [coverage, violations]
    gates = metrics.constraints(POLICY)
    config = {"searcher": {"name": "random", "max_length": {"batches": 9}, "constraints": gates}}
    kept = resolve(config).searcher.constraints
    assert [typed_fields.build(Constraint, one).origin for one in kept] == ["policy"] * 3


def test_gates_do_not_loosen_what_users_ask_for_nor_the_other_way_round() -> None:
    own = {"metric": "ms", "upper": 20}
    strict = {"metric": "gov.coverage", "lower": 0.99, "warmup": {"batches": 9}}
    loose = {"metric": "gov.memorization", "upper": 0.9, "mode": "soft", "tolerance": 9.0}
    found = metrics.constraints(POLICY, [strict, own, loose])
    assert found[0] == own and {one["metric"]: one for one in found} == {
        "ms": own,
        "gov.coverage": {"metric": "gov.coverage", "lower": 0.99, "mode": "hard"}
        | {"origin": "policy"},
        "gov.violations": metrics.constraints(POLICY)[1],
        "gov.memorization": gate("hard")[0],
    }
    assert metrics.constraints(POLICY, found) == [own, *metrics.constraints(POLICY)]
    assert metrics.constraints(None, found) == [own]
    warned = dataclasses.replace(POLICY, memorization=Rules(Twins(), on_violation="warn"))
    harder = {"metric": "gov.memorization", "upper": 0.5, "lower": -0.5, "mode": "stop"}
    [*_, last] = metrics.constraints(warned, [harder])
    assert (last["upper"], last["lower"], last["mode"]) == (0.2, -0.5, "stop")


# -- what is reported ------------------------------------------------------------------------


def test_the_metrics_of_twins() -> None:
    found = twin_evidence.memorization({"b": twins_of(80), "a": twins_of(75), "c": twins_of(50)})
    assert found["gov.memorization"] == found["gov.advantage.b"] == pytest.approx(0.6)
    assert found["gov.pairs.a"] == 100 and found["gov.p.c"] > 0.5
    assert found["gov.bound.b"] == twins_of(80).bounds()[0]
    judged = twins.judge([0.1] * 80 + [3.0] * 20, [1.0] * 100, 6e-4, 0.2)
    assert twin_evidence.memorization({"b": judged}) == {
        name: value for name, value in found.items() if not name.endswith(("a", "c"))
    } | {"gov.tpr.b": 0.8}
    evidence = twin_evidence.by_source(found)
    assert list(evidence) == ["a", "b", "c"] and evidence["b"].upper == twins_of(80).bounds()[1]
    assert evidence["b"].power == twins_of(50).power(0.4) and evidence["b"].tpr is None
    unknown = TwinVerdict(9, 0, 0, 1, 6e-4, 0.2)
    found = twin_evidence.memorization({"a": twins_of(80), "b": unknown})
    assert math.isnan(found["gov.memorization"]) and found["gov.p.b"] == 1
    assert twin_evidence.memorization({}) == {}


def test_evidence_names_the_sources_that_it_is_about() -> None:
    found = twin_evidence.memorization({"b": twins_of(80), "a": twins_of(75), "c": twins_of(50)})
    said = twin_evidence.evidence("gov.memorization", found)
    assert said.startswith("source b: advantage 0.6 of 100 pairs of twins, at least 0.4")
    assert said.endswith("p 5.6e-10, power 0.78, epsilon at least 0.96") and ";" not in said
    assert twin_evidence.evidence("gov.coverage", found) == ""
    found = twin_evidence.memorization(
        {"a": TwinVerdict(0, 0, 0, 100, 6e-4, 0.2), "b": twins_of(80)}
    )
    said = twin_evidence.evidence("gov.memorization", found)
    assert "source a: no advantage is known of 100 pairs of twins" in said and "source b" in said
    by_hand = {"gov.memorization": 0.4, "gov.advantage.a": 0.4, "gov.pairs.a": "many"}
    assert twin_evidence.evidence("gov.memorization", by_hand) == "source a: advantage 0.4"
    assert twin_evidence.evidence("gov.memorization", {"gov.memorization": 0.4}) == ""


def test_the_metrics_and_the_evidence_of_canaries() -> None:
    found = canaries.CanaryVerdict((9.0, 1.0, 5.0), 1000, 0.01, 0.2, (16, 1, 16))
    told = canary_evidence.memorization(
        {"a.b": found, "c": canaries.CanaryVerdict((1.0,), 9, 1e-4, 0.2)}
    )
    assert told["gov.memorization"] == told["gov.exposure_share.a.b"] == found.share > 0.3
    assert (told["gov.exposure.a.b"], told["gov.exposure_at_16.a.b"]) == (5.0, 7.0)
    evidence = canary_evidence.by_source(told)
    assert list(evidence) == ["a.b", "c"] and evidence["a.b"].exposure_at == {"1": 1.0, "16": 7.0}
    assert evidence["c"].exposure_at == {} and evidence["a.b"].exposure_alpha == 0.01
    said = twin_evidence.evidence("gov.memorization", told)
    assert said.startswith("source a.b: exposure 5 bits of 3 canaries (1 at 1 x, 7 at 16 x), 1.443")
    assert "at most 9.97, share 0.357, p 0.0" in said and "at level 0.01" in said
    assert "source c" not in said
    unknown = canaries.CanaryVerdict((math.nan,), 9, 1e-4, 0.2, (1,))
    told = canary_evidence.memorization({"c": unknown})
    assert math.isnan(told["gov.memorization"]) and told["gov.exposure_p.c"] == 1
    said = twin_evidence.evidence("gov.memorization", told)
    assert said == "source c: no exposure is known of 1 canaries, as losses are no numbers"
    assert canary_evidence.memorization({}) == {}


# -- searches --------------------------------------------------------------------------------


def test_a_memorizer_is_pruned_with_evidence_though_its_loss_is_the_best() -> None:
    run = Run(make(constraints=metrics.constraints(POLICY), num_rungs=2, max_trials=3))
    learned = governed(notes=twins_of(75))
    assert run.report(1, 3, loss=0.01, **learned) == ["Stop 1"]
    assert isinstance(stop := run.last[0], Stop)
    assert stop.why == (
        "constraint gov.memorization <= 0.2: gov.memorization is 0.5 (source notes: advantage 0.5"
        " of 100 pairs of twins, at least 0.337 and at most 0.64 at a confidence of 0.95, p"
        " 2.8e-07, power 0.78, epsilon at least 0.7)"
    )
    honest = governed(notes=twins_of(56))
    assert run.report(2, 3, loss=0.5, **honest) == ["Pause 2"]
    assert run.report(3, 3, loss=0.4, **{**CLEAN, "gov.coverage": 0.8}) == ["Stop 3", "Continue 2"]
    assert run.last[0].why == "constraint 0.9 <= gov.coverage: gov.coverage is 0.8"


def test_a_stop_halts_the_experiment_once_for_each_trial() -> None:
    places: dict[str, Any] = {"num_rungs": 2, "max_trials": 3, "max_concurrent_trials": 3}
    run = Run(make(constraints=gate("stop"), **places))
    assert run.report(1, 3, loss=0.1, **governed(notes=twins_of(75))) == ["Pause 1", "Halt"]
    why = run.last[-1].why
    assert why.startswith("trial 1 breaks constraint gov.memorization <= 0.2: gov.memorization is")
    assert "source notes: advantage 0.5 of 100 pairs" in why
    assert isinstance(run.last[-1], Ask) and decode_action(encode_action(run.last[-1])) == Halt(why)
    assert run.report(1, 9, loss=0.1, **governed(notes=twins_of(90))) == []  # its user knows
    assert run.report(2, 3, loss=0.2, **governed(notes=twins_of(50))) == ["Pause 2"]
    unknown = {"gov.memorization": math.nan}
    # behind those that break none, and judged to break it: no number is no evidence of innocence
    assert run.report(3, 3, loss=0.0, **unknown) == ["Pause 3", "Continue 2", "Halt"]
    assert run.tell(SegmentEnd(1, "target")) == []


def test_a_search_without_such_constraints_keeps_its_states() -> None:
    run = Run(make(constraints=gate("hard"), num_rungs=2, max_trials=3))
    assert "shown" not in run.state
    assert type(searcher(resolve({"searcher": {"name": "random"}})).initial()).__name__ != (
        "SupervisedState"
    )
