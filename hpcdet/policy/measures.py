"""Measures of governed training: entropies, coverage, conformance, canaries, membership.

Pure functions of numbers. What has no value, as of a layer that nothing may change, is NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

NULL_EXPOSURE = 1 / math.log(2)
"""Mean, and standard deviation, of the exposure of a canary that was not trained, in bits."""
FEW_OTHERS = 1000
"""Below so many records that were not trained, a true positive rate at 1 % rests on a few."""


# -- entropy of sources ----------------------------------------------------------------------


def source_entropy(exposure: ArrayLike) -> Floats:
    """How evenly each layer's exposure comes from the sources, float64[layers], in [0, 1].

    ``-sum(pi log pi) / log S`` with ``pi`` the share of each of S sources: 0 if all is of one
    source, 1 if all have the same share; 0 where there is one source only. ``S ** entropy`` is an
    effective number of sources, in [1, S]. NaN for a layer without exposure.

    Args:
        exposure: units times weight, float[sources, layers], each at least 0.
    """
    shares = _shares(exposure)
    bits = np.where(shares > 0, -shares * np.log(np.where(shares > 0, shares, 1.0)), 0.0)
    most = math.log(len(shares)) if len(shares) > 1 else 1.0
    found: Floats = np.where(np.isnan(shares).any(axis=0), np.nan, bits.sum(axis=0) / most)
    return np.clip(found, 0.0, 1.0)


@dataclass(frozen=True)
class ExpectedEntropy:
    """The source entropy of each layer that policies and mixtures give.

    Attributes:
        value: float64[layers], in [0, 1]; NaN where nothing may change the layer.
        tolerance: float64[layers], how far a value may be off by chance, at least 1e-9.
    """

    value: Floats
    tolerance: Floats

    def holds(self, observed: ArrayLike) -> NDArray[np.bool_]:
        """Which layers are within their tolerance; NaN is met by NaN only. bool[layers]."""
        seen = np.asarray(observed, dtype=np.float64)
        off = np.abs(seen - self.value)
        return np.where(np.isnan(self.value), np.isnan(seen), off <= self.tolerance)


def expected_entropy(exposure: ArrayLike, variance: ArrayLike, sigmas: float) -> ExpectedEntropy:
    """The ``source_entropy`` of an exposure that is expected, and how far chance may take it.

    Counts of rows vary as Poisson's, so the shares pi of a layer vary as ``_variances`` says, and
    the entropy by the delta method: to first order by a normal variable, to second order by half a
    weighted chi-square with S - 1 degrees of freedom, all there is at equal shares. ``tolerance``
    is ``sigmas`` deviations of the first, and as rare a value of the second. Counts of a total
    that is known, and epochs, drawn without replacement, vary less.

    Args:
        exposure: float[sources, layers], each at least 0: of rows n drawn from shares p under
            weights M, ``n p M``, and the sum over policies where they change.
        variance: of it, float[sources, layers]: ``n p M^2``; 0 of rows that were not drawn.
        sigmas: standard deviations that are tolerated.
    """
    planned = np.asarray(exposure, dtype=np.float64)
    shares, value, total = _shares(planned), source_entropy(planned), planned.sum(axis=0)
    squared = np.asarray(variance, dtype=np.float64) / np.where(total > 0, total, 1) ** 2
    logs = np.log(np.where(shares > 0, shares, 1.0))
    first = np.sqrt((squared * (logs - (shares * logs).sum(axis=0)) ** 2).sum(axis=0))
    degrees = np.maximum((shares > 0).sum(axis=0) - 1, 1)
    second = (_variances(shares, squared) / np.where(shares > 0, shares, np.inf)).sum(axis=0) / 2
    rare = (np.sqrt(degrees - 1) + sigmas) ** 2 / degrees
    most = math.log(len(shares)) if len(shares) > 1 else 1.0
    return ExpectedEntropy(value, np.nan_to_num((sigmas * first + rare * second) / most) + 1e-9)


def _variances(shares: Floats, squared: Floats) -> Floats:
    """Variances of each source's share of a layer; ``squared``: of its exposure over the total."""
    others = squared.sum(axis=0) - squared
    found: Floats = squared * (1 - shares) ** 2 + shares**2 * others
    return found


