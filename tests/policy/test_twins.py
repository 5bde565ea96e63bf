"""Twins: coins that are fair and kept, and verdicts that are wrong as rarely as they say."""

from __future__ import annotations

import hashlib
import hmac
import math
from fractions import Fraction

import numpy as np
import pytest

from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.memorization import twin_keys, twins
from hpcdet.policy.memorization.twins import TwinVerdict, alpha_now, form_pairs, verdict
from tests.dose import NULL_SEARCHES, dice

KEY = bytes(range(32))
ALPHA, TRIALS, LOOKS = 0.05, 16, 5


def rng(name: str) -> np.random.Generator:
    return np.random.default_rng(dice(name).randrange(1 << 32))


def level_of(trial: int, look: int, sources: int = 1) -> float:
    """Of a test in a search as planned above."""
    return alpha_now(ALPHA, TRIALS, LOOKS, trial, look, sources)


def tail(wins: int, of: int, p: Fraction) -> Fraction:
    found = (math.comb(of, k) * p**k * (1 - p) ** (of - k) for k in range(wins, of + 1))
    return sum(found, Fraction(0))


# -- coins -----------------------------------------------------------------------------------


def test_coins_are_those_of_the_key_the_source_and_the_pair() -> None:
    message = b"hpcdet-twins/1 coin\0" + b"\0\0\0\1" + b"a" + (7).to_bytes(8, "big")
    assert (
        twin_keys.coin(KEY, "a", 7)
        == hmac.digest(hashlib.sha256(KEY).digest(), message, hashlib.sha256)[0] & 1
    )
    known = "".join(str(twin_keys.coin(KEY, "notes", pair)) for pair in range(24))
    assert known == "110001001000101000000111"  # for ever: a change would train what was withheld
    rows = [
        [twin_keys.coin(key, source, pair) for pair in range(400)]
        for key, source in ((KEY, "a"), (KEY, "b"), (KEY[::-1], "a"), (KEY + b"\0", "a"))
    ]
    for n, row in enumerate(rows):
        assert 140 < sum(row) < 260
        for other in rows[:n]:
            assert 140 < sum(a == b for a, b in zip(row, other, strict=True)) < 260


def test_a_key_is_committed_to_and_revealed() -> None:
    committed = twin_keys.commitment(KEY)
    assert committed.startswith("sha256:") and committed != twin_keys.commitment(KEY + b"\0")
    assert committed != f"sha256:{hashlib.sha256(KEY).hexdigest()}"
    assert twin_keys.reveals(KEY, committed)
    for key, against in ((KEY[::-1], committed), (b"", committed), (KEY, ""), (KEY, "ü")):
        assert not twin_keys.reveals(key, against)
    with pytest.raises(PolicyRefused, match="P10: the key of the twins has 4 bytes"):
        twin_keys.commitment(b"1234")


def test_a_child_of_other_coins_is_void() -> None:
    mine, other = twin_keys.commitment(KEY), twin_keys.commitment(KEY[::-1])
    assert not twin_keys.void(mine, [])
    assert not twin_keys.void(mine, [mine, mine])
    for ancestors in ([other], [mine, other], [""]):
        assert "other twins" in twin_keys.void(mine, ancestors)


# -- pairs -----------------------------------------------------------------------------------


def test_pairs_are_of_equal_records_and_each_is_there_once() -> None:
    draws = rng("pairs")
    records = draws.permutation(5000)[:999] * 3
    strata = draws.integers(0, 7, size=999)
    found = form_pairs("a", records, 300, KEY, 1, strata)
    assert found.members.shape == (300, 2) and len(np.unique(found.members)) == 600
    assert np.isin(found.members, records).all()
    of = dict(zip(records.tolist(), strata.tolist(), strict=True))
    assert all(of[a] == of[b] for a, b in found.members.tolist())
    both = np.sort(np.stack([found.inside, found.outside], axis=1))
    np.testing.assert_array_equal(both, np.sort(found.members))
    assert 90 < (found.outside == found.members[:, 1]).sum() < 210
    again = draws.permutation(999)
    same = form_pairs("a", records[again], 300, KEY, 1, strata[again])
    np.testing.assert_array_equal(same.members, found.members)
    np.testing.assert_array_equal(same.outside, found.outside)
    for other in (
        form_pairs("b", records, 300, KEY, 1, strata),
        form_pairs("a", records, 300, KEY, 2, strata),
    ):
        assert (other.members != found.members).any()
    other = form_pairs("a", records, 300, KEY[::-1], 1, strata)
    np.testing.assert_array_equal(other.members, found.members)
    assert (other.outside != found.outside).any()


def test_pairs_stay_what_they_are() -> None:
    """For ever: numbers of another version of numpy would train what was withheld."""
    found = form_pairs("notes", range(20), 4, KEY, 17)
    assert found.members.tolist() == [[1, 13], [9, 10], [4, 12], [3, 18]]
    assert found.outside.tolist() == [13, 10, 4, 3]


