"""Twins while training: the withheld are in no batch, and no rank or kill changes a verdict."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcdet.data.batch_order import BatchOrder
from hpcdet.data.sample_order import Order, shuffled
from hpcdet.data.sourced import Sourced
from hpcdet.guard.counting.exposure import counted
from hpcdet.guard.counting.row_kinds import RowKinds
from hpcdet.guard.resume.same_tests import same_records
from hpcdet.guard.withheld import WithheldTwins
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy, Memorization, Twins
from hpcdet.policy.memorization.planned_tests import PlannedTests
from hpcdet.policy.memorization.twin_keys import commitment
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import TrialPaths
from tests import ranks
from tests.experiments import same_bits
from tests.guard.test_governed import MODEL, make, policy, state_of
from tests.pytorch.test_bits_local import interrupt, signals

pytestmark = pytest.mark.xdist_group("governed")

KEY = "0123456789abcdef"
PAIRS = 5
DATA = Sourced({"a": range(30), "b": range(20), "c": range(12)})


def watched(**twins: Any) -> CompiledPolicy:
    """The policy of these tests, with twins."""
    rules = Twins(**{"pairs": PAIRS, **twins})
    return policy(memorization=Memorization(twins=rules, max_advantage=0.2))


def made(wanted: CompiledPolicy | None = None, key: str = KEY, data: Any = DATA) -> WithheldTwins:
    order = Order(len(data), 12, lambda epoch: shuffled(len(data), 7, epoch), permutes=True)
    wanted = wanted or watched()
    found = WithheldTwins.of(wanted, key.encode(), order, data.sources, lambda *_: 0.05)
    assert found is not None
    return found


# -- the order ------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [True, False])
def test_the_withheld_are_in_no_batch_and_all_others_in_each_epoch(drop_last: bool) -> None:
    twins = made()
    order = Order(62, 12, lambda e: shuffled(62, 7, e), drop_last, True).without(twins.outside)
    left = sorted(set(range(62)) - set(twins.outside.tolist()))
    assert len(left) == 62 - 3 * PAIRS
    for epoch in range(3):
        assert sorted(order.drawn(epoch).tolist()) == left
    parts = order.slices(0, 0, 1)
    seen = [next(parts) for _ in range(3 * order.epoch_batches)]
    assert not set(np.concatenate([one.whole for one in seen]).tolist()) - set(left)
    assert seen[order.epoch_batches - 1].last
    assert order.epoch_records == (36 if drop_last else 47)
    kinds = RowKinds.of(DATA.sources.mixtures, policy())
    codes = kinds.codes[DATA.sources.codes]
    again = counted(order, codes, kinds, 0, 2 * order.epoch_records)
    by_hand = np.concatenate([order.indices(epoch) for epoch in range(2)])
    assert again.rows == {name: int((codes[by_hand] == n).sum()) for n, name in enumerate("abc")}


def test_batches_of_a_sampler_lose_the_withheld_and_nothing_else() -> None:
    batches = [[0, 1, 2], [3], [4, 5], [6, 7, 8]]
    order = BatchOrder.of(lambda _: batches).without(np.array([1, 3]))
    assert order.epoch_records == 7
    parts = order.slices(0, 0, 1)
    assert [next(parts).whole.tolist() for _ in range(3)] == [[0, 2], [4, 5], [6, 7, 8]]


def test_pairs_follow_from_key_and_data_alone() -> None:
    assert made().digest == made(watched(alpha=0.01)).digest
    assert made().digest != made(key="f" * 16).digest
    twins = made(watched(withhold=("b",), pairs=10))
    assert [one.source for one in twins.pairs] == ["b"]
    assert set(twins.indices.tolist()) == set(range(30, 50)) and len(twins.outside) == 10


def test_too_few_records_and_epochs_of_other_records_are_refused() -> None:
    with pytest.raises(PolicyRefused, match=r"P14.*7 pairs of twins need more than the 12 rec"):
        made(watched(pairs=7))
    draws = Order(8, 4, lambda epoch: np.arange(8) + epoch)
    with pytest.raises(PolicyRefused, match="P14: each epoch draws other records"):
        WithheldTwins.of(watched(), KEY.encode(), draws, DATA.sources, lambda *_: 0.05)


# -- the verdict ----------------------------------------------------------------------------------


def test_a_model_that_knows_its_records_is_found_and_one_that_does_not_is_not() -> None:
    twins = made(watched(withhold=("a",), pairs=15))
    knows = np.where(np.isin(twins.indices, twins.outside), 1.0, 0.0)
    assert twins.judge(knows)["a"].violated and twins.looks == 1
    assert twins.evidence()["twins"]["a"]["tpr"] == 1.0
    ignores = np.arange(len(knows)) / 100
    assert not twins.judge(ignores)["a"].violated
    assert not twins.judge(np.zeros(len(knows)))["a"].violated
    broken = np.where(knows, np.nan, 0.0)
    assert np.isnan(twins.judge(broken)["a"].memorization)
    assert twins.evidence()["twins"]["a"]["advantage"] is None


def test_heirs_of_weights_that_may_have_seen_the_withheld_have_no_number() -> None:
    mine, losses = made(), np.zeros(6 * PAIRS)
    for saved in (None, made(key="e" * 16).encode(), made(watched(pairs=3)).encode()):
        heir = made()
        [check] = same_records(heir, saved, inherited=True)
        assert check.outcome == "recorded" and heir.void
        assert heir.judge(losses) == {} and heir.evidence()["twins"] == {}
        [again] = same_records(later := made(), heir.encode(), inherited=True)
        assert later.void and again.outcome == "recorded"  # and so have theirs
    [check] = same_records(mine, made().encode(), inherited=True)
    assert check.outcome == "passed" and mine.judge(losses)


def test_a_trial_does_not_go_on_where_others_were_withheld() -> None:
    saved = made().encode()
    assert same_records(made(), {**saved, "looks": 4}, inherited=False) == []
    for other in (None, made(key="e" * 16).encode(), made(watched(pairs=3)).encode()):
        with pytest.raises(GovernanceBroken, match="G119"):
            same_records(made(), other, inherited=False)


def test_the_plan_counts_trials_and_looks_of_the_config() -> None:
    def plan(**keys: Any) -> PlannedTests:
        return PlannedTests.of(resolved_config.resolve({"entrypoint": "m:M", **keys}))

    length = {"max_length": {"batches": 100}}
    every = {"min_validation_period": {"batches": 30}}
    assert plan(searcher=length) == PlannedTests(1, 1)
    assert plan(searcher=length, **every) == PlannedTests(1, 4)
    random = {"name": "random", "max_trials": 16, **length}
    assert plan(searcher=random, **every) == PlannedTests(16, 4)
    space = {"a": {"type": "categorical", "vals": [1, 2, 3]}, "b": [4]}
    assert plan(searcher={"name": "grid", **length}, hyperparameters=space).trials == 3
    halving = {"name": "asha", "max_trials": 16, "num_rungs": 3, **length}
    assert plan(searcher=halving).looks == 3


# -- whole trials ---------------------------------------------------------------------------------


def trial_of(
    root: Path,
    world: int,
    wanted: CompiledPolicy | None = None,
    *,
    committed: str = "",
    **changes: Any,
) -> TrialPaths:
    wanted = wanted or watched()
    named = {"policy": "test", "digest": wanted.digest, "twin_key": {"env": "TWINS"}}
    named |= {"commitment": committed}
    return make(root, world, wanted, governance=named, **changes)


def metrics_of(trial: TrialPaths) -> dict[int, dict[str, Any]]:
    found = ranks.result(trial).validations
    return {
        step: {name: one for name, one in metrics.items() if name.startswith("gov.")}
        for step, metrics in found.items()
    }


EVERY: dict[str, Any] = {"min_validation_period": {"batches": 3}}


def test_killed_or_not_on_one_rank_or_two_there_is_one_verdict(tmp_path: Path) -> None:
    alone, both, often = (
        trial_of(tmp_path / name, world, checkpoint_every_s=0.01, **EVERY)
        for name, world in (("alone", 1), ("both", 2), ("often", 2))
    )
    for trial, world in ((alone, 1), (both, 2)):
        attempt = ranks.run(trial, world, TWINS=KEY)
        assert attempt.verdict() is not None, attempt.log()
    found = metrics_of(both)
    assert sorted(found) == [3, 6, 9] and metrics_of(alone) == found
    first = found[3]
    assert first["gov.pairs.a"] == first["gov.pairs.c"] == PAIRS
    assert {"gov.memorization", "gov.advantage.b", "gov.p.b"} <= first.keys()
    told = [line for line in attempt.lines() if line.get("event") == "twins"]
    assert [one["look"] for one in told] == [1, 2, 3] and set(told[0]["twins"]) == set("abc")

    interrupt(often, tmp_path / "1", "train:4", signals(signal.SIGKILL), 2, TWINS=KEY)
    interrupt(often, tmp_path / "2", "train:7", signals(signal.SIGUSR2, 1), 2, TWINS=KEY)
    attempt = ranks.run(often, 2, TWINS=KEY)
    assert attempt.verdict() is not None, attempt.log()
    same_bits(state_of(often)[0], state_of(both)[0])
    assert metrics_of(often) == found
    assert state_of(often)[1]["twins"]["looks"] == 3
    rows = state_of(often)[1]["exposure"]["rows"]
    assert sum(rows.values()) == 47 + 4 * 12 + 11  # an epoch has 47, its fourth batch 11


def test_elastic_training_has_one_verdict_and_one_digest_on_any_number_of_ranks(
    tmp_path: Path,
) -> None:
    exact: dict[str, Any] = {"reproducibility": {"elastic": "exact", "virtual_ranks": 4}, **EVERY}
    slots: dict[str, Any] = {"resources": {"slots_per_trial": 4, "slots_per_node": 4}}
    once, often = (trial_of(tmp_path / name, 4, **exact, **slots) for name in ("once", "often"))
    attempt = ranks.run(once, 1, TWINS=KEY)
    assert attempt.verdict() is not None, attempt.log()
    interrupt(often, tmp_path / "1", "train:4", signals(signal.SIGUSR2, 1), 4, TWINS=KEY)
    attempt = ranks.run(often, 2, TWINS=KEY)
    assert attempt.verdict() is not None, attempt.log()
    same_bits(state_of(often)[0], state_of(once)[0])
    assert metrics_of(often) == metrics_of(once)


def left_and_run_again(tmp_path: Path, kind: str, wanted: CompiledPolicy) -> None:
    """A trial that is told to leave while it measures one kind of records."""
    code = MODEL.replace(
        "    def losses(self, batch):",
        "    def losses(self, batch):\n        if not self.model.training:\n"
        f"            gate('{kind}')",
    )
    once, twice = (trial_of(tmp_path / name, 2, wanted, **EVERY) for name in ("once", "twice"))
    for trial in (once, twice):
        (trial.root.parent.parent / "code" / "model_def.py").write_text(code)
    attempt = ranks.run(once, 2, TWINS=KEY)
    assert attempt.verdict() is not None, attempt.log()
    cut = interrupt(twice, tmp_path / "1", kind, signals(signal.SIGUSR2, 1), 2, TWINS=KEY)
    verdict = cut.verdict()
    assert verdict is not None and verdict.batches == 3, cut.log()
    assert not [line for line in cut.lines() if line.get("event") == kind]
    attempt = ranks.run(twice, 2, TWINS=KEY)
    assert attempt.verdict() is not None, attempt.log()
    same_bits(state_of(twice)[0], state_of(once)[0])
    assert metrics_of(twice) == metrics_of(once)


def test_left_in_the_middle_of_the_twins_the_validation_runs_again(tmp_path: Path) -> None:
    left_and_run_again(tmp_path, "twins", watched())


def test_a_metric_of_single_records_says_what_losses_say(tmp_path: Path) -> None:
    found = []
    for name, metric in (("each", "loss"), ("single", "validation_loss")):
        trial = trial_of(tmp_path / name, 2, watched(metric=metric), until=3)
        attempt = ranks.run(trial, 2, TWINS=KEY)
        assert attempt.verdict() is not None, attempt.log()
        found.append(metrics_of(trial))
    assert found[0] == found[1] and found[0][3]["gov.pairs.a"] == PAIRS


REFUSED = {
    "no key": ({}, "", "", "P10", "TWINS is not set"),
    "short key": ({"TWINS": "1"}, "", "", "P10", "has 1 bytes"),
    "another key": ({"TWINS": "f" * 16}, "", "", "P10", "not the one that the experiment has"),
    "shape": (
        {"TWINS": KEY},
        '[:, 0], y, reduction="none")',
        '[:, 0], y, reduction="none").mean()',
        "P14",
        "losses returned () for",
    ),
    "no metric": (
        {"TWINS": KEY}, "def losses(", "def others(", "memorization.twins.metric: P14", "no metric",
    ),
    "stream": (
        {"TWINS": KEY},
        "        data = pytorch.Sourced(",
        "        return [(torch.zeros(2, 6), torch.zeros(2))]\n        data = pytorch.Sourced(",
        "P14",
        "these data have none",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", REFUSED)
def test_what_has_no_twins_is_refused(how: str, tmp_path: Path) -> None:
    environment, old, new, code, says = REFUSED[how]
    committed = commitment(KEY.encode()) if how == "another key" else ""
    trial = trial_of(tmp_path / "EXP", 1, committed=committed, until=2)
    text = MODEL.replace(old, new) if old else MODEL
    if how == "stream":
        text = text.replace(
            "self.context = context", "self.context = context\n        "
            "context.experimental.disable_dataset_reproducibility_checks()"
        )  # fmt: skip
    (tmp_path / "EXP" / "code" / "model_def.py").write_text(text)
    attempt = ranks.run(trial, 1, **environment)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "norestart", "again ends alike"
    assert code in attempt.log() and says in attempt.log(), attempt.log()


def test_a_policy_without_twins_withholds_nothing() -> None:
    order = Order(62, 12, lambda epoch: shuffled(62, 7, epoch), permutes=True)
    for memory in (None, dataclasses.replace(Memorization(), twins=None)):
        wanted = policy(memorization=memory)
        assert WithheldTwins.of(wanted, b"", order, DATA.sources, lambda *_: 0.05) is None