def _shares(amounts: ArrayLike) -> Floats:
    """Each column over its sum; NaN where that is 0."""
    found = np.asarray(amounts, dtype=np.float64)
    total = found.sum(axis=0)
    return found / np.where(total > 0, total, np.nan)


# -- entropy of spectra ----------------------------------------------------------------------


@dataclass(frozen=True)
class Spectrum:
    """How evenly a weight's singular values are spread: a fingerprint, to notice drift by.

    It says nothing of memorization: labels at random, learned by heart, move it less than healthy
    regularisation does.

    Attributes:
        estimator: ``svd``, exact; ``probes``: of ``squares`` alone, from random vectors.
        sides: rows and columns of the weight as a matrix.
        entropy: ``-sum(p log p) / log r`` of the r singular values' shares p, in [0, 1] (Roy and
            Vetterli, "The effective rank", 2007); NaN as of ``probes``, or where all are 0.
        squares: participation ratio ``|W|^4 / |W'W|^2`` (Frobenius) in [1, r]: the effective
            number of squared singular values; NaN where all are 0.
        stable_rank: ``|W|_F^2 / |W|_2^2`` in [1, r]; NaN where all are 0.
    """

    estimator: str
    sides: tuple[int, int]
    entropy: float
    squares: float
    stable_rank: float


def spectrum(weight: ArrayLike, max_side: int = 1024, probes: int = 32, seed: int = 7) -> Spectrum:
    """Spectral entropy, participation ratio and stable rank of a weight.

    Exact where both sides are at most ``max_side``. Else ``|W'W|^2 = E |W'W z|^2`` over standard
    normal ``z`` gives the participation ratio, its relative error being of the order
    ``sqrt(2 / probes)``, and power iteration from the same vectors the largest singular value.

    Args:
        weight: float[out, ...]: all but the first axis become columns; a vector is one column.
        max_side: the largest side of an exact decomposition.
        probes: random vectors.
        seed: of them.

    Raises:
        ValueError: the weight is empty, or has an element that is not finite.
    """
    whole = np.asarray(weight, dtype=np.float64)
    if not whole.size or not np.isfinite(whole).all():
        raise ValueError("a weight has no elements, or some that are not finite")
    matrix = whole.reshape(len(whole), -1) if whole.ndim else whole.reshape(1, 1)
    sides = matrix.shape[0], matrix.shape[1]
    largest = float(np.abs(matrix).max())
    if largest == 0:
        estimator = "svd" if max(sides) <= max_side else "probes"
        return Spectrum(estimator, sides, math.nan, math.nan, math.nan)
    matrix = matrix / largest  # no square overflows
    if max(sides) <= max_side:
        return _exact(matrix, sides)
    return _probed(matrix, sides, probes, seed)


def _exact(matrix: Floats, sides: tuple[int, int]) -> Spectrum:
    values = np.linalg.svd(matrix, compute_uv=False)
    shares = values[values > 0] / values.sum()
    nats = float(-(shares * np.log(shares)).sum())
    entropy = min(1.0, max(0.0, nats / math.log(len(values)))) if len(values) > 1 else 0.0
    squares = values**2
    ratio = float(squares.sum() ** 2 / (squares**2).sum())
    return Spectrum("svd", sides, entropy, ratio, float(squares.sum() / squares[0]))


