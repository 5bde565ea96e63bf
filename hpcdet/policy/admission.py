"""Admission by a policy: rows times weight by source and layer, and the share of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hpcdet.policy.compiled import MIX, CompiledPolicy, Matrix


def exposure(policy: CompiledPolicy, counts: Mapping[str, int]) -> Matrix:
    """E: the units of each source that each layer was permitted to learn from.

    ``E[s, l] = sum of n_k min(M[k, l])`` over the kinds of rows that s is among: a row of several
    sources counts for each of them, by the least of their weights.

    Args:
        counts: rows by their source, or by their sources: ``a+b``.

    Returns:
        float64[sources, layers], in rows times weight.

    Raises:
        KeyError: a source is unknown.
    """
    codes, weights = policy.codes, policy.weights()
    found = np.zeros_like(weights)
    for name, units in counts.items():
        members = [codes[one] for one in name.split(MIX)]
        found[members] += units * weights[members].min(axis=0)
    return found


def admitted_share(counts: Sequence[int] | NDArray[np.int64], weights: Matrix) -> Matrix:
    """D / N: the share of a batch that each layer admits, float64[layers], in [0, 1].

    Gradients that are means over the whole batch become, divided by it, means over what each
    layer admits.

    Args:
        counts: rows of each kind, not all 0.
        weights: float64[kinds, layers].
    """
    rows = np.asarray(counts, dtype=np.float64)
    share: Matrix = rows @ weights / rows.sum()
    return share
