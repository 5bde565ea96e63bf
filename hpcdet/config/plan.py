"""What an experiment would be, from its config alone: trials, lengths, cost, files."""

from __future__ import annotations

from typing import Any

from hpcdet.store.config import Resolved
from hpcdet.store.layout import inodes_of_trial

_EXPERIMENT_INODES = 40  # folders, config, site, provenance, decisions, the first submission
_WORKER_INODES = 6
_RESUME_CHECKPOINTS = 2


def plan(resolved: Resolved, checkpoint_bytes: int | None = None) -> dict[str, Any]:
    """One item of ``hpcdet plan``.

    Args:
        checkpoint_bytes: size of one checkpoint, where it is known.

    Returns:
        ``brackets`` (each with ``rungs``, lengths at which trials end, in ``unit``, and
        ``trials``), ``slots``, and estimates: ``cost.slot_hours`` if every trial needs one
        allocation of the walltime, and ``storage``: the most checkpoints, inodes and
        bytes there are at one time, where no running trial needs more than one attempt; inodes of
        a trial while it runs and once it has ended; ``paused_bytes``, if all open trials are
        paused; ``budget``. What cannot be known is null.
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
        "storage": _storage(resolved, open_at_once, workers, checkpoint_bytes),
    }


def _storage(
    resolved: Resolved, running: int, workers: int, checkpoint_bytes: int | None
) -> dict[str, Any]:
    ranks, trials = resolved.resources.slots_per_trial, resolved.searcher.max_trials
    keep = resolved.checkpoint_storage
    kept = keep.save_trial_best + keep.save_trial_latest
    open_ = kept + _RESUME_CHECKPOINTS
    of_the_best = keep.save_experiment_best
    checkpoints = running * open_ + (trials - running) * kept + of_the_best
    while_it_runs = inodes_of_trial(ranks, open_, attempts=1)
    once_it_ended = inodes_of_trial(ranks, kept)
    inodes = (
        _EXPERIMENT_INODES
        + workers * _WORKER_INODES
        + running * while_it_runs
        + (trials - running) * once_it_ended
        + of_the_best * (ranks + 2)
    )

    def size(count: int) -> int | None:
        return None if checkpoint_bytes is None else count * checkpoint_bytes

    return {
        "checkpoints": checkpoints,
        "checkpoint_bytes": checkpoint_bytes,
        "inodes": inodes,
        "inodes_per_trial": {"running": while_it_runs, "ended": once_it_ended},
        "bytes": size(checkpoints),
        "paused_bytes": size(running * open_),
        "max_paused_bytes": keep.max_paused_bytes,
    }
