"""The face of ``determined``: write ``import hpcdet.determined as det``.

It has what training code uses: ``get_cluster_info``, ``core``, ``pytorch``, ``InvalidHP``.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from hpcdet import core
from hpcdet.core import InvalidHP
from hpcdet.store import config as configs
from hpcdet.store.records import Trial
from hpcdet.store.secrets import resolve
from hpcdet.store.trials import latest_checkpoint
from hpcdet.train.place import Place
from hpcdet.train.ranks import Ranks

__all__ = ["ClusterInfo", "InvalidHP", "TrialInfo", "core", "get_cluster_info"]


@dataclass(frozen=True)
class TrialInfo:
    """``info.trial``: the trial this process trains."""

    trial_id: int
    experiment_id: str
    trial_seed: int
    hparams: dict[str, Any]
    config: dict[str, Any] = field(repr=False)

    @property
    def _config(self) -> dict[str, Any]:
        return self.config


@dataclass(frozen=True)
class ClusterInfo:
    """``get_cluster_info()``.

    Attributes:
        task_type: always ``TRIAL``.
        agent_id: name of this node.
        slot_ids: local ranks of this node.
        latest_checkpoint: name of the checkpoint the trial goes on from, or None.
        user_data: the config's ``data``, with its secrets.
    """

    task_id: str
    allocation_id: str
    agent_id: str
    slot_ids: list[int]
    latest_checkpoint: str | None
    user_data: dict[str, Any]
    trial: TrialInfo
    task_type: str = "TRIAL"


def get_cluster_info() -> ClusterInfo | None:
    """What this process is part of; None outside hpcdet."""
    place = Place.from_environment()
    record = Trial.read(place.trial.record) if place else None
    if place is None or place.experiment is None or record is None:
        return None
    config = configs.load(place.experiment.config)
    task = f"{place.experiment.id}/{record.number}"
    return ClusterInfo(
        task_id=task,
        allocation_id=f"{task}.{place.attempt.number}",
        agent_id=os.uname().nodename,
        slot_ids=list(range(Ranks.from_environment().local_world)),
        latest_checkpoint=latest_checkpoint(place.trial) or None,
        user_data=resolve(config.data, place.experiment.secrets),
        trial=TrialInfo(
            record.number,
            place.experiment.id,
            record.seed,
            dict(record.params),
            dict(config.raw),
        ),
    )


def __getattr__(name: str) -> ModuleType:
    """``det.pytorch``, imported when it is used."""
    if name == "pytorch":
        return importlib.import_module("hpcdet.pytorch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
