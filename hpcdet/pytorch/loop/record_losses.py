"""The loss of twins and canaries: one more validation set, over all ranks, interruptible."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpcdet.policy.codes import PolicyRefused
from hpcdet.pytorch.api.callback import takes
from hpcdet.pytorch.api.context import PyTorchTrialContext
from hpcdet.pytorch.api.trial import PyTorchTrial
from hpcdet.pytorch.loop.feeds import Feed, passes
from hpcdet.pytorch.metrics.metrics import named

if TYPE_CHECKING:
    from hpcdet.guard.keyed_records import Losses
    from hpcdet.guard.memorization_tests import MemorizationTests

_LOSS = "loss"


class RecordLosses:
    """Measures a model on both members of each pair and on all canaries, transformed alike.

    A trial with ``losses`` is asked for those where the policy's metric is ``loss``; else each
    record is a validation batch of its own, of which ``evaluate_batch`` says the metric.

    Args:
        feed: of the training.
        interrupted: asked after each batch, on every rank equally often: must this stop?

    Raises:
        PolicyRefused: P14: the trial has neither.
    """

    def __init__(
        self,
        trial: PyTorchTrial,
        context: PyTorchTrialContext,
        feed: Feed,
        tests: MemorizationTests,
        interrupted: Callable[[], bool],
    ) -> None:
        self._trial, self._context, self._interrupted = trial, context, interrupted
        self._metric = tests.metric
        self._key = f"memorization.{'canaries' if tests.twins is None else 'twins.metric'}"
        kind = type(trial)
        self._each = self._metric == _LOSS and kind.losses is not PyTorchTrial.losses
        if not self._each and kind.evaluate_batch is PyTorchTrial.evaluate_batch:
            raise PolicyRefused(
                "P14",
                "the trial does not say the loss of each record",
                where=kind.__name__,
                hint="define losses(batch), which returns a tensor of the batch's length",
            )
        self._numbered = takes(trial.evaluate_batch, 2)
        self._indices = tests.indices
        self._sources = feed.sources
        self._data = feed.data.over(self._indices, None if self._each else 1)

    def run(self) -> Losses | None:
        """The losses, float64[records], on all ranks; None if it was interrupted.

        Models are in ``eval`` mode, without gradients.
        """
        context, guard = self._context, self._context.learning.guard
        assert guard is not None
        mine, batches = context.mine, context.core.train.units.batches
        found: dict[int, float] = {}
        for number, (part, batch) in enumerate(passes(self._data, context)):
            index, place = divmod(number, len(mine))
            share = mine[place]
            # where ranks share the parameters, one without samples must take part all the same
            if part.weight or context.reducer.shares_parameters:
                whose = self._sources and self._sources.at(part.indices)  # lanes are on for them
                with context.division.evaluating(share, batches, index), guard.evaluated(whose):
                    values = self._values(context.ready(batch), index, len(part.indices))
            if part.weight:
                found |= dict(zip(part.indices.tolist(), values, strict=True))
            if share == mine[-1] and self._interrupted():
                return None
        everyone: dict[int, float] = {}
        for one in context.core.session.peers.allgather(found):
            everyone |= one
        return np.array([everyone[index] for index in self._indices.tolist()], dtype=np.float64)

    def _values(self, batch: Any, index: int, length: int) -> list[float]:
        if self._each:
            losses = self._trial.losses(batch)
            if not isinstance(losses, torch.Tensor) or tuple(losses.shape) != (length,):
                shape = tuple(losses.shape) if isinstance(losses, torch.Tensor) else losses
                raise PolicyRefused(
                    "P14",
                    f"losses returned {shape} for {length} records",
                    where=f"{type(self._trial).__name__}.losses",
                    hint="return one number for each record, as with reduction='none'",
                )
            return [float(one) for one in losses.detach().double().cpu()]
        position = (index,) if self._numbered else ()
        metrics = named(self._trial.evaluate_batch(batch, *position))
        if self._metric not in metrics:
            raise PolicyRefused(
                "P14",
                f"evaluate_batch reports no metric {self._metric!r}",
                where=self._key,
                hint=f"it has: {', '.join(sorted(metrics)) or 'none'}; or define losses(batch) and "
                "let the policy compare `loss`",
            )
        return [float(metrics[self._metric])]
