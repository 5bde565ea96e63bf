"""Canaries while training: rows of their source in the order, and what their ranks say."""

from __future__ import annotations

import dataclasses
import math
import signal
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import ConcatDataset, Subset

from hpcdet.data.batch_order import BatchOrder
from hpcdet.data.canary_rows import WithCanaries
from hpcdet.data.sample_order import Order, shuffled
from hpcdet.data.sourced import Sourced, record_of
from hpcdet.guard.counting.exposure import counted
from hpcdet.guard.counting.row_kinds import RowKinds
from hpcdet.guard.memorization_tests import MemorizationTests
from hpcdet.guard.planted import PlantedCanaries
from hpcdet.guard.resume.same_tests import same_records, same_tests
from hpcdet.policy import measures
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.policy.compiled import (
    Canaries,
    CompiledPolicy,
    DataSource,
    LayerGroup,
    Memorization,
    Twins,
)
from hpcdet.policy.memorization import canaries, twins
from hpcdet.policy.memorization.planned_tests import PlannedTests
from hpcdet.policy.memorization.twin_keys import commitment
from hpcdet.store.folder.layout import TrialPaths
from tests import TESTS, canaried_model, governed_model, ranks
from tests.dose import NULL_SEARCHES, dice
from tests.experiments import same_bits
from tests.guard.test_governed import MODEL, make, policy, state_of
from tests.guard.test_trial_ledgers import sound
from tests.guard.test_withheld import (
    EVERY,
    KEY,
    PAIRS,
    left_and_run_again,
    metrics_of,
    trial_of,
)
from tests.pytorch.test_bits_local import interrupt, signals

pytestmark = pytest.mark.xdist_group("governed")

RULES = Canaries(per_source=4, space_bits=20, repeats=(1, 3))
ROWS = 2 * (1 + 3)
"""Rows that one source's canaries add to an epoch."""
RANKED = 4 + 1000


def watched(twins: Twins | None = None, **rules: Any) -> CompiledPolicy:
    """The policy of these tests, with canaries of all sources."""
    asked = dataclasses.replace(RULES, **rules)
    return policy(memorization=Memorization(twins, asked, max_advantage=0.2))


def data() -> Sourced:
    return Sourced({name: governed_model.Points(name) for name in "abc"})


def planted(wanted: CompiledPolicy | None = None, key: str = KEY) -> PlantedCanaries:
    found = PlantedCanaries.of(
        wanted or watched(), key.encode(), data().sources, lambda *_: 0.05 / 3
    )
    assert found is not None
    return found


# -- the order ------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [True, False])
def test_canaries_are_in_each_epoch_at_places_of_seed_and_epoch(drop_last: bool) -> None:
    mine = planted()
    assert mine.trained.tolist() == list(range(62, 62 + 3 * ROWS))
    before = Order(62, 12, lambda epoch: shuffled(62, 7, epoch), drop_last, True, "shuffled 7")
    order = before.with_more(mine.trained, 7)
    epochs = [order.drawn(epoch) for epoch in range(3)]
    for epoch, drawn in enumerate(epochs):
        assert sorted(drawn.tolist()) == list(range(62 + 3 * ROWS))
        assert drawn[drawn < 62].tolist() == before.drawn(epoch).tolist()
        assert drawn.tolist() == before.with_more(mine.trained, 7).drawn(epoch).tolist()
    assert epochs[0].tolist() != before.with_more(mine.trained, 8).drawn(0).tolist()
    places = [np.flatnonzero(drawn >= 62).tolist() for drawn in epochs]
    assert places[0] != places[1] != places[2]
    assert order.rule == "" and order.epoch_records == (84 if drop_last else 86)
    assert order.whole is not drop_last
    parts = order.slices(0, 0, 1)
    seen = np.concatenate([next(parts).whole for _ in range(order.epoch_batches)])
    assert seen.tolist() == epochs[0][: order.epoch_records].tolist()


def test_an_order_with_canaries_has_them_anywhere_alike() -> None:
    """Each place of 86 is a canary's as often as any other: chi-square, 85 degrees of freedom."""
    mine, epochs = planted().trained, 2000
    order = Order(62, 12, lambda epoch: np.arange(62)).with_more(mine, 3)
    found = sum((order.drawn(epoch) >= 62).astype(np.int64) for epoch in range(epochs))
    assert isinstance(found, np.ndarray)
    share = len(mine) / 86
    square = float(((found - epochs * share) ** 2).sum() / (epochs * share * (1 - share)))
    assert abs(square - 85) < 5 * math.sqrt(2 * 85)


