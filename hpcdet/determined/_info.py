"""``det.get_cluster_info``: what this process is part of."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from hpcdet.checkpoint.format.manifest import position
from hpcdet.errors import UsageError
from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import Ranks, node_names
from hpcdet.store.config import resolved_config as configs
from hpcdet.store.config.data_secrets import resolve
from hpcdet.store.folder.records import Trial
from hpcdet.store.trials.standing import latest_checkpoint


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

    @property
    def container_addrs(self) -> list[str]:
        """The nodes of this attempt by name, in the order of ``container_rank``.

        Raises:
            UsageError: there are several, and this launcher does not say their names.
        """
        return _hosts(Ranks.from_environment())

    @property
    def container_slot_counts(self) -> list[int]:
        """Ranks of each node."""
        ranks = Ranks.from_environment()
        return [ranks.local_world] * max(1, ranks.world // max(1, ranks.local_world))

    @property
    def gpu_uuids(self) -> list[str]:
        """The devices in ``CUDA_VISIBLE_DEVICES``; empty on a CPU."""
        return [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]

    @property
    def _trial_info(self) -> TrialInfo:
        return self.trial

    def __getattr__(self, name: str) -> Any:
        """Refuse Determined's other attributes by name: a master, its tokens."""
        raise AttributeError(f"there is no {name}: hpcdet has neither master nor containers")


def get_cluster_info() -> ClusterInfo | None:
    """The experiment, trial and allocation of this process; None outside hpcdet."""
    place = AttemptLocation.from_environment()
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


def _hosts(ranks: Ranks) -> list[str]:
    """Names of the nodes, one of each."""
    if ranks.local_world >= ranks.world:
        return [os.uname().nodename]
    if found := node_names():
        return found
    raise UsageError(
        "this launcher does not give the names of the nodes",
        where="container_addrs",
        hint="core.init().distributed has their number: cross_size, cross_rank",
    )
