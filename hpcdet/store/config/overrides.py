"""Users' overrides of a running experiment: values laid over ``experiment.yaml``.

The file itself is write-once. A change is requested by a command, decided by the holder of the
lease, and from then on part of every later submission's intent; processes in an allocation
read it from there, so that a script, its worker and its ranks never disagree. Only keys that
leave the result as it is can be changed: where, how long and how often a trial runs, not what it
computes; and how far the search goes, of which the searcher is told. (On another number of slots
the order of samples is the same, the numbers to rounding, or to the bit with
``reproducibility.elastic: exact``.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from hpcdet.errors import ConfigError, IntegrityError
from hpcdet.store.config import resolved_config
from hpcdet.store.config.placement import Resources
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.config.sections.worker_keys import Worker
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Claim, Intent
from hpcdet.units import Length

AT_ONCE = (
    "budget.slot_hours",
    "budget.wall_s",
    "max_restarts",
    "notify.command",
    "notify.email",
    "notify.on",
    "notify.webhook.secret",
    "notify.webhook.url",
    "resources.max_slots",
    "searcher.max_concurrent_trials",
    "searcher.max_length",
    "searcher.max_trials",
)
"""Keys that only the holder of the lease reads: a change is felt at its next turn."""

LATER = (
    "checkpoint_every_s",
    "on_env_change",
    "on_unregistered",
    "pbs.pbsbatch_args",
    "resources.cpus_per_slot",
    "resources.exclude_nodes",
    "resources.memory_per_slot",
    "resources.min_slots_per_trial",
    "resources.nodes",
    "resources.preemptible",
    "resources.regrow_min_s",
    "resources.resource_pool",
    "resources.slots_per_node",
    "resources.slots_per_trial",
    "resources.walltime_s",
    "slurm.sbatch_args",
    *(
        f"worker.{field.name}"
        for field in dataclasses.fields(Worker)
        if field.name not in ("lanes", "node_groups")
    ),
)
"""Keys of an allocation and what runs in it: a change is felt in those submitted later."""

ABOUT = ("description", "name", "project", "workspace")
"""Keys that no process of an experiment reads: a change (verb ``describe``) is for its readers."""

MAX_LENGTH, MAX_TRIALS = "searcher.max_length", "searcher.max_trials"
OF_SEARCH = frozenset({"searcher.max_concurrent_trials", MAX_LENGTH, MAX_TRIALS})
"""Keys that the searcher is told of (``search.api.events.Limits``)."""
FURTHER = frozenset({MAX_LENGTH, MAX_TRIALS})
"""Those by which a search that is over may go on."""

_SLOTS, _NODES = "resources.slots_per_trial", "resources.nodes"
_PER_NODE = "resources.slots_per_node"

_SHORT = {
    "budget": "budget.slot_hours",
    "max_concurrent": "searcher.max_concurrent_trials",
    "max_concurrent_trials": "searcher.max_concurrent_trials",
    "max_length": MAX_LENGTH,
    "max_trials": MAX_TRIALS,
}


def full(key: str) -> str:
    """Return the dotted key of the config that a command's key stands for."""
    return _SHORT.get(key, key)


def is_free(key: str) -> bool:
    """True if a key may be changed while the experiment is open."""
    return full(key) in (*AT_ONCE, *LATER)


def asked(verb: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a command's changes, dotted key to value, given directly or under ``set``."""
    given = arguments if verb == "set" else arguments.get("set", {})
    return {full(key): value for key, value in given.items() if is_free(key)}


def about(verb: str, arguments: Mapping[str, Any]) -> dict[str, str | None]:
    """Return what a command says anew of the keys ``ABOUT``; {} if it is another one."""
    given = {key: arguments[key] for key in ABOUT if verb == "describe" and key in arguments}
    none = ("project", "workspace")
    return {
        key: value
        for key, value in given.items()
        if isinstance(value, str) or (value is None and key in none)
    }


def lay(resolved: Resolved, changes: Mapping[str, Any]) -> Resolved:
    """Return the config with changes, dotted key to value, applied; unknown keys change nothing.

    A new number of slots or nodes is one of slots per node, too, unless that is changed as well.
    """
    if changes.keys() & {_SLOTS, _NODES} and _PER_NODE not in changes:
        need = resolved.resources
        slots, nodes = changes.get(_SLOTS, need.slots_per_trial), changes.get(_NODES, need.nodes)
        if isinstance(slots, int) and isinstance(nodes, int):
            changes = {**changes, _PER_NODE: slots // nodes}
    for key, value in changes.items():
        parts = key.split(".")
        raw = _put(resolved.raw, parts, value)
        if key == MAX_LENGTH:
            value = Length.decode(value) if isinstance(value, Mapping) else value
            resolved = _remember_length(resolved)
        resolved = dataclasses.replace(_replace(resolved, parts, value), raw=raw)
    return resolved


def _remember_length(resolved: Resolved) -> Resolved:
    """Keep the search's first length, so that its rungs stay where they are when it is extended."""
    searcher = resolved.searcher
    first = searcher.first_length or searcher.max_length
    return dataclasses.replace(resolved, searcher=dataclasses.replace(searcher, first_length=first))


def of_submission(paths: ExperimentPaths, number: int) -> Resolved:
    """Return the config of one submission's allocations. Raises as ``resolved_config.load``."""
    intent = Intent.read(paths.intent(number))
    return lay(resolved_config.load(paths.config), intent.overrides if intent else {})


def of_attempt(paths: ExperimentPaths, attempt: AttemptPaths) -> Resolved:
    """Return the config of an attempt: that of its worker's submission."""
    claim = Claim.read(attempt.claim)
    return of_submission(paths, _submission(claim.worker) if claim else 0)


class Slots:
    """The slots of a trial in each worker's allocation, as submitted and granted."""

    def __init__(self, paths: ExperimentPaths, resolved: Resolved) -> None:
        """``resolved``: the config for workers of unknown submissions."""
        self._paths = paths
        self._resolved = resolved
        self._known: dict[int, Resources] = {}
        self._granted: dict[tuple[int, int], int] = {}

    def of(self, worker: str, nodes: Sequence[str]) -> int:
        """Return the slots of a trial for a worker's name and the nodes that it was granted."""
        number = _submission(worker)
        if number not in self._known:
            intent = Intent.read(self._paths.intent(number))
            if intent is None:
                return self._resolved.resources.slots_per_trial
            self._known[number] = lay(self._written, intent.overrides).resources
        of = number, len(nodes)
        if of not in self._granted:
            self._granted[of] = self._known[number].granted(len(nodes)).slots_per_trial
        return self._granted[of]

    @cached_property
    def _written(self) -> Resolved:
        try:
            return resolved_config.load(self._paths.config)
        except (ConfigError, IntegrityError):
            return self._resolved


def _submission(worker: str) -> int:
    number = worker.partition("-")[0]
    return int(number) if number.isdigit() else 0


def _replace(node: Any, parts: Sequence[str], value: Any) -> Any:
    name, *rest = parts
    if not dataclasses.is_dataclass(node) or isinstance(node, type) or not hasattr(node, name):
        return node
    inner = _replace(getattr(node, name), rest, value) if rest else value
    return dataclasses.replace(node, **{name: inner})


def _put(node: Mapping[str, Any], parts: Sequence[str], value: Any) -> dict[str, Any]:
    name, *rest = parts
    inner = node.get(name)
    below = inner if isinstance(inner, Mapping) else {}
    return {**node, name: _put(below, rest, value) if rest else value}