def test_batches_of_a_sampler_get_canaries_and_lose_nothing() -> None:
    batches = [[0, 1, 2], [3], [4, 5]]
    order = BatchOrder.of(lambda _: batches).with_more(np.array([6, 7, 8, 9]), 1)
    assert order.epoch_records == 10
    for epoch in range(4):
        got = order.batches(epoch)
        assert [[one for one in batch if one < 6] for batch in got] == batches
        assert sorted(np.concatenate(got).tolist()) == list(range(10))
    assert len({str(order.batches(epoch)) for epoch in range(4)}) > 1


def test_twins_are_never_canaries_and_both_are_in_one_order() -> None:
    wanted, samples = watched(Twins(pairs=PAIRS)), data()
    order = Order(62, 12, lambda epoch: shuffled(62, 7, epoch), permutes=True)
    tests = MemorizationTests.of(wanted, KEY.encode(), order, samples.sources, lambda *_: 0.05)
    assert tests.twins is not None and tests.canaries is not None
    assert tests.twins.indices.max() < 62 <= tests.canaries.indices.min()
    whole = order.without(tests.twins.outside).with_more(tests.canaries.trained, 7)
    rows = WithCanaries.of(samples, samples.sources, tests.canaries.blocks)
    kinds = RowKinds.of(rows.sources.mixtures, wanted)
    found = counted(whole, kinds.codes[rows.sources.codes], kinds, 0, whole.epoch_records)
    sizes = {"a": 30, "b": 20, "c": 12}
    assert found.rows == {name: size - PAIRS + ROWS for name, size in sizes.items()}
    assert len(tests.indices) == 3 * 2 * PAIRS + 3 * RANKED


# -- the rows -------------------------------------------------------------------------------------


def test_rows_behind_the_data_are_made_of_their_codes() -> None:
    mine, samples = planted(), data()
    rows = WithCanaries.of(samples, samples.sources, mine.blocks)
    assert len(rows) == 62 + 3 * ROWS + 3 * RANKED == len(rows.sources)
    assert not hasattr(rows, "__getitems__") and rows[3][1] == samples[3][1]
    drawn = canaries.draw(KEY.encode(), "b", 4, 20, (1, 3))
    made = governed_model.Points("b").canary_record(int(drawn.inserted[1]))
    trained = [rows[62 + ROWS + place][0] for place in range(ROWS)]
    assert sum(torch.equal(one, made[0]) for one in trained) == 3
    names = [rows.sources.mixtures[code] for code in rows.sources.codes.tolist()]
    assert names[62 : 62 + 3 * ROWS] == [("a",)] * ROWS + [("b",)] * ROWS + [("c",)] * ROWS
    codes = [one.tolist() for _, one in mine.blocks[3:]]
    assert all(one == sorted(one) and len(set(one)) == RANKED for one in codes)
    assert torch.equal(rows[int(mine.indices[0])][0], rows._canary(62 + 3 * ROWS)[0])
    with pytest.raises(IndexError):
        rows[len(rows)]
    assert record_of(samples, 61) is None  # and no canary is a record of a manifest


class Together(governed_model.Points):
    """A data set that fetches the samples of a batch together."""

    fetched: ClassVar[list[list[int]]] = []

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.fetched.append(list(indices))
        return [self[index] for index in indices]


def test_data_that_fetch_a_batch_together_still_do() -> None:
    class All(Together):
        def __len__(self) -> int:
            return 30

    whole, parts = All("a"), data()
    parts.parts["a"] = whole
    rows = WithCanaries.of(whole, parts.sources.at(range(30)), [])
    assert len(rows.__getitems__([4, 2])) == 2
    assert whole.fetched[-1] == [4, 2]
    subset = WithCanaries.of(Subset(parts, range(62)), parts.sources, planted().blocks)
    assert not hasattr(subset, "__getitems__") and subset[4][1] == parts[4][1]


