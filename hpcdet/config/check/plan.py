"""The plan of an experiment from its config alone: trials, lengths, cost, files."""

from __future__ import annotations

from typing import Any

from hpcdet.rungs import Bracket
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.config.sections.searcher_keys import MODELLED

_EXPERIMENT_INODES = 40  # folders, config, site, provenance, decisions, the first submission
_WORKER_INODES = 6
_RESUME_CHECKPOINTS = 2


def plan(
    resolved: Resolved,
    checkpoint_bytes: int | None = None,
    unit_s: float | None = None,
    queue_s: float | None = None,
    begun: int = 0,
    jobs: int | None = None,
) -> dict[str, Any]:
    """One item of ``hpcdet plan``.

    Args:
        checkpoint_bytes: size of one checkpoint, where it is known.
        unit_s: seconds of training for one unit of length, where they are known.
        queue_s: seconds that an allocation is waited for, where they are known.
        begun: length at which all trials begin (``searcher.begin_from``).
        jobs: the most that the site runs at once; None: no limit that is known.

    Returns:
        ``brackets`` (each with ``rungs``, lengths at which trials are compared or end, in
        ``unit``, ``trials``, and of these ``ends``, how many are expected to train up to each rung
        and no further), ``slots``, and estimates: ``units`` that all trials train together;
        ``population`` (where trials are copied: its ``size`` and ``interval``);
        ``cost.slot_hours`` by ``unit_s``, else if a whole training takes the walltime,
        ``cost.run_s`` from the first step to the last, without time in the queue;
        ``cost.allocations`` that each worker has for that, one after the other, and
        ``cost.end_s`` from the submission to the end, with the wait for each; ``storage``: the
        most checkpoints, inodes and bytes there are at one time, where no running trial needs more
        than one attempt; inodes of a trial while it runs and once it has ended; ``paused_bytes``,
        if all are paused that may be; ``budget``. What cannot be known is null.
    """
    searcher, need = resolved.searcher, resolved.resources
    trials, length, top = searcher.max_trials, searcher.max_length, searcher.top
    side_by_side, most = resolved.lanes, resolved.trials_at_once
    open_at_once = most if jobs is None else min(most, jobs * side_by_side)
    plain = Bracket((top,) if top else (), trials, most)
    brackets = searcher.brackets or [plain]
    units = sum(one.units(searcher.divisor, begun) for one in brackets) if top else None
    whole = (top - begun) / top if top else 1.0  # of a training, what one trial has before it
    slot_hours = run_s = None
    training_s = unit_s * top if unit_s is not None and top else need.walltime_s
    if training_s is not None:
        trainings = units / top if units and top else trials
        slot_hours = round(trainings * need.slots_per_trial * training_s / 3600, 3)
        run_s = round(max(trainings / open_at_once, whole) * training_s)
    allocations = end_s = None
    if run_s is not None:
        allocations = max(1, -(-run_s // need.walltime_s)) if need.walltime_s else 1
    if run_s is not None and queue_s is not None and allocations is not None:
        end_s = round(run_s + allocations * queue_s)
    workers = -(-open_at_once // side_by_side)
    return {
        "name": resolved.name,
        "searcher": searcher.name,
        "metric": searcher.metric,
        "objectives": [one.metric for one in searcher.goals.objectives],
        "constraints": [str(one) for one in searcher.goals.constraints],
        "trials": trials,
        "concurrent_trials": open_at_once,
        "rule": searcher.rule if any(len(one.rungs) > 1 for one in searcher.brackets) else None,
        "sampler": searcher.sampler.name or MODELLED.get(searcher.name),
        "population": _population(resolved),
        "unit": searcher.time_metric or (length.unit if length else None),
        "units": units,
        "brackets": [
            {
                "rungs": list(one.rungs),
                "trials": one.trials,
                "ends": list(one.expected(searcher.divisor)) if one.rungs else [],
                "concurrent_trials": min(one.concurrent, one.trials),
            }
            for one in brackets
        ],
        "workers": {
            "lanes": side_by_side,
            "nodes": resolved.allocation.nodes,
            "at_once": workers,
        },
        "slots": {
            "per_trial": need.slots_per_trial,
            "at_once": open_at_once * need.slots_per_trial,
            "nodes_per_trial": need.nodes,
        },
        "cost": {
            "slot_hours": slot_hours,
            "walltime_s": need.walltime_s,
            "run_s": run_s,
            "unit_s": unit_s,
            "queue_s": queue_s,
            "allocations": allocations,
            "end_s": end_s,
        },
        "budget": {"slot_hours": resolved.budget.slot_hours, "wall_s": resolved.budget.wall_s},
        "storage": _storage(resolved, most, -(-most // side_by_side), checkpoint_bytes),
    }


def _population(resolved: Resolved) -> dict[str, Any] | None:
    """Return a population's size, interval and comparisons; None for other search methods.

    Its trials cost as many full trainings; a copy goes on where another trial was.
    """
    searcher = resolved.searcher
    if not searcher.interval:
        return None
    rounds = len(searcher.rungs) - 1
    return {"size": searcher.max_trials, "interval": searcher.interval, "comparisons": rounds}


def _storage(
    resolved: Resolved, running: int, workers: int, checkpoint_bytes: int | None
) -> dict[str, Any]:
    ranks, trials = resolved.resources.slots_per_trial, resolved.searcher.max_trials
    keep = resolved.checkpoint_storage
    kept = keep.save_trial_best + keep.save_trial_latest
    open_ = kept + _RESUME_CHECKPOINTS
    of_the_best = keep.save_experiment_best
    paused = _paused(resolved, running)
    begun = min(max(running, paused), trials)  # a trial that rests keeps what it goes on from
    checkpoints = begun * open_ + (trials - begun) * kept + of_the_best
    while_it_runs = _inodes(ranks, open_, attempts=1)
    once_it_ended = _inodes(ranks, kept)
    total = (
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
        "inodes": total,
        "inodes_per_trial": {"running": while_it_runs, "ended": once_it_ended},
        "bytes": size(checkpoints),
        "paused_bytes": size(paused * open_),
        "max_paused_bytes": keep.max_paused_bytes,
    }


def _paused(resolved: Resolved, running: int) -> int:
    """Return how many trials may be paused at a time, by their user or by the searcher at rungs."""
    searcher = resolved.searcher
    if searcher.rule == "stopping":
        return running
    ends = (one.expected(searcher.divisor)[:-1] for one in searcher.brackets)
    return max(running, sum(map(sum, ends)))


def _inodes(ranks: int, checkpoints: int, attempts: int = 0) -> int:
    """Return the number of inodes of one trial (``store.folder.layout`` has them).

    Args:
        checkpoints: committed ones, each a folder with a manifest and a shard of each rank.
        attempts: while it goes on; 0 once it has ended and these are packed.
    """
    of_checkpoints = 1 + checkpoints * (ranks + 2) if checkpoints else 0
    if not attempts:
        return 3 + of_checkpoints  # its folder, trial.json, the archive
    controls = 1 + attempts
    # folder, claim, journal, verdict, end, rendezvous, logs, the launcher's and the ranks', and
    # the profiles of those above 0
    return 3 + controls + attempts * (7 + 2 * ranks) + of_checkpoints
