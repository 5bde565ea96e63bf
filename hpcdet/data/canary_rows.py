"""Data with canaries: records that are made of codes, with indices behind those of the data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from hpcdet.data.loader import fetches_together
from hpcdet.data.sourced import Codes, SourceTable, canary_maker
from hpcdet.policy.codes import PolicyRefused

CanaryBlock = tuple[str, Codes]
"""A source, and the codes of records of it that lie behind each other."""


class WithCanaries(Dataset[Any]):
    """A data set, and canaries behind its samples.

    Args:
        dataset: with indices.
        sources: of its samples.
        blocks: canaries, one block behind the other; a code may be there several times.

    Attributes:
        dataset: as given.
        sources: of all samples, canaries among them.

    Raises:
        PolicyRefused: nothing makes records of a source's codes (P14).
    """

    def __init__(self, dataset: Any, sources: SourceTable, blocks: Sequence[CanaryBlock]) -> None:
        self.dataset = dataset
        self._own = len(dataset)
        self._blocks = list(blocks)
        self._ends = list(accumulate((len(codes) for _, codes in blocks), initial=self._own))
        self._makers = {source: _maker(dataset, source) for source, _ in blocks}
        tables = [
            SourceTable(((source,),), np.zeros(len(codes), np.int64)) for source, codes in blocks
        ]
        self.sources = SourceTable.joined([sources, *tables])

    @staticmethod
    def of(dataset: Any, sources: SourceTable, blocks: Sequence[CanaryBlock]) -> WithCanaries:
        """The canaries behind a data set, whose batches are fetched as it fetches its own."""
        kind = _FetchedTogether if fetches_together(dataset) else WithCanaries
        return kind(dataset, sources, blocks)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        if index >= self._own:
            return self._canary(index)
        several = getattr(self.dataset, "__getitems__", None)
        return self.dataset[index] if several is None else several([index])[0]

    def _canary(self, index: int) -> Any:
        place = int(np.searchsorted(self._ends, index, "right")) - 1
        if place >= len(self._blocks):
            raise IndexError(f"index {index} of {len(self)} samples")
        source, codes = self._blocks[place]
        return self._makers[source](int(codes[index - self._ends[place]]))

    def refuse_unlike(self, collated: Callable[[Codes], Any]) -> None:
        """Refuse canaries that cannot be in a batch with a sample of their source.

        It makes each of them: to be asked where a batch could not be made.

        Args:
            collated: a batch of samples by their indices.

        Raises:
            PolicyRefused: the first of them (P14).
        """
        for (source, codes), begin in zip(self._blocks, self._ends, strict=False):
            own = [n for n, one in enumerate(self.sources.mixtures) if one == (source,)]
            mine = np.flatnonzero(np.isin(self.sources.codes[: self._own], own))
            sample = mine[:1] if len(mine) else np.zeros(1, np.int64)
            try:
                collated(np.repeat(sample, 2))
            except Exception:
                continue  # it is not the canaries
            for place, code in enumerate(codes.tolist(), begin):
                try:
                    collated(np.append(sample, place))
                except Exception as error:
                    raise _unlike(source, code, int(sample[0]), error) from error


class _FetchedTogether(WithCanaries):
    """The samples of the data set in a batch are fetched together, and canaries one by one."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        own = [index for index in indices if index < self._own]
        found = iter(self.dataset.__getitems__(own) if own else ())
        return [next(found) if one < self._own else self._canary(one) for one in indices]


def _unlike(source: str, code: int, sample: int, error: Exception) -> PolicyRefused:
    return PolicyRefused(
        "P14",
        f"the canary {code} of source {source!r} cannot be collated with sample {sample}: "
        f"{type(error).__name__}: {error}",
        where="canary_record",
        hint="return what __getitem__ returns: the same keys, types and shapes, transformed alike",
    )


def _maker(dataset: Any, source: str) -> Any:
    found = canary_maker(dataset, source)
    if found is None:
        raise PolicyRefused(
            "P14",
            f"nothing makes canaries of source {source!r}",
            where="build_training_data_loader",
            hint="give its data set in pytorch.Sourced a method canary_record(code), which returns "
            "a sample as __getitem__ does; or name other sources in memorization.canaries.sources",
        )
    return found
