"""A batch of a loop of one's own, under a policy."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any

import torch

from hpcdet.errors import UsageError
from hpcdet.train.comm.collectives import Peers

Probe = Callable[[Callable[[Any], torch.Tensor], Any], Any]


class GovernedBatch:
    """The batch of ``with context.governance.batch(...) as batch``.

    Attributes:
        findings: of the probe, if there was one.
    """

    def __init__(self, weight: float, probe: Probe | None, *, asked: bool) -> None:
        self.findings: Any = None
        self._weight: float | None = weight
        self._probe = probe
        self._asked = asked
        self._peers: Peers | None = None
        self._rows = 0

    @staticmethod
    def plain(sources: Sized, peers: Peers) -> GovernedBatch:
        """A batch without a policy, which only its weight may be asked for."""
        made = GovernedBatch(1.0, None, asked=True)
        made._weight, made._peers, made._rows = None, peers, len(sources)
        return made

    @property
    def weight(self) -> float:
        """Weight of the mean over this rank's rows, where the gradients of ranks are averaged.

        1 where all ranks have as many rows. Without a policy ranks tell each other how many they
        have: all ask or none.
        """
        self._asked = True
        if self._weight is None:
            assert self._peers is not None
            rows = self._peers.allgather(self._rows)
            self._weight = self._rows * len(rows) / sum(rows) if sum(rows) else 0.0
        return self._weight

    def probe(self, losses: Callable[[Any], torch.Tensor], data: Any) -> None:
        """Verify that a row of the loss depends on its own row alone, where that is due.

        Due are the first batch of each attempt and one in ``probe_every``; else, and without a
        policy, nothing is done. Under ``fully_shard`` every rank must call it alike, in the same
        batches: all of them gather the parameters together, and one that does not call leaves the
        others waiting. Otherwise each rank probes its own rows by itself.

        Args:
            losses: forward passes and loss of some rows of ``data``, one value or one per row,
                without a backward pass and by the model that ``governance.model`` was given, not
                by what wraps it for several ranks.
            data: this rank's rows: a tensor, or tensors in tuples, lists or dicts, whose first
                dimension is that of ``sources``.

        Raises:
            PolicyRefused, GovernanceBroken: rows are not what routing takes them for.
        """
        if self._probe is not None:
            self.findings = self._probe(losses, data)

    def check_weighed(self) -> None:
        """See that shares of different size are weighed by their size.

        Raises:
            UsageError: they are not.
        """
        if not self._asked and self._weight != 1.0:
            raise UsageError(
                f"ranks have shares of different size, this one {self._weight:.4g} of the mean, "
                "and the loss is not weighed",
                where="governance.backward",
                hint="multiply the mean over this rank's rows by batch.weight, or say that the "
                "loop weighs it itself: governance.batch(..., weighed=True)",
            )
