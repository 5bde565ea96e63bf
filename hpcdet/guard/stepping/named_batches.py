"""Batches of which each rank names the sources of its rows: counted over all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcdet.data.sourced import Mixture, SourceTable
from hpcdet.errors import UsageError
from hpcdet.guard.counting.exposure import Counts
from hpcdet.guard.stepping.optimizers import Gather

Names = Sequence[str | Sequence[str]]
"""For each row the name of its source, or several."""
Named = Mapping[str | tuple[str, ...], int]
"""How many rows there are of each source, or of each mixture of sources."""
_WHERE = "governance.batch"


@dataclass(frozen=True, eq=False)
class NamedBatch:
    """A batch over all ranks.

    Attributes:
        mixtures: that its rows are of, in order; the same on all ranks.
        own: int64[rows of this rank], their places in ``mixtures``.
        counts: int64[mixtures], rows of all ranks.
    """

    mixtures: tuple[Mixture, ...]
    own: Counts
    counts: Counts

    def weight(self, world: int) -> float:
        """The weight of the mean over this rank's rows, where ranks' gradients are averaged."""
        whole = int(self.counts.sum())
        return len(self.own) * world / whole if whole else 0.0


def count(sources: Names, counts: Named | None, gather: Gather, *, verify: bool) -> NamedBatch:
    """Count a batch; without ``counts``, or where they are verified, all ranks call together.

    Args:
        sources: of this rank's rows.
        counts: of all ranks' rows; None: asked for.
        verify: compare given counts with what the ranks have.

    Raises:
        ConfigError: a row has no source.
        UsageError: the counts are not those of the rows.
    """
    table = SourceTable.of(sources, _WHERE)
    mine = Counter(dict(zip(table.mixtures, np.bincount(table.codes).tolist(), strict=False)))
    whole = _said(counts) if counts is not None else Counter[Mixture]()
    if counts is None or verify:
        gathered: Counter[Mixture] = Counter()
        for one in gather(sorted(mine.items())):
            gathered.update({tuple(mixture): number for mixture, number in one})
        if counts is not None and +gathered != +whole:
            raise _other(whole, gathered, "and the ranks have")
        whole = gathered
    elif mine - whole:
        raise _other(whole, mine, "and this rank alone has")
    mixtures = tuple(sorted(+whole))
    places = np.array([mixtures.index(one) for one in table.mixtures], dtype=np.int64)
    own = places[table.codes] if len(places) else places
    return NamedBatch(mixtures, own, np.array([whole[one] for one in mixtures], dtype=np.int64))


def _said(counts: Named) -> Counter[Mixture]:
    found: Counter[Mixture] = Counter()
    for name, number in counts.items():
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 0:
            raise UsageError(
                f"{number!r} rows of {name!r}",
                where=f"{_WHERE}(counts=…)",
                hint="give a whole number from 0 for each source",
            )
        found[SourceTable.of([name], _WHERE).mixtures[0]] += int(number)
    return found


def _other(said: Counter[Mixture], there: Counter[Mixture], who: str) -> UsageError:
    return UsageError(
        f"the batch is said to have {_text(said)}, {who} {_text(there)}",
        where=f"{_WHERE}(counts=…)",
        hint="count the rows of all ranks by source, or leave counts out: ranks tell each other",
    )


def _text(counts: Counter[Mixture]) -> str:
    return ", ".join(f"{counts[one]} of {'+'.join(one)}" for one in sorted(counts)) or "nothing"
