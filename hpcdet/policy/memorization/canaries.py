"""Canaries: invented records that a key chooses, and what the model's losses on them say.

The codes of canaries and of references are neighbours in one sequence that the key alone gives, so
a reference is what a canary would have been: where nothing was learned by heart, each canary's loss
is as likely to have any rank among the references as any other. Code turns a code into a record, as
``label = code % 10`` with an image of noise from the rest, or the digits of a number that a
sentence mentions.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcdet.policy import measures
from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import Canaries
from hpcdet.policy.memorization.twin_keys import commitment

Indices = NDArray[np.int64]

_CODE = b"hpcdet-canaries/1 code\0"


@dataclass(frozen=True)
class DrawnCanaries:
    """The canaries of a source.

    Attributes:
        inserted: codes of those that are trained, int64[n], each in [0, 2 ** space_bits).
        repeats: how often each is trained in an epoch, int64[n].
        references: codes of those that nobody trains, int64[m]; no code is there twice.
    """

    source: str
    inserted: Indices
    repeats: Indices
    references: Indices

    @property
    def records(self) -> Indices:
        """The codes of all records that are added to an epoch, int64[sum of repeats]."""
        return np.repeat(self.inserted, self.repeats)

    @property
    def ranked(self) -> Indices:
        """The codes of canaries and references, ascending: their order does not tell them apart."""
        return np.sort(np.concatenate([self.inserted, self.references]))

    def judge(self, losses: ArrayLike, alpha: float, max_advantage: float) -> CanaryVerdict:
        """Judge a model by its losses on the records of ``ranked`` (``judge``)."""
        found, codes = np.asarray(losses, dtype=np.float64), self.ranked
        mine, others = (
            np.searchsorted(codes, self.inserted),
            np.searchsorted(codes, self.references),
        )
        verdict = judge(found[mine], found[others], alpha, max_advantage)
        return dataclasses.replace(verdict, repeats=tuple(self.repeats.tolist()))


def draw(
    key: bytes, source: str, count: int, space_bits: int, repeats: tuple[int, ...] = (1,)
) -> DrawnCanaries:
    """The canaries of a source: a function of its arguments for ever.

    Codes are the first ``space_bits`` bits of HMAC-SHA256 under the key of source and place in the
    sequence; one that was there before is left out. ``repeats`` are dealt out in turn.

    Args:
        count: canaries, at least 1.
        space_bits: of a code, from 1 to 62.

    Raises:
        PolicyRefused: there are too few codes for canaries and references (P14), or the key is too
            short (P10).
    """
    rules = Canaries(count, space_bits)
    total = count + rules.references
    if space_bits < rules.least_bits:
        raise PolicyRefused(
            "P14",
            f"{count} canaries and {rules.references} references need more than the "
            f"{1 << space_bits} codes of {space_bits} bits",
            where="memorization.canaries.space_bits",
            hint=f"at least {rules.least_bits}",
        )
    commitment(key)  # which refuses a short one
    secret, name = hashlib.sha256(key).digest(), source.encode()
    prefix = _CODE + len(name).to_bytes(4, "big") + name
    codes: dict[int, None] = {}
    place = 0
    while len(codes) < total:
        found = hmac.digest(secret, prefix + place.to_bytes(8, "big"), "sha256")
        codes.setdefault(int.from_bytes(found[:8], "big") >> (64 - space_bits))
        place += 1
    drawn = np.array(list(codes), dtype=np.int64)
    dealt = np.resize(np.array(repeats, dtype=np.int64), count)
    return DrawnCanaries(source, drawn[:count], dealt, drawn[count:])


@dataclass(frozen=True)
class CanaryVerdict:
    """The verdict of a source's canaries on a model.

    Attributes:
        exposures: of each canary in bits, in [0, ``most``]; NaN where a loss is.
        references: as many as they were ranked among.
        alpha: the level of this test.
        max_advantage: the ``share`` that the policy permits, in [0, 1].
        repeats: how often each is trained in an epoch; empty: it is not known.
    """

    exposures: tuple[float, ...]
    references: int
    alpha: float
    max_advantage: float
    repeats: tuple[int, ...] = ()

    @property
    def most(self) -> float:
        """The greatest exposure that can be seen, in bits."""
        return math.log2(self.references + 1)

    @property
    def mean(self) -> float:
        """Mean exposure in bits; 1.443 where nothing was learned; NaN if unknown."""
        return float(np.mean(self.exposures))

    @property
    def share(self) -> float:
        """The mean above that of untrained canaries, as a share of the maximum; NaN as ``mean``."""
        return measures.above_null(self.exposures, self.references)

    @property
    def p(self) -> float:
        """P(exposures add up to as much) if nothing was learned; 1 if unknown."""
        return 1.0 if math.isnan(self.mean) else measures.canary_p(self.exposures)

    @property
    def learned(self) -> bool:
        """True if canaries are known better than by chance."""
        return self.p < self.alpha

    @property
    def violated(self) -> bool:
        """True if the share is above what is permitted, and not by chance."""
        return self.share > self.max_advantage and self.learned

    @property
    def memorization(self) -> float:
        """``gov.memorization``: the share if it is ``violated``, else 0; NaN if unknown.

        NaN breaks a constraint: losses that are no numbers are no evidence of innocence.
        """
        if math.isnan(self.share):
            return math.nan
        return self.share if self.violated else 0.0

    @property
    def by_repeats(self) -> dict[int, float]:
        """Mean exposure of canaries that are trained as often, in bits."""
        dealt, found = np.asarray(self.repeats), np.asarray(self.exposures)
        return {int(one): float(found[dealt == one].mean()) for one in np.unique(dealt)}


def judge(
    inserted: ArrayLike, references: ArrayLike, alpha: float, max_advantage: float
) -> CanaryVerdict:
    """Judge canaries by their losses.

    Where a loss is NaN all exposures are unknown.

    Args:
        inserted: losses of the canaries, float[n], n at least 1.
        references: losses of the others, float[m], m at least 1.
        alpha: the level of this test.
        max_advantage: the share above that of untrained canaries that is permitted.

    Raises:
        ValueError: there are no canaries, or no references.
    """
    mine = np.asarray(inserted, dtype=np.float64).ravel()
    others = np.asarray(references, dtype=np.float64).ravel()
    if not len(mine) or not len(others):
        raise ValueError("there are no canaries, or no references")
    unknown = np.isnan(mine).any() or np.isnan(others).any()
    found = np.full(len(mine), np.nan) if unknown else measures.canary_exposure(mine, others)
    return CanaryVerdict(tuple(found.tolist()), len(others), alpha, max_advantage)