def test_data_sets_around_the_parts_keep_what_makes_canaries() -> None:
    one, other = data(), Sourced({"d": governed_model.Points("a")})
    codes = np.array([12])
    wrapped: list[Any] = [Subset(one, [5]), ConcatDataset([other, one])]
    for around in wrapped:
        rows = WithCanaries.of(around, one.sources.at([0] * len(around)), [("b", codes)])
        assert torch.equal(rows[len(around)][0], governed_model.Points("b").canary_record(12)[0])
    inside = Sourced({"b": Subset(governed_model.Points("b"), [1])})  # type: ignore[arg-type]
    assert len(WithCanaries.of(inside, inside.sources, [("b", codes)])[1]) == 2


def test_a_source_that_makes_no_canaries_is_refused_by_name() -> None:
    bare = Sourced({"a": governed_model.Points("a"), "b": range(20)})
    with pytest.raises(PolicyRefused, match="P14: nothing makes canaries of source 'b'") as bad:
        WithCanaries.of(bare, bare.sources, [("b", np.array([1]))])
    assert "canary_record(code)" in bad.value.hint
    named = planted(watched(sources=("a",)))
    assert {source for source, _ in named.blocks} == {"a"}
    assert len(WithCanaries.of(bare, bare.sources, named.blocks)) == 50 + ROWS + RANKED


@pytest.mark.parametrize("workers", [0, 1])
def test_a_canary_that_no_batch_can_hold_is_refused_by_name(workers: int, tmp_path: Path) -> None:
    """Wherever the batch was made; the code's own error stands beside it."""
    made = "return torch.from_numpy(draw.standard_normal(6, dtype=np.float32))"
    code = MODEL.replace(made, made.replace("(6,", "(6 + (self.x[0, 0] == BAD),"))
    code = code.replace("class First:", "BAD = Points('b').x[0, 0]\n\n\nclass First:")
    trial = trial_of(tmp_path / "EXP", 1, watched())
    (tmp_path / "EXP" / "code" / "model_def.py").write_text(code)
    attempt = ranks.run(trial, 1, TWINS=KEY, WORKERS=str(workers))
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "norestart", attempt.log()
    assert "P14: the canary " in attempt.log() and "of source 'b' cannot be" in attempt.log()
    assert "stack expects each tensor to be equal size" in attempt.log()


def test_other_errors_of_batches_with_canaries_stay_as_they_are() -> None:
    rows = WithCanaries.of(data(), data().sources, planted().blocks)

    def collated(indices: Any) -> Any:
        raise KeyError(indices[0])

    rows.refuse_unlike(collated)


def test_a_source_of_which_a_subset_has_no_record_has_no_canaries() -> None:
    some = data().sources.at([*range(30), *range(50, 62)])
    asked = PlantedCanaries.of(watched(), KEY.encode(), some, lambda *_: 0.05)
    assert asked is not None and [one.source for one in asked.drawn] == ["a", "c"]


# -- the verdict ----------------------------------------------------------------------------------


def losses_of(mine: PlantedCanaries, known: str, rest: np.ndarray) -> np.ndarray:
    """Losses of what ``indices`` names: below all others for the canaries of one source."""
    found = rest.copy()
    begin = 0
    for one in mine.drawn:
        if one.source == known:
            found[begin + np.searchsorted(one.ranked, one.inserted)] -= 100
        begin += len(one.ranked)
    return found


def test_a_model_that_knows_its_canaries_is_found_and_one_that_does_not_is_not() -> None:
    mine = planted()
    draws = np.random.default_rng(5).normal(size=len(mine.indices))
    found = mine.judge(losses_of(mine, "b", draws))
    assert found["b"].violated and found["b"].mean == found["b"].most == math.log2(1001)
    assert not found["a"].violated and not found["c"].violated and mine.looks == 1
    told = mine.evidence()
    assert told["look"] == 1 and set(told["canaries"]) == set("abc")
    assert told["canaries"]["b"]["by_repeats"] == {"1": math.log2(1001), "3": math.log2(1001)}
    assert told["canaries"]["b"]["references"] == 1000 and told["canaries"]["b"]["violated"]
    draws[0] = math.nan
    assert math.isnan(mine.judge(draws)["a"].memorization)
    assert mine.evidence()["canaries"]["a"]["exposure"] is None


