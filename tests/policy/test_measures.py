"""Measures against what is known of them: closed forms, and SciPy where it has them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcdet.policy import measures
from tests.dose import dice

nan = math.nan


def rng(name: str) -> np.random.Generator:
    return np.random.default_rng(dice(name).randrange(1 << 32))


# -- entropy of sources ----------------------------------------------------------------------


def test_source_entropy_of_even_one_sided_and_frozen_layers() -> None:
    found = measures.source_entropy([[5.0, 0, 1, 0], [5.0, 7, 3, 0]])
    quarter = -(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75))
    np.testing.assert_allclose(found, [1, 0, quarter, nan], atol=1e-12)
    assert 2 ** found[0] == pytest.approx(2)  # both sources count
    assert measures.source_entropy([[3.0, 0]]).tolist()[0] == 0


def test_expected_entropy_is_missed_as_rarely_as_its_sigmas_say() -> None:
    """Multinomial counts, with shares that are equal, unequal, weighted and denied."""
    draws, units = rng("entropy"), 2000
    mixture = np.array([0.2, 0.5, 0.3])
    weights = np.array([[1, 1, 1, 0.5, 0], [0.4, 1, 0, 0.25, 0], [2 / 3, 1, 0, 1, 0]])
    rows = units * mixture[:, None]
    expected = measures.expected_entropy(rows * weights, rows * weights**2, 3)
    np.testing.assert_allclose(expected.value[[0, 2]], [1, 0], atol=1e-12)
    assert math.isnan(expected.value[4])
    missed = np.zeros(5)
    for _ in range(2000):
        counts = draws.multinomial(units, mixture)
        missed += ~expected.holds(measures.source_entropy(counts[:, None] * weights))
    assert missed.max() <= 2000 * 0.0027 + 5 * math.sqrt(2000 * 0.0027)
    drifted = np.array([500, 800, 700])[:, None] * weights
    held = expected.holds(measures.source_entropy(drifted))
    assert held[[0, 1, 2, 4]].tolist() == [0, 0, 1, 1]  # one source alone stays alone
    assert not expected.holds([1, 1, 0, 1, 0.5])[4]  # learned where nothing may
    assert not expected.holds(np.full(5, nan))[:4].any()


def test_expected_entropy_over_policies_that_change() -> None:
    """Rows that are known, then rows of one mixture and weights, then of others."""
    draws = rng("eras")
    known = np.array([[300.0, 0], [100, 50], [0, 900]])
    eras = [
        (2000, np.array([0.2, 0.5, 0.3]), np.array([[1, 1], [0.5, 0], [1, 0.25]])),
        (500, np.array([0.6, 0.1, 0.3]), np.array([[0, 1], [1, 0.5], [1, 1]])),
    ]
    rows = [(units * mixture[:, None], weights) for units, mixture, weights in eras]
    exposure = known + sum(one * weights for one, weights in rows)
    variance = sum(one * weights**2 for one, weights in rows)
    expected = measures.expected_entropy(exposure, variance, 3)
    missed, off = np.zeros(2), []
    for _ in range(2000):
        seen = known.copy()
        for units, mixture, weights in eras:
            seen += draws.multinomial(units, mixture)[:, None] * weights
        found = measures.source_entropy(seen)
        off.append(np.abs(found - expected.value))
        missed += ~expected.holds(found)
    assert missed.max() <= 2000 * 0.0027 + 5 * math.sqrt(2000 * 0.0027)
    assert (expected.tolerance < 2 * np.quantile(off, 0.9973, axis=0)).all()  # and not too wide
    fixed = measures.expected_entropy(exposure, 0 * variance, 3)
    assert (fixed.tolerance == 1e-9).all()


# -- entropy of spectra ----------------------------------------------------------------------


def test_spectra_of_matrices_with_known_singular_values() -> None:
    flat = measures.spectrum(np.eye(7))
    assert (flat.entropy, flat.squares, flat.stable_rank) == pytest.approx((1, 7, 7))
    one = measures.spectrum(np.ones((5, 2, 3)))
    assert one.sides == (5, 6)
    assert (one.entropy, one.squares, one.stable_rank) == pytest.approx((0, 1, 1), abs=1e-9)
    mixed = measures.spectrum(np.diag([3.0, 1.0]) * 1e200)
    assert mixed.entropy == pytest.approx(-(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25)))
    assert (mixed.squares, mixed.stable_rank) == pytest.approx((100 / 82, 10 / 9))
    assert math.isnan(measures.spectrum(np.zeros((2, 2))).entropy)
    assert measures.spectrum([2.0, 1.0]).squares == pytest.approx(1)  # a bias
    assert measures.spectrum(3.0).entropy == 0
    for bad in ([[nan]], [[math.inf]], np.zeros((0, 3))):
        with pytest.raises(ValueError, match="not finite"):
            measures.spectrum(bad)


@pytest.mark.parametrize("shape", [(60, 90), (90, 60), (8, 200)])
def test_probes_come_near_the_exact_spectrum(shape: tuple[int, int]) -> None:
    weight = rng("probes").normal(size=shape) @ np.diag(1 / np.arange(1, shape[1] + 1) ** 0.5)
    exact = measures.spectrum(weight)
    near = measures.spectrum(weight, max_side=50, probes=400)
    assert (exact.estimator, near.estimator) == ("svd", "probes")
    assert math.isnan(near.entropy)
    assert near.squares == pytest.approx(exact.squares, rel=0.3)
    assert near.stable_rank == pytest.approx(exact.stable_rank, rel=0.02)
    again = measures.spectrum(weight, max_side=50, probes=400)
    assert (again.squares, again.stable_rank) == (near.squares, near.stable_rank)


# -- coverage, conformance -------------------------------------------------------------------


def test_coverage_counts_units_and_says_nothing_of_frozen_layers() -> None:
    found = measures.coverage([[3.0, 0.0, 0.0], [1.0, 2.0, 0.0]], [True, False])
    np.testing.assert_array_equal(found, [0.75, 0, nan])
    exact = measures.coverage(rng("coverage").random((9, 50)), np.ones(9))
    assert (exact == 1).all()  # not 1 but for rounding: policies ask for 1
    assert measures.overall_coverage([30, 10], [False, True]) == 0.25
    assert math.isnan(measures.overall_coverage([0, 0], [True, True]))
    assert (measures.admission(3, 1), measures.admission(0, 5)) == (0.75, 0)
    assert math.isnan(measures.admission(0, 0))


def test_conformance_of_routers_that_are_exact_absent_and_starved() -> None:
    plain = np.array([[1.0, 2, 3], [2, 2, 2], [0, 0, 0]])
    weights = np.array([[1.0, 0, 1], [0.5, 1, 0], [1, 1, 1]])
    sizes = [10, 100, 1000]
    exact = measures.conformance(3 * weights * plain, plain, weights, sizes)
    np.testing.assert_allclose(exact, [1, 1, nan], atol=1e-12)
    leaks = measures.conformance(plain, plain, weights, sizes)
    energy = np.array([0.1, 0.04, 0.009])  # of the first source, per parameter
    wanted = energy * [1, 0, 1]
    off = np.abs(energy / energy.sum() - wanted / wanted.sum()).sum() / 2
    assert leaks[0] == pytest.approx(1 - off)
    starved = measures.conformance(0 * plain, plain, weights, sizes)
    np.testing.assert_array_equal(starved, [0, 0, nan])
    assert measures.overall_conformance(leaks, [1, 0, 9]) == leaks[0]
    assert math.isnan(measures.overall_conformance([nan], [3]))


# -- canaries --------------------------------------------------------------------------------


def test_exposure_by_rank() -> None:
    found = measures.canary_exposure([0.5, 1.0, 2.5, 99, nan], [1.0, 2.0, 3.0])
    np.testing.assert_allclose(found, [2, 1, math.log2(4 / 3), 0, 0])
    assert measures.above_null([math.log2(1024)] * 3, 1023) == pytest.approx(
        1 - 1 / math.log(2) / 10
    )


def test_the_chi_square_tail() -> None:
    stats = pytest.importorskip("scipy.stats")
    for degrees in (2, 4, 20, 200, 2000):
        for factor in (0.01, 0.5, 1, 1.2, 3):
            value = factor * degrees
            wanted = stats.chi2.sf(value, degrees)
            assert measures.chi_square_tail(value, degrees) == pytest.approx(wanted, rel=1e-9)
    assert measures.chi_square_tail(0, 2) == 1
    for degrees in (3, 0):
        with pytest.raises(ValueError, match="even"):
            measures.chi_square_tail(1, degrees)


def test_canaries_that_nobody_trained_have_the_exposure_of_chance() -> None:
    """Losses at random: exposures of mean and deviation 1.443, and p values that are uniform."""
    draws = rng("canaries")
    exposures, low = [], 0
    for _ in range(1000):
        losses = draws.normal(size=(20, 1001))
        found = np.concatenate([measures.canary_exposure(one[:1], one[1:]) for one in losses])
        low += measures.canary_p(found) < 0.05
        exposures += found.tolist()
    assert np.mean(exposures) == pytest.approx(measures.NULL_EXPOSURE, abs=0.05)
    assert np.std(exposures) == pytest.approx(measures.NULL_EXPOSURE, abs=0.06)
    assert 15 <= low <= 85  # 50 expected, five deviations
    learned = measures.canary_exposure(draws.normal(size=20) - 2, draws.normal(size=5000))
    assert measures.canary_p(learned) < 1e-3 and measures.above_null(learned, 5000) > 0.05


# -- membership ------------------------------------------------------------------------------


def test_membership_of_unpaired_records() -> None:
    draws = rng("membership")
    members, others = draws.normal(size=300), draws.normal(size=400)
    aucs = [
        measures.membership_auc(draws.normal(size=30), draws.normal(size=40)) for _ in range(500)
    ]
    assert np.std([one for one, _ in aucs]) == pytest.approx(aucs[0][1], rel=0.2)
    auc, _ = measures.membership_auc(members, others)
    pairs = members[:, None] - others
    assert auc == pytest.approx((pairs < 0).mean() + (pairs == 0).mean() / 2)
    assert measures.membership_auc([1, 2], [1, 2])[0] == 0.5
    rate, note = measures.true_positive_rate([0, 1, 2, 3], np.arange(2, 1002))
    assert (rate, note) == (1.0, "")  # all are below the ten lowest of a thousand
    rate, note = measures.true_positive_rate([0, 1, 2, 3], [1, 2, 3])
    assert rate == 0.25 and "1000 are needed" in note
