"""What an experiment would be, from its config alone: trials, lengths, cost, files."""

from __future__ import annotations

from typing import Any

from hpcdet.store.config import Resolved

_EXPERIMENT_INODES = 40  # folders, config, site, provenance, decisions, the first submission
_WORKER_INODES = 6
_ATTEMPT_INODES = 9  # and a log for each rank
_RESUME_CHECKPOINTS = 2


def plan(resolved: Resolved, checkpoint_bytes: int | None = None) -> dict[str, Any]:
    """One item of ``hpcdet plan``.

    Args:
        checkpoint_bytes: size of one checkpoint, where it is known.

    Returns:
        ``brackets`` (each with ``rungs``, lengths at which trials end, in ``unit``, and
        ``trials``), ``slots``, and estimates: ``cost.slot_hours`` if every trial needs one
        allocation of the walltime, ``storage.inodes`` for one attempt of each trial,
        ``storage.bytes`` of checkpoints; ``budget``. What cannot be known is null.
    """
    searcher, need = resolved.searcher, resolved.resources
    trials, length = searcher.max_trials, searcher.max_length
    open_at_once = min(trials, searcher.max_concurrent_trials or trials)
    if need.max_slots is not None:
        open_at_once = min(open_at_once, max(1, need.max_slots // need.slots_per_trial))
    slot_hours = None
    if need.walltime_s is not None:
        slot_hours = trials * need.slots_per_trial * need.walltime_s / 3600
    side_by_side = resolved.lanes
    workers = -(-open_at_once // side_by_side)
    return {
        "name": resolved.name,
        "searcher": searcher.name,
        "metric": searcher.metric,
        "trials": trials,
        "concurrent_trials": open_at_once,
        "unit": length.unit if length else None,
        "units": trials * length.value if length else None,
        "brackets": [
            {
                "rungs": [length.value] if length else [],
                "trials": trials,
                "concurrent_trials": open_at_once,
            }
        ],
        "workers": {"lanes": side_by_side, "at_once": workers},
        "slots": {
            "per_trial": need.slots_per_trial,
            "at_once": open_at_once * need.slots_per_trial,
            "nodes_per_trial": need.nodes,
        },
        "cost": {"slot_hours": slot_hours, "walltime_s": need.walltime_s},
        "budget": {"slot_hours": resolved.budget.slot_hours, "wall_s": resolved.budget.wall_s},
        "storage": _storage(resolved, workers, checkpoint_bytes),
    }


def _storage(resolved: Resolved, workers: int, checkpoint_bytes: int | None) -> dict[str, Any]:
    """The most there is at one time, before ended trials are tidied."""
    ranks, trials = resolved.resources.slots_per_trial, resolved.searcher.max_trials
    keep = resolved.checkpoint_storage
    per_trial = keep.save_trial_best + keep.save_trial_latest + _RESUME_CHECKPOINTS
    checkpoints = trials * per_trial + keep.save_experiment_best
    of_a_trial = 4 + _ATTEMPT_INODES + ranks
    inodes = (
        _EXPERIMENT_INODES
        + workers * _WORKER_INODES
        + trials * of_a_trial
        + checkpoints * (ranks + 2)
    )
    return {
        "checkpoints": checkpoints,
        "inodes": inodes,
        "bytes": None if checkpoint_bytes is None else checkpoints * checkpoint_bytes,
    }