def _probed(matrix: Floats, sides: tuple[int, int], probes: int, seed: int) -> Spectrum:
    if sides[0] < sides[1]:
        matrix = matrix.T  # the same singular values, and shorter probes
    shape = matrix.shape[1], probes
    images = matrix.T @ (matrix @ np.random.Generator(np.random.Philox(seed)).normal(size=shape))
    total, rank = float((matrix**2).sum()), float(min(sides))
    ratio = total**2 / (float((images**2).sum()) / probes)
    for _ in range(_POWER_ITERATIONS):
        images = matrix.T @ (matrix @ np.linalg.qr(images)[0])
    top = float(np.linalg.norm(images, 2))  # of W'W on the last orthonormal vectors
    return Spectrum("probes", sides, math.nan, min(rank, max(1.0, ratio)), max(1.0, total / top))


_POWER_ITERATIONS = 8


# -- coverage --------------------------------------------------------------------------------


def coverage(exposure: ArrayLike, complete: ArrayLike) -> Floats:
    """Share of each layer's exposure from sources with complete chains, float64[layers], in [0, 1].

    NaN for a layer without exposure.

    Args:
        exposure: float[sources, layers], each at least 0.
        complete: bool[sources].
    """
    found = np.asarray(exposure, dtype=np.float64)
    held = found[np.asarray(complete, dtype=bool)].sum(axis=0)
    total = found.sum(axis=0)
    share: Floats = held / np.where(total > 0, total, np.nan)
    return share


def overall_coverage(units: ArrayLike, complete: ArrayLike) -> float:
    """Share of all units from sources with complete chains, in [0, 1]; NaN without units.

    Args:
        units: consumed of each source, float[sources].
        complete: bool[sources].
    """
    return float(coverage(np.asarray(units, dtype=np.float64)[:, None], complete)[0])


def admission(admitted: float, rejected: float) -> float:
    """Share of records that were admitted, in [0, 1]; NaN without any.

    Beside coverage, always: a policy that drops what it does not know has a coverage of 1.
    """
    total = admitted + rejected
    return admitted / total if total else math.nan


# -- conformance -----------------------------------------------------------------------------


def conformance(
    routed: ArrayLike, plain: ArrayLike, weights: ArrayLike, parameters: ArrayLike
) -> Floats:
    """How far sources change layers in the proportion that the policy gives, float64[sources].

    ``1 - sum |p - q| / 2`` in [0, 1] of the observed shares p of the mean squared gradient per
    parameter, and the expected ones q, those of the gradient without routing times ``M^2``. An
    exact router has 1 up to rounding. NaN for a source that has no gradient anywhere, and 0 where
    only one of the two has.

    Args:
        routed: norm of each source's routed gradient, float[sources, layers].
        plain: the same of the same examples without routing.
        weights: M, float[sources, layers], in [0, 1].
        parameters: of each layer, int[layers], above 0.
    """
    sizes = np.asarray(parameters, dtype=np.float64)
    seen = np.asarray(routed, dtype=np.float64) ** 2 / sizes
    wanted = (np.asarray(weights) * np.asarray(plain, dtype=np.float64)) ** 2 / sizes
    found: Floats = 1 - np.abs(_shares(seen.T) - _shares(wanted.T)).sum(axis=0) / 2
    none, some = ~seen.any(axis=1) & ~wanted.any(axis=1), np.isnan(found)
    found = np.where(none, np.nan, np.where(some, 0.0, found))
    return np.where(none, found, np.clip(found, 0.0, 1.0))


def overall_conformance(each: ArrayLike, units: ArrayLike) -> float:
    """The conformance of sources, weighted by their units, in [0, 1]; NaN if none has one.

    Args:
        each: float[sources], NaN where there is none.
        units: of each source, float[sources].
    """
    found, weight = (np.asarray(one, dtype=np.float64) for one in (each, units))
    known = ~np.isnan(found)
    total = weight[known].sum()
    return float((found[known] * weight[known]).sum() / total) if total > 0 else math.nan


# -- canaries --------------------------------------------------------------------------------


