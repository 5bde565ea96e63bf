"""Collate functions: whether each row of a batch is the sample in its place, and that alone.

Indices say of which source a row is, and collating is the user's code. So some samples are
exchanged for others of the same batch: rows in other places must stay. Random numbers are seeded
alike, and what is exchanged lies at the end, so that the rows before it draw the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hpcdet.guard.probing.probe import Codes
from hpcdet.guard.probing.watching import changed
from hpcdet.policy.codes import PolicyRefused

Collated = Callable[[Sequence[Codes]], Sequence[Any]]
"""Batches of samples by their indices, all drawn with equal random numbers."""

_MINE, _OTHERS = 2, 4
"""Samples of one source, and of others, that are collated together."""


def rows_are_samples(
    indices: Codes, codes: Codes, names: Sequence[str], collated: Collated
) -> None:
    """Exchange samples of each source for others, and compare the rows of all places.

    Args:
        indices: int64[n], samples; ``codes``: their kinds.
        names: of kinds.

    Raises:
        PolicyRefused: another row changes, one that was exchanged does not, or a value that belongs
            to no row is computed from the samples (P12).
    """
    for code in np.unique(codes):
        mine = indices[codes == code][:_MINE]
        others = indices[codes != code][:_OTHERS]
        if not len(others):
            continue
        by = np.resize(others, len(mine))
        # where all samples are still there the batch is as wide as before, and has its maxima
        orders = [(mine, mine), (mine, by), (by, by)]
        batches = collated([np.concatenate([others, *one]) for one in orders])
        before, last, both = (_leaves(one) for one in batches)
        places = len(others) + 2 * len(mine)
        name = names[code] if code < len(names) else "no source"
        kept = len(others) + len(mine)
        if _stray(before, last, kept, places) or _stray(before, both, len(others), places):
            raise _refused(f"gives rows of other sources by samples of {name}")
        for place in range(kept, places):
            if _stays(before, last, place, places):
                one, other = mine[place - kept], by[place - kept]
                alone = [np.append(others[:1], [index] * (places - 1)) for index in (one, other)]
                ours, theirs = (_leaves(batch) for batch in collated(alone))
                if _differ(ours, theirs, places):
                    raise _refused(f"leaves samples of {name} out, or gives them in another order")


def _refused(does: str) -> PolicyRefused:
    return PolicyRefused(
        "P12",
        f"the collate function {does}",
        where="build_training_data_loader",
        hint="collate samples one by one, in the order in which they come, and mix or sort them in "
        "train_batch, inside of `with context.rows(indices): ...`",
    )


Leaf = Any
"""A tensor, or a Python value."""


def _leaves(tree: Any) -> list[Leaf]:
    return list(_walk(tree))


def _walk(tree: Any) -> Iterator[Leaf]:
    if isinstance(tree, Mapping):
        for key in tree:
            yield from _walk(tree[key])
    elif isinstance(tree, list | tuple):
        if tree and all(isinstance(one, str | int | float) for one in tree):
            yield tree
        else:
            for one in tree:
                yield from _walk(one)
    elif isinstance(tree, np.ndarray) and tree.dtype.kind in "biufc":
        yield torch.from_numpy(tree)
    else:
        yield tree


def _each(leaf: Leaf, places: int) -> int:
    """How many entries of a value are of one place; 0: it is of no places."""
    sized = isinstance(leaf, list | tuple) or (isinstance(leaf, torch.Tensor) and leaf.dim() > 0)
    length = len(leaf) if sized else 0
    return length // places if length % places == 0 else 0


def _changes(before: Leaf, after: Leaf) -> Codes:
    """Which entries of two values of the same length differ, bool[entries]."""
    if isinstance(before, torch.Tensor):
        return changed(before, after).astype(np.int64)
    return np.array([one != other for one, other in zip(before, after, strict=True)], np.int64)


def _alike(before: Leaf, after: Leaf) -> bool:
    """Whether two values have the same form."""
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        return before.shape == after.shape
    if isinstance(before, list | tuple) and isinstance(after, list | tuple):
        return len(before) == len(after)
    return False


def _stray(before: list[Leaf], after: list[Leaf], kept: int, places: int) -> bool:
    """Whether one of the first ``kept`` rows changes, or a number that is of no row."""
    for one, other in zip(before, after, strict=False):
        if each := _each(one, places):
            if _alike(one, other) and _changes(one, other)[: kept * each].any():
                return True
        elif _is_mean(one) and _alike(one, other) and bool(_changes(one[None], other[None]).any()):
            return True
    return False


def _is_mean(leaf: Leaf) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def _stays(before: list[Leaf], after: list[Leaf], place: int, places: int) -> bool:
    """Whether no value changes in a place."""
    return not any(
        not _alike(one, other) or _changes(one, other)[place * each : (place + 1) * each].any()
        for one, other in zip(before, after, strict=False)
        if (each := _each(one, places))
    )


def _differ(before: list[Leaf], after: list[Leaf], places: int) -> bool:
    """Whether two batches differ in any place."""
    return not all(_stays(before, after, place, places) for place in range(places))