def test_the_greatest_of_twins_and_canaries_counts_and_one_level_is_shared() -> None:
    levels: list[tuple[int, int]] = []

    def level(look: int, tested: int) -> float:
        levels.append((look, tested))
        return PlannedTests(16, 5).level(0.05, 1, look, tested)

    wanted = watched(Twins(pairs=PAIRS, withhold=("a",)))
    order = Order(62, 12, lambda epoch: shuffled(62, 7, epoch), permutes=True)
    tests = MemorizationTests.of(wanted, KEY.encode(), order, data().sources, level)
    assert tests.canaries is not None
    draws = np.random.default_rng(6).normal(size=len(tests.indices))
    draws[2 * PAIRS :] = losses_of(tests.canaries, "c", draws[2 * PAIRS :])
    found = tests.judge(draws)
    assert levels == [(0, 4), (0, 4)]  # one source with twins, three with canaries
    assert found["gov.memorization"] == found["gov.exposure_share.c"] > 0.8
    assert found["gov.exposure_alpha.a"] == pytest.approx(0.75 * 0.05 / (16 * 5 * 4))
    assert found["gov.canaries.b"] == 4 and found["gov.exposure_at_3.c"] == math.log2(1001)
    assert {kind for kind, _ in tests.evidence()} == {"twins", "canaries"} == set(tests.encode())
    assert "gov.advantage.a" in found and tests.metric == "loss"
    draws[-1] = math.nan
    assert math.isnan(tests.judge(draws)["gov.memorization"])
    alone = MemorizationTests(canaries=planted())
    assert bool(alone) and not MemorizationTests() and set(alone.encode()) == {"canaries"}


def test_levels_of_all_tests_of_a_search_add_up_to_less_than_alpha() -> None:
    """Twins and canaries of three sources each, of planned and of later trials and looks."""
    planned, total = PlannedTests(4, 3), 0.0
    for trial in range(1, 65):
        for look in range(24):
            total += 6 * planned.level(0.05, trial, look, 6)
    assert 0.75 * 0.05 < total < 0.05


def test_null_searches_with_twins_and_canaries_prune_as_rarely_as_alpha_says() -> None:
    """Whatever the exposure: what is permitted is 0, so that the levels alone decide."""
    trials, looks, searches = 8, 4, NULL_SEARCHES // 20
    draws = np.random.default_rng(dice("null canaries").randrange(1 << 32))
    level = PlannedTests(trials, looks).level
    false = 0
    for _ in range(searches):
        found = False
        for trial in range(1, trials + 1):
            for look in range(looks):
                alpha = level(0.05, trial, look, 2)
                losses, differences = draws.normal(size=1020), draws.normal(size=100)
                found |= canaries.judge(losses[:20], losses[20:], alpha, 0.0).violated
                found |= twins.verdict(differences, alpha, 0.0).violated
        false += found
    print(f"{false} of {searches} searches have a false verdict")
    assert twins.binomial_tail(false, searches, 0.05) > 1e-6


def test_heirs_of_other_keys_and_of_other_canaries_have_no_number() -> None:
    draws = np.zeros(len(planted().indices))
    others = (None, planted(key="e" * 16).encode(), planted(watched(repeats=(2,))).encode())
    for saved in others:
        heir = planted()
        [check] = same_records(heir, saved, inherited=True)
        assert check.outcome == "recorded" and "canaries" in heir.void
        assert heir.judge(draws) == {} and heir.evidence()["canaries"] == {}
        [again] = same_records(later := planted(), heir.encode(), inherited=True)
        assert later.void and again.outcome == "recorded"  # and so have theirs
        with pytest.raises(GovernanceBroken, match=r"G119: .*other canaries"):
            same_records(planted(), saved, inherited=False)
    [check] = same_records(mine := planted(), planted().encode(), inherited=True)
    assert check.outcome == "passed" and mine.judge(draws)
    tests = MemorizationTests(canaries=planted())
    state = {"canaries": {**planted().encode(), "looks": 4}}
    assert same_tests(tests, state, inherited=False) == []
    assert tests.canaries is not None and tests.canaries.looks == 4


# -- models without memorization -------------------------------------------------------------------


def small(**rules: Any) -> CompiledPolicy:
    memory = Memorization(None, Canaries(**{"repeats": (1, 16), **rules}), max_advantage=0.2)
    layers, sources = (LayerGroup("all", ""),), (DataSource("a"), DataSource("b"))
    rows = ((1.0,), (0.0,))
    return CompiledPolicy("t", 1, "sha256:00", layers, sources, rows, memorization=memory)


