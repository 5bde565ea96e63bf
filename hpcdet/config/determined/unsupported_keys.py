"""Keys of Determined (0.38) that hpcdet does not have, and how each is treated.

``harmless``: has no effect here and the result is the same without; a warning names it.
``refused``: leaving it out would change the result, so nothing is submitted.
``later``: belongs to work that this version does not have; refused by name.
Keys in none of the three are unknown keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Class = Literal["harmless", "refused", "later"]


def _always(_: Any) -> bool:
    return True


@dataclass(frozen=True)
class Foreign:
    """The treatment of one key.

    Attributes:
        when: true for the values that the entry concerns.
        hint: returns what to write instead of a value.
        ignorable: ``--ignore KEY`` makes it a warning: the key is about where code runs, and the
            user states that it runs here as well.
    """

    kind: Class
    reason: str
    when: Callable[[Any], bool] = _always
    hint: Callable[[Any], str] = lambda _: ""
    ignorable: bool = False

    @property
    def always(self) -> bool:
        """True if the entry concerns every value."""
        return self.when is _always


def _moves(mounts: Any) -> bool:
    return not isinstance(mounts, list) or any(
        not isinstance(mount, Mapping) or mount.get("host_path") != mount.get("container_path")
        for mount in mounts
    )


_OF_SITE = "what a container may do is the site's to say"
_NO_HOROVOD = "it tunes Horovod, which is not used here"
_ELSEWHERE = "copies on HDFS are not in this version"
_OWN_SCHEDULER = "the cluster's scheduler decides this"
_FORMER_SEARCHERS = {
    "adaptive": "adaptive_asha with max_trials, the number of trials, instead of budget",
    "adaptive_simple": "adaptive_asha: it takes the same max_trials, max_length and mode",
    "sync_halving": "async_halving, which never waits for other trials, or hyperband",
}


def _steps(value: Any) -> str:
    batches = 100 * value if isinstance(value, int) else "100 times as many"
    return f"write max_length: {{batches: {batches}}}: a step was 100 batches"


def _rounds(value: Any) -> str:
    return f"max_length: {{batches: {value} x length_per_round}}"


KEYS: dict[str, tuple[Foreign, ...]] = {
    # whole sections
    "bind_mounts": (
        Foreign(
            "refused",
            "without environment.image there is no container: the code sees the host's paths",
            _moves,
            lambda _: "use host_path in the code; --ignore bind_mounts if it does already",
            ignorable=True,
        ),
        Foreign("harmless", "there is no container, and these paths are the host's"),
    ),
    "data_layer": (Foreign("harmless", "Determined has not used it since 0.18"),),
    "integrations": (Foreign("harmless", "there is no server to notify; see notify"),),
    "internal": (Foreign("harmless", "it is Determined's own"),),
    "preemption_timeout": (Foreign("harmless", "the time to leave is the scheduler's to say"),),
    "retention_policy": (Foreign("harmless", "logs stay as long as the experiment's folder"),),
    "security": (Foreign("harmless", "jobs run as you, by the cluster's own means"),),
    "tensorboard_storage": (Foreign("harmless", "no TensorBoard files are written"),),
    "batches_per_step": (Foreign("refused", "it was renamed: write scheduling_unit"),),
    # containers and their neighbourhood
    "environment.add_capabilities": (Foreign("harmless", _OF_SITE),),
    "environment.drop_capabilities": (Foreign("harmless", _OF_SITE),),
    "environment.pod_spec": (Foreign("harmless", "there is no Kubernetes here"),),
    "environment.podSpec": (Foreign("harmless", "there is no Kubernetes here"),),
    "environment.ports": (Foreign("harmless", "nothing listens to the outside"),),
    "environment.proxy_ports": (Foreign("harmless", "nothing listens to the outside"),),
    # resources
    "resources.agent_label": (Foreign("harmless", "it has no effect in Determined either"),),
    "resources.devices": (Foreign("harmless", _OF_SITE),),
    "resources.native_parallel": (Foreign("harmless", "it has no effect in Determined either"),),
    "resources.shm_size": (Foreign("harmless", _OF_SITE),),
    "resources.slots": (Foreign("harmless", "the key is for tasks other than experiments"),),
    "resources.weight": (Foreign("harmless", _OWN_SCHEDULER),),
    # optimizations
    "optimizations.auto_tune_tensor_fusion": (Foreign("harmless", _NO_HOROVOD),),
    "optimizations.tensor_fusion_cycle_time": (Foreign("harmless", _NO_HOROVOD),),
    "optimizations.tensor_fusion_threshold": (Foreign("harmless", _NO_HOROVOD),),
    "optimizations.grad_updates_size_file": (Foreign("harmless", _NO_HOROVOD),),
    "optimizations.mixed_precision": (
        Foreign(
            "refused",
            "Apex is not used here: ask for mixed precision in the code (autocast)",
            lambda value: value in ("O1", "O2", "O3"),
        ),
    ),
    "optimizations.average_training_metrics": (
        Foreign(
            "refused",
            "training metrics are averaged over all ranks here, always",
            lambda value: value is False,
        ),
    ),
    # storage
    "checkpoint_storage.type": (
        Foreign("later", _ELSEWHERE, lambda value: value == "hdfs"),
    ),
    **{
        f"checkpoint_storage.{key}": (Foreign("later", _ELSEWHERE),)
        for key in ("hdfs_path", "hdfs_url", "user")
    },
    **{
        f"checkpoint_storage.{key}": (
            Foreign("harmless", "checkpoints lie in the experiment's folder"),
        )
        for key in ("container_path", "checkpoint_path", "tensorboard_path", "propagation")
    },
    # search
    "searcher.name": (
        Foreign(
            "refused",
            "Determined has given this searcher up",
            lambda value: isinstance(value, str) and value in _FORMER_SEARCHERS,
            lambda value: f"use {_FORMER_SEARCHERS[value]}",
        ),
    ),
    **{
        f"searcher.{key}": (
            Foreign("refused", "the key counts steps, which Determined has dropped", hint=_steps),
        )
        for key in ("max_steps", "target_trial_steps")
    },
    "searcher.step_budget": (
        Foreign(
            "refused",
            "the key counts steps, which Determined has dropped",
            hint=lambda _: "write max_trials, the number of trials",
        ),
    ),
    "searcher.budget": (
        Foreign(
            "refused",
            "the key is the length of all trials together",
            hint=lambda _: "write max_trials, the number of trials",
        ),
    ),
    "searcher.train_stragglers": (
        Foreign("harmless", "trials never wait for each other here"),
    ),
    # Determined's population-based training, which it gave up; ours has other keys
    "searcher.num_rounds": (
        Foreign("refused", "the key takes a length here", hint=_rounds),
    ),
    "searcher.length_per_round": (
        Foreign("refused", "the key is called perturbation_interval here"),
    ),
    "searcher.replace_function": (
        Foreign("refused", "its truncate_fraction is called quantile"),
    ),
    "searcher.explore_function": (
        Foreign("refused", "use resample_probability and factors, keys of searcher itself"),
    ),
    "searcher.unit": (
        Foreign("harmless", "max_length says the unit, and a custom search its own lengths"),
    ),
    **{
        f"searcher.{key}": (
            Foreign("refused", "no server numbers them here: see searcher.begin_from"),
        )
        for key in ("source_trial_id", "source_checkpoint_uuid")
    },
    "elastic": (Foreign("refused", "the key is called reproducibility.elastic"),),
    "policy": (Foreign("refused", "the key is called governance.policy"),),
}  # fmt: skip


def verdict(key: str, value: Any) -> Foreign | None:
    """Return the treatment of a key with this value; None if it is not a foreign key."""
    return next((entry for entry in KEYS.get(key, ()) if entry.when(value)), None)


IGNORABLE = (
    "environment.image",
    *(key for key, entries in KEYS.items() if any(e.ignorable for e in entries)),
)
"""Keys that ``--ignore`` can take."""

WITHOUT_EFFECT = {
    "checkpoint_storage.host_path": "checkpoints lie in the experiment's folder",
    "checkpoint_storage.storage_path": "checkpoints lie in the experiment's folder",
    "debug": "logs always say all there is to say",
    "records_per_epoch": "an epoch is as long as the code's data",
}
"""Keys that the model keeps for the record, without effect; a warning where they are not the
default."""