def test_every_record_is_drawn_alike() -> None:
    counts = np.zeros(40)
    for seed in range(1000):
        found = form_pairs("a", range(40), 5, KEY, seed, [0] * 11 + [1] * 29)
        counts[found.members.ravel()] += 1
    assert counts[:11].std() < 40 and counts[11:].std() < 40
    assert abs(counts[:11].mean() - counts[11:].mean()) < 40  # but for the odd one left over


def test_too_few_records_are_refused() -> None:
    assert len(form_pairs("a", range(6), 3, KEY, 1).members) == 3
    with pytest.raises(PolicyRefused, match=r"P14: 4 pairs.* the 6 records of a, which make 3"):
        form_pairs("a", range(6), 4, KEY, 1)
    with pytest.raises(PolicyRefused, match="which make 2"):
        form_pairs("a", range(6), 3, KEY, 1, [0, 0, 0, 1, 1, 1])
    with pytest.raises(PolicyRefused, match="which make 0"):
        form_pairs("a", [], 1, KEY, 1)
    with pytest.raises(ValueError, match="twice"):
        form_pairs("a", [3, 1, 3], 1, KEY, 1)


# -- alpha -----------------------------------------------------------------------------------


def test_the_levels_of_all_tests_add_up_to_alpha_and_not_more() -> None:
    spent = [
        sum(level_of(trial=t, look=n) for t in range(16 << m) for n in range(5 << m))
        for m in range(5)
    ]
    np.testing.assert_allclose(
        spent, 0.05 * np.array([3 / 4, 7 / 8, 15 / 16, 31 / 32, 63 / 64]), rtol=1e-9
    )
    assert level_of(trial=15, look=4) == level_of(trial=0, look=0)
    assert level_of(trial=16, look=4) < level_of(trial=15, look=4)
    assert level_of(trial=0, look=5) < level_of(trial=0, look=4)
    assert level_of(trial=3, look=0, sources=3) * 3 == pytest.approx(level_of(trial=3, look=0))
    assert alpha_now(0.05, 1, 1, 10**9, 10**9) > 0


# -- verdicts --------------------------------------------------------------------------------


def test_tails_and_bounds_are_those_of_the_binomial() -> None:
    for wins, of in ((0, 0), (0, 5), (3, 5), (5, 5), (6, 5), (67, 100), (1100, 2000)):
        exact = tail(wins, of, Fraction(1, 2))
        assert twins.fair_tail(wins, of) == pytest.approx(float(exact), rel=1e-15)
        for p in (Fraction(0), Fraction(1, 1000), Fraction(71, 100), Fraction(1)):
            wanted = float(tail(wins, of, p))
            assert twins.binomial_tail(wins, of, float(p)) == pytest.approx(wanted, rel=1e-9)
    stats = pytest.importorskip("scipy.stats")
    for wins, of in ((0, 9), (1, 9), (9, 9), (71, 100), (600, 1000)):
        low = twins.lower_bound(wins, of, 0.95)
        assert low == pytest.approx(stats.beta.ppf(0.05, wins, of - wins + 1) if wins else 0)


def test_a_verdict_of_numbers_on_paper() -> None:
    found = verdict([1.0] * 71 + [-1.0] * 25 + [0.0] * 4, 1e-3, 0.2)
    assert (found.wins, found.losses, found.ties, found.pairs) == (71, 25, 4, 100)
    assert found.advantage == 0.46
    assert found.p == float(tail(71, 96, Fraction(1, 2)))  # ties are left out
    assert found.violated and found.memorization == 0.46
    low, high = found.bounds()
    assert low == 2 * twins.lower_bound(71, 100, 0.95) - 1 < 0.46
    assert high == 1 - 2 * twins.lower_bound(25, 100, 0.95) > 0.46
    assert math.exp(found.epsilon()) == pytest.approx((1 + low) / (1 - low))
    even = verdict([1.0, -1.0, 0.0], 0.05, 0.2)
    assert (even.advantage, even.memorization, even.epsilon()) == (0, 0, 0)


def test_both_the_size_and_the_chance_decide() -> None:
    assert not TwinVerdict(60, 40, 0, 0, 0.05, 0.2).violated  # no more than is permitted
    assert TwinVerdict(61, 39, 0, 0, 0.05, 0.2).violated
    assert not TwinVerdict(61, 39, 0, 0, 0.01, 0.2).violated
    assert not TwinVerdict(5100, 4900, 0, 0, 0.05, 0.2).violated  # sure, and small
    assert not TwinVerdict(10, 90, 0, 0, 0.05, 0.2).violated