@pytest.mark.parametrize("kind", ["classes", "tokens"])
def test_exposures_of_untrained_models_follow_the_null(kind: str) -> None:
    """Kolmogorov and Smirnov's distance to an Exponential, and the sum by its chi-square."""
    points: Any = canaried_model.Clusters if kind == "classes" else canaried_model.Sentences
    samples, found = Sourced({"a": points(1)}), list[float]()
    for number in range(15):
        mine = PlantedCanaries.of(
            small(space_bits=23), number.to_bytes(32, "big"), samples.sources, lambda *_: 0.01
        )
        assert mine is not None
        rows = WithCanaries.of(samples, samples.sources, mine.blocks)
        chosen = [rows[int(index)] for index in mine.indices]
        x, y = torch.stack([one[0] for one in chosen]), torch.tensor([one[1] for one in chosen])
        torch.manual_seed(number)
        with torch.no_grad():
            if kind == "classes":
                model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 10))
                each = functional.cross_entropy(model(x), y, reduction="none")
            else:
                logits = canaried_model.Characters()(x).transpose(1, 2)
                each = functional.cross_entropy(logits, x, reduction="none").sum(1)
        [verdict] = mine.judge(each.double().numpy()).values()
        assert not verdict.violated
        found += verdict.exposures
    ordered = np.sort(found)
    expected = 1 - np.exp(-ordered / measures.NULL_EXPOSURE)
    distance = np.abs(expected - np.arange(1, len(ordered) + 1) / len(ordered)).max()
    assert distance < 1.95 / math.sqrt(len(ordered))  # exceeded once in 1,000
    assert 1e-3 < measures.canary_p(found) < 1 - 1e-3


# -- whole trials ---------------------------------------------------------------------------------


