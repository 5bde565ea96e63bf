"""The kinds of rows that a trial's data have: of one source, of several, of none that counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcdet.data.sourced import Codes, Mixture
from hpcdet.guard.routing.row_sources import RowSources
from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import MIX, CompiledPolicy, Matrix


@dataclass(frozen=True, eq=False)
class RowKinds:
    """Kinds of rows, and what each may change.

    The last kind is of rows that change nothing: those of sources that the policy drops, and
    those that a rank repeats to keep step.

    Attributes:
        names: of the kinds but the last, ``a`` or ``a+b``.
        weights: float64[kinds, layers of the policy], the minimum over the kind's sources.
        codes: int64[mixtures], the kind of each mixture that they were made for.
    """

    names: tuple[str, ...]
    weights: Matrix
    codes: Codes

    @property
    def absent(self) -> int:
        """The code of the last kind."""
        return len(self.names)

    def sources(self, codes: Codes) -> RowSources:
        """The sources of rows of these kinds; rows of the last kind have none."""
        members = [frozenset(name.split(MIX)) for name in self.names]
        return RowSources([*members, frozenset()], codes)

    @staticmethod
    def of(mixtures: Sequence[Mixture], policy: CompiledPolicy) -> RowKinds:
        """The kinds that some mixtures of sources are of.

        Raises:
            PolicyRefused: the policy knows a source not (G113), or accepts no mixtures (P01).
        """
        known = policy.codes
        named: list[str | None] = []
        for mixture in mixtures:
            strangers = [name for name in mixture if name not in known]
            if strangers and policy.unknown_source == "deny":
                raise _unknown(strangers[0], policy)
            if len(mixture) > 1 and policy.mixed == "reject":
                raise PolicyRefused(
                    "P01",
                    f"a record is of several sources: {', '.join(mixture)}",
                    where="mixed_examples: reject",
                    hint="give each record one source, or allow mixtures: `mixed_examples: min`",
                )
            named.append(None if strangers else MIX.join(mixture))
        names = tuple(sorted({name for name in named if name is not None}))
        of_all = policy.weights()
        rows = [of_all[[known[one] for one in name.split(MIX)]].min(axis=0) for name in names]
        codes = [len(names) if name is None else names.index(name) for name in named]
        nothing = np.zeros(of_all.shape[1])
        return RowKinds(names, np.array([*rows, nothing]), np.array(codes, dtype=np.int64))


def _unknown(name: str, policy: CompiledPolicy) -> PolicyRefused:
    return PolicyRefused(
        "G113",
        f"the data have a source {name!r} that the policy does not know",
        where="build_training_data_loader",
        hint=f"the policy knows {', '.join(policy.codes)}; add the source to it, or let it drop "
        "others: `unknown_source: drop`",
    )
