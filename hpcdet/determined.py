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
from hpcdet.checkpoint.manifest import position
from hpcdet.core import InvalidHP
from hpcdet.store import config as configs
from hpcdet.store.records import Trial
from hpcdet.store.secrets import resolve
from hpcdet.store.trials import latest_checkpoint
from hpcdet.train.place import Place
from hpcdet.train.ranks import Ranks

__all__ = ["LOG_FORMAT", "ClusterInfo", "InvalidHP", "TrialInfo", "core", "get_cluster_info"]

LOG_FORMAT = "%(levelname)s: [%(process)s] %(name)s: %(message)s"
"""For ``logging.basicConfig``."""


@dataclass(frozen=True)
class TrialInfo:
    """``info.trial``: the trial this process trains; ``steps_completed`` of its checkpoint.

    ``parent``: the trial that it began from, as ``3@400 batches``; "" if it began from nothing.
    """

    trial_id: int
    experiment_id: str
    trial_seed: int
    hparams: dict[str, Any]
    config: dict[str, Any] = field(repr=False)
    steps_completed: int = 0
    parent: str = ""

    @property
    def _config(self) -> dict[str, Any]:
        return self.config

    @property
    def _steps_completed(self) -> int:
        return self.steps_completed


@dataclass(frozen=True)
class ClusterInfo:
    """``get_cluster_info()``.

    Attributes:
        task_type: always ``TRIAL``.
        agent_id: name of this node.
        slot_ids: local ranks of this node.
        latest_checkpoint: name of the checkpoint the trial goes on from, or None.
        user_data: the config's ``data``, with its secrets.
        container_rank: number of this node among those of the trial.
    """

    task_id: str
    allocation_id: str
    agent_id: str
    slot_ids: list[int]
    latest_checkpoint: str | None
    user_data: dict[str, Any]
    trial: TrialInfo
    container_rank: int = 0
    task_type: str = "TRIAL"

    def __getattr__(self, name: str) -> Any:
        """What Determined's has beside: a master, its tokens, its containers."""
        why = "hpcdet has neither master nor containers"
        if name.startswith("container_"):
            why = (
                "hpcdet starts the ranks, each with the script of the entrypoint; "
                "core.init().distributed knows them and their nodes"
            )
        raise AttributeError(f"there is no {name}: {why}")


def get_cluster_info() -> ClusterInfo | None:
    """What this process is part of; None outside hpcdet."""
    place = Place.from_environment()
    record = Trial.read(place.trial.record) if place else None
    if place is None or place.experiment is None or record is None:
        return None
    config = configs.load(place.experiment.config)
    task = f"{place.experiment.id}/{record.number}"
    checkpoint = latest_checkpoint(place.trial) or None
    ranks = Ranks.from_environment()
    return ClusterInfo(
        task_id=task,
        allocation_id=f"{task}.{place.attempt.number}",
        agent_id=os.uname().nodename,
        slot_ids=list(range(ranks.local_world)),
        latest_checkpoint=checkpoint,
        user_data=resolve(config.data, place.experiment.secrets),
        trial=TrialInfo(
            record.number,
            place.experiment.id,
            record.seed,
            dict(record.params),
            dict(config.raw),
            position(checkpoint)[0] if checkpoint else 0,
            record.parent,
        ),
        container_rank=ranks.node,
    )


def __getattr__(name: str) -> ModuleType:
    """``det.pytorch``, imported when it is used."""
    if name == "pytorch":
        return importlib.import_module("hpcdet.pytorch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