def canaried(root: Path, kind: str, until: int, **rules: Any) -> TrialPaths:
    wanted = small(**rules)
    named = {"policy": "t", "digest": wanted.digest, "twin_key": {"env": "TWINS"}}
    named |= {"commitment": commitment(KEY.encode())}
    changes: dict[str, Any] = {"entrypoint": "model_def:Canaried", "until": until}
    changes["min_validation_period"] = {"batches": until // 2}
    hparams = {"global_batch_size": 40, "kind": kind}
    trial = make(root, 1, wanted, hparams, governance=named, **changes)
    text = (TESTS / "canaried_model.py").read_text()
    (root / "code" / "model_def.py").write_text(text)
    return trial


@pytest.mark.parametrize(("kind", "until"), [("classes", 240), ("tokens", 60)])
def test_what_is_trained_often_is_known_and_what_may_change_nothing_is_not(
    kind: str, until: int, tmp_path: Path
) -> None:
    trial = canaried(tmp_path / "EXP", kind, until, space_bits=23)
    attempt = ranks.run(trial, 1, TWINS=KEY)
    assert attempt.verdict() is not None, attempt.log()
    found = metrics_of(trial)[until]
    print({name: round(value, 4) for name, value in found.items()})
    assert found["gov.exposure_at_16.a"] > found["gov.exposure_at_1.a"] + 1
    assert found["gov.exposure_at_16.a"] > 2.5 * measures.NULL_EXPOSURE
    alpha = found["gov.exposure_alpha.a"]  # two looks at two sources
    assert found["gov.exposure_p.a"] < alpha == pytest.approx(0.75 * 0.05 / 4)
    # trained as often, but nothing of them changes the model
    assert found["gov.exposure_p.b"] > 0.001 and found["gov.exposure_share.b"] < 0.1
    assert found["gov.memorization"] == found["gov.exposure_share.a"] > 0.2
    told = [line for line in attempt.lines() if line.get("event") == "canaries"]
    assert [one["look"] for one in told] == [1, 2] and told[1]["canaries"]["a"]["violated"]
    assert not told[1]["canaries"]["b"]["violated"]
    rows = state_of(trial)[1]["exposure"]["rows"]
    epochs, more = divmod(until, 19)  # an epoch has 2 x (200 + 170) rows, its last batch 20
    assert rows["a"] + rows["b"] == epochs * 740 + more * 40 and abs(rows["a"] - rows["b"]) < 40


def test_killed_or_not_on_one_rank_or_two_there_is_one_verdict(tmp_path: Path) -> None:
    wanted = watched(Twins(pairs=PAIRS))
    alone, both, often = (
        trial_of(tmp_path / name, world, wanted, checkpoint_every_s=0.01, **EVERY)
        for name, world in (("alone", 1), ("both", 2), ("often", 2))
    )
    for trial, world in ((alone, 1), (both, 2)):
        attempt = ranks.run(trial, world, TWINS=KEY)
        assert attempt.verdict() is not None, attempt.log()
    found = metrics_of(both)
    assert sorted(found) == [3, 6, 9]
    for step, values in metrics_of(alone).items():
        assert found[step] == pytest.approx(values, abs=0.05), "but for rounding of the losses"
    assert found[3]["gov.canaries.a"] == 4 and found[3]["gov.pairs.a"] == PAIRS
    told = [line["event"] for line in attempt.lines() if line.get("event") in ("twins", "canaries")]
    assert told == ["twins", "canaries"] * 3

    interrupt(often, tmp_path / "1", "train:4", signals(signal.SIGKILL), 2, TWINS=KEY)
    interrupt(often, tmp_path / "2", "train:7", signals(signal.SIGUSR2, 1), 2, TWINS=KEY)
    attempt = ranks.run(often, 2, TWINS=KEY)
    assert attempt.verdict() is not None, attempt.log()
    same_bits(state_of(often)[0], state_of(both)[0])
    assert metrics_of(often) == found
    state = state_of(often)[1]
    assert state["canaries"]["looks"] == state["twins"]["looks"] == 3
    first = sound(often).ledgers[0].records
    [admitted] = [one.body for one in first if one.type == "source_admit"]
    assert admitted["canaries"] == dict.fromkeys("abc", ROWS)
    assert admitted["data"]["examples"] == {"a": 30, "b": 20, "c": 12}  # those of manifests alone
    epoch = 62 - 3 * PAIRS + 3 * ROWS
    assert sum(state["exposure"]["rows"].values()) == epoch + 3 * 12  # 71: the last batch has 11


def test_elastic_training_has_one_verdict_and_one_digest_on_any_number_of_ranks(
    tmp_path: Path,
) -> None:
    exact: dict[str, Any] = {"reproducibility": {"elastic": "exact", "virtual_ranks": 4}, **EVERY}
    slots: dict[str, Any] = {"resources": {"slots_per_trial": 4, "slots_per_node": 4}}
    once, often = (
        trial_of(tmp_path / name, 4, watched(), **exact, **slots) for name in ("once", "often")
    )
    attempt = ranks.run(once, 1, TWINS=KEY)
    assert attempt.verdict() is not None, attempt.log()
    interrupt(often, tmp_path / "1", "train:4", signals(signal.SIGUSR2, 1), 4, TWINS=KEY)
    attempt = ranks.run(often, 2, TWINS=KEY, WORKERS="1")
    assert attempt.verdict() is not None, attempt.log()
    same_bits(state_of(often)[0], state_of(once)[0])
    assert metrics_of(often) == metrics_of(once)


def test_left_in_the_middle_of_the_canaries_the_validation_runs_again(tmp_path: Path) -> None:
    left_and_run_again(tmp_path, "canaries", watched())


REFUSED = {
    "no maker": ("def canary_record(", "def another(", "nothing makes canaries of source 'a'"),
    "no metric": ("def losses(", "def others(", "memorization.canaries"),
    "stream": (
        "        data = pytorch.Sourced(",
        "        return [(torch.zeros(2, 6), torch.zeros(2))]\n        data = pytorch.Sourced(",
        "these data have none",
    ),
}


@pytest.mark.parametrize("how", REFUSED)
def test_data_that_cannot_have_canaries_are_refused(how: str, tmp_path: Path) -> None:
    old, new, says = REFUSED[how]
    trial = trial_of(tmp_path / "EXP", 1, watched(), until=2)
    text = MODEL.replace(old, new).replace(
        "self.context = context",
        "self.context = context\n        "
        "context.experimental.disable_dataset_reproducibility_checks()",
    )
    (tmp_path / "EXP" / "code" / "model_def.py").write_text(text)
    attempt = ranks.run(trial, 1, TWINS=KEY)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict in ("fail", "norestart"), attempt.log()
    assert says in attempt.log(), attempt.log()