def canary_exposure(canaries: ArrayLike, references: ArrayLike) -> Floats:
    """Exposure of each canary in bits, float64[canaries], in [0, log2(references + 1)].

    ``log2 |R| - log2 rank`` (Carlini and others, "The Secret Sharer", 2019) among its loss and
    those of m invented records that nobody trained, with ``|R| = m + 1``. A tie ranks behind.

    Args:
        canaries: losses, float[canaries]; NaN ranks last.
        references: losses of the others, float[m], without NaN.
    """
    others = np.sort(np.asarray(references, dtype=np.float64))
    losses = np.nan_to_num(np.asarray(canaries, dtype=np.float64), nan=np.inf, posinf=np.inf)
    ranks = 1 + np.searchsorted(others, losses, "right")
    return np.log2((len(others) + 1) / ranks)


def canary_p(exposures: ArrayLike) -> float:
    """P(exposures add up to as much) if no canary was learned, in [0, 1].

    Ranks that nothing favours make an exposure Exponential with mean ``1 / ln 2``, so that
    ``2 ln 2`` times the sum of n of them is chi-square with 2 n degrees of freedom. Ranks are
    whole numbers, from 1: exposures are a little smaller, and the p value a little larger. The
    ranks must be independent: canaries that share references need many more of these than they
    are.

    Args:
        exposures: in bits, float[n], n at least 1.
    """
    found = np.asarray(exposures, dtype=np.float64)
    return chi_square_tail(2 * math.log(2) * float(found.sum()), 2 * len(found))


def chi_square_tail(value: float, degrees: int) -> float:
    """P(X >= value), X chi-square with an even number of degrees of freedom, above 0.

    ``exp(-v/2) sum_{k < d/2} (v/2)^k / k!``: a Poisson variable of mean v/2 is below d/2.

    Raises:
        ValueError: the degrees are odd or not above 0.
    """
    if degrees <= 0 or degrees % 2:
        raise ValueError(f"{degrees} degrees of freedom are not even and above 0")
    half = value / 2
    if half <= 0:
        return 1.0
    logs = [k * math.log(half) - half - math.lgamma(k + 1) for k in range(degrees // 2)]
    return min(1.0, math.fsum(map(math.exp, logs)))


def above_null(exposures: ArrayLike, references: int) -> float:
    """Mean exposure above that of untrained canaries, as a share of the maximum.

    Args:
        exposures: in bits, float[n], n at least 1.
        references: as many as they were ranked among.
    """
    most = math.log2(references + 1)
    return float((np.mean(np.asarray(exposures, dtype=np.float64)) - NULL_EXPOSURE) / most)


# -- members against others, unpaired --------------------------------------------------------


def membership_auc(members: ArrayLike, others: ArrayLike) -> tuple[float, float]:
    """P(a member's loss < another's), ties half, and its standard deviation if nothing is known.

    The LOSS attack of Yeom and others, 2018; the deviation is Mann and Whitney's,
    ``sqrt((n + m + 1) / (12 n m))``.

    Args:
        members, others: losses, float[n] and float[m], without NaN, neither empty.
    """
    inside, outside = (np.sort(np.asarray(one, dtype=np.float64)) for one in (members, others))
    n, m = len(inside), len(outside)
    above = m - np.searchsorted(outside, inside, "right")
    equal = m - np.searchsorted(outside, inside, "left") - above
    return float((above + equal / 2).sum() / (n * m)), math.sqrt((n + m + 1) / (12 * n * m))


def true_positive_rate(
    members: ArrayLike, others: ArrayLike, fpr: float = 0.01
) -> tuple[float, str]:
    """Share of members with a loss below all but ``fpr`` of the others', and a note if it is vague.

    Average accuracy hides the records that are known for certain (Carlini and others, 2022).

    Args:
        members, others: losses, float[n] and float[m], without NaN, neither empty.
    """
    inside = np.asarray(members, dtype=np.float64)
    outside = np.sort(np.asarray(others, dtype=np.float64))
    rate = float(np.mean(inside < outside[int(fpr * len(outside))]))
    if len(outside) >= FEW_OTHERS:
        return rate, ""
    return rate, f"{len(outside)} records that were not trained; {FEW_OTHERS} are needed"
