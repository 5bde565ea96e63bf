"""Which reducer and which division the config asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from hpcdet.core.training import Session
from hpcdet.pytorch.gradients.division import Division
from hpcdet.pytorch.gradients.reducer import GradientReducer
from hpcdet.pytorch.metrics.reducers import MetricReducer


def choose(
    session: Session,
    models: Callable[[], Sequence[torch.nn.Module]],
    reducers: Callable[[], Mapping[str, MetricReducer]],
) -> tuple[GradientReducer, Division]:
    """The reducer of this rank's gradients, and the division of its batches; no other is imported.

    Args:
        models: wrapped so far.
        reducers: the user's metric reducers, by name.
    """
    if session.virtual is not None:
        from hpcdet.pytorch.gradients.virtual_division import VirtualDivision
        from hpcdet.pytorch.gradients.virtual_reducer import VirtualReducer

        virtual = VirtualReducer(session, models, session.virtual)
        return virtual, VirtualDivision(session, virtual, session.virtual, reducers)
    return _kind(session)(session, models), Division(session)


def _kind(session: Session) -> type[GradientReducer]:
    if session.ranks.world == 1:
        return GradientReducer
    if session.config.distributed.strategy == "fsdp2":
        from hpcdet.pytorch.gradients.fsdp2 import Fsdp2Reducer

        return Fsdp2Reducer
    from hpcdet.pytorch.gradients.ddp import DdpReducer

    return DdpReducer