def test_losses_that_are_no_numbers_prove_nothing() -> None:
    infinite = verdict([math.inf, math.inf, -math.inf], 0.05, 0.2)
    assert (infinite.wins, infinite.losses) == (2, 1)
    for bad in ([math.nan], [math.nan] + [1.0] * 99, []):
        found = verdict(bad, 0.05, 0.2)
        assert math.isnan(found.memorization) and math.isnan(found.advantage)
        assert found.p == 1 and not found.violated
        low, high = found.bounds()
        assert -1 <= low <= high <= 1
    judged = twins.judge([1.0, math.nan], [2.0, 1.0], 0.05, 0.2)
    assert math.isnan(judged.advantage) and math.isnan(judged.tpr)
    judged = twins.judge([1.0, math.inf], [2.0, math.inf], 0.05, 0.2)
    assert judged.undecided == 1 and math.isnan(judged.tpr)


def test_the_losses_of_both_members_are_judged() -> None:
    outside, lower = np.arange(200.0), np.arange(200.0) - 1.5
    judged = twins.judge(lower, outside, 0.05, 0.2)
    assert (judged.wins, judged.losses) == (200, 0)
    assert judged.tpr == np.mean(lower < 2)  # two of 200 withheld ones are below 2: 1 %
    assert judged.power() == judged.power(0.4) == twins.power(200, 0.4, 0.05, 0.2)
    assert twins.judge([0.0], [1.0], 0.05, 0.9).power() == twins.power(1, 1.0, 0.05, 0.9)


def test_bounds_hold_as_often_as_they_say() -> None:
    draws = rng("bounds")
    for truth in (0.5, 0.6, 0.95):
        wins = draws.binomial(100, truth, size=400)
        bounds = [TwinVerdict(int(w), 100 - int(w), 0, 0, 0.05, 0).bounds() for w in wins]
        advantage = 2 * truth - 1
        for missed in (
            sum(low > advantage for low, _ in bounds),
            sum(high < advantage for _, high in bounds),
        ):
            assert missed <= 20 + 5 * math.sqrt(20)


# -- campaigns -------------------------------------------------------------------------------


def test_searches_without_memorization_are_pruned_no_more_often_than_alpha() -> None:
    """Sixteen planned trials, sixteen and 32 added later, five looks at each, all independent.

    The coins of a real search are tossed once, so that its looks agree more, and fewer are false.
    """
    draws, false = rng("null"), 0
    levels = [level_of(trial=t, look=n) for t in range(64) for n in range(5)]
    for _ in range(NULL_SEARCHES):
        wins = draws.binomial(100, 0.5, size=len(levels))
        found = (
            TwinVerdict(w, 100 - w, 0, 0, level, 0.2)
            for w, level in zip(wins.tolist(), levels, strict=True)
        )
        false += any(one.memorization > 0 for one in found)
    print(f"{false} of {NULL_SEARCHES} searches prune falsely: {false / NULL_SEARCHES:.4f}")
    exact = false_rate(levels)
    assert exact <= 0.8 * ALPHA
    assert abs(false - exact * NULL_SEARCHES) <= 5 * math.sqrt(exact * NULL_SEARCHES)


def false_rate(levels: list[float]) -> float:
    """Of independent tests at these levels, that any is false, 100 pairs each."""
    sizes = [twins.power(100, 0.0, level, 0.2) for level in levels]
    return 1 - math.prod(1 - one for one in sizes)


def test_coins_of_a_search_tossed_once_for_models_that_have_learned_nothing() -> None:
    """The real design: pairs and coins of a key, and losses that know nothing of the coins."""
    draws, advantages, low, ties = rng("shuffled"), [], 0, 0
    for n in range(300):
        found = form_pairs("a", range(400), 100, draws.bytes(32), n)
        losses = np.round(draws.gamma(2.0, size=400), 1)  # with ties
        seen = verdict(losses[found.outside] - losses[found.inside], 0.05, 0.0)
        ties += seen.ties
        advantages.append(seen.advantage)
        low += seen.p <= 0.05
    assert ties
    assert abs(np.mean(advantages)) < 5 * 0.1 / math.sqrt(300)
    assert 0.08 < np.std(advantages) < 0.12  # twice 1/2 / sqrt(100)
    assert low <= 15 + 5 * math.sqrt(15)


def test_memorization_is_found_in_a_search_of_sixteen_trials() -> None:
    """100 pairs, AUC 0.71, five looks: most memorizers are found at each look."""
    level = level_of(trial=7, look=2)
    exact = twins.power(100, 0.42, level, 0.2)
    assert exact >= 0.8
    wins = rng("power").binomial(100, 0.71, size=1000)
    found = np.mean([TwinVerdict(int(w), 100 - int(w), 0, 0, level, 0.2).violated for w in wins])
    assert found == pytest.approx(exact, abs=5 * math.sqrt(0.16 / 1000))
    assert TwinVerdict(50, 50, 0, 0, level, 0.2).power(0.42) == exact
    assert twins.power(100, 0.0, level, 0.2) < level
    assert twins.power(5, 1.0, level, 0.2) == 0  # too few pairs find nothing
