"""``context.virtual``: virtual ranks for a loop of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hpcdet.data.virtual_ranks import WHERE, Fold, TreeSum, Virtual
from hpcdet.errors import ConfigError
from hpcdet.train.attempt.session import Session


class VirtualContext:
    """The shares that each global batch is cut into.

    With ``reproducibility.elastic: exact`` their number is the experiment's, whatever that of
    ranks, and a loop that computes all it sums up by ``sum`` has the same bits on any number of
    ranks. Else there is one for each rank.

    Attributes:
        used: somebody has asked for it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._virtual = session.virtual or Virtual(
            session.ranks.world, session.ranks, session.record.seed
        )
        self._sum = TreeSum(self._virtual)
        self.used = False

    @property
    def count(self) -> int:
        """Number of virtual ranks of all ranks together."""
        self.used = True
        return self._virtual.count

    @property
    def mine(self) -> range:
        """Those of this rank, for ``context.order(…).shares(records, mine, count)``."""
        self.used = True
        return self._virtual.mine

    def sum(
        self, step: int, compute: Callable[[int], Sequence[torch.Tensor]]
    ) -> list[torch.Tensor]:
        """Sum the results of all virtual ranks, always in the same order; on all ranks.

        Args:
            step: it and the virtual rank seed all random generators, those registered included.
            compute: gives the tensors of a virtual rank, of this rank's in turn: gradients,
                metrics; of the same types and shapes for each.
        """
        self.used = True
        shapes: list[torch.Size] = []
        groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        folds: dict[tuple[torch.device, torch.dtype], Fold[torch.Tensor]] = {}
        for v in self.mine:
            self._virtual.plant(self._session.registered.generators, "step", step, v)
            found = [one.detach() for one in compute(v)]
            if not shapes:
                shapes = [one.shape for one in found]
                for index, one in enumerate(found):
                    groups.setdefault((one.device, one.dtype), []).append(index)
            for group, indices in groups.items():
                fold = folds.setdefault(group, Fold(torch.Tensor.add_))
                fold.push(v, self._sum.flat([found[index] for index in indices]))
        self._virtual.plant(self._session.registered.generators, "step", step, "common")
        sums: dict[int, torch.Tensor] = {}
        for group, indices in groups.items():
            found = self._sum.parts(self._sum(folds[group]), [shapes[index] for index in indices])
            sums |= zip(indices, found, strict=True)
        return [sums[index] for index in range(len(shapes))]

    def check(self, private: object) -> None:
        """See that a state is the same for any number of ranks, where that is asked for.

        Raises:
            ConfigError: it is not.
        """
        if self._session.virtual is None:
            return
        if not self.used:
            raise ConfigError(
                "this loop does not train by virtual ranks: its bits depend on the number of ranks",
                where=WHERE,
                hint="sum gradients and metrics by context.virtual.sum, or leave elastic out",
            )
        if private is not None:
            raise ConfigError(
                "a state per rank depends on the number of ranks",
                where=f"{WHERE}, checkpoint.save(private=…)",
                hint="put it into the shared state, in order of virtual ranks",
            )
