"""Resources that trials requested and used, and suggestions for the next request."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from typing import Any

from hpcdet.read.experiment import changes, states, timing
from hpcdet.read.experiment.gather import Gathered, GatheredTrial, gather
from hpcdet.read.views import beyond
from hpcdet.read.views.spans import Span, spans
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.cost.budget import HOUR_S
from hpcdet.store.folder.layout import ExperimentPaths

View = dict[str, Any]

_LITTLE = 0.5
"""Of what was asked for: using less of it is worth a suggestion."""
_FULL = 0.9
_SPARE = 1.25
_GB = 10**9
_GIVEN = 0.7
"""Of the time given: a shorter one is easier to place."""


def efficiency(source: ExperimentPaths | Gathered, trial: int = 0) -> list[View]:
    """Return requested and used resources of one trial or all.

    Returns:
        ``id, trial, state, slots``; per slot ``cpus, cpu_cores, memory_bytes`` (asked for),
        ``memory_peak_bytes, gpu_percent, gpu_memory_bytes``; ``walltime_s`` and ``longest_s`` (of
        one attempt); ``step_s, samples_per_s``; ``phases`` (share of the time by phase);
        ``slot_hours, useful`` (share of these), ``waste`` (slot hours of what was not: ``starting,
        lost``, and ``waiting`` for allocations, which cost nobody anything else);
        ``trained_batches`` of all attempts, ``beyond_batches`` and ``beyond_s`` (of these, and how
        long: after a report on which the search let the trial leave, until it did), ``waited_s``
        (at rungs, ``searcher.wait_at_rungs_s``); ``suggestions`` (``key, value, why``). None where
        nothing is known.
    """
    gathered = gather(source)
    config = changes.effective(gathered)
    by_trial: dict[int, list[Span]] = defaultdict(list)
    for span in spans(gathered, time.time()):
        by_trial[span.trial].append(span)
    state, _ = states.experiment_state(gathered)
    over = state if state in states.ENDED else ""
    left = beyond.beyond(gathered)
    return [
        _trial(gathered, each, config, by_trial[each.number], over)
        | _beyond(each, [one for one in left if one.trial == each.number])
        for each in gathered.trials
        if trial in (0, each.number)
    ]


def _trial(
    gathered: Gathered, trial: GatheredTrial, config: Resolved, found: list[Span], over: str
) -> View:
    resources = config.resources
    times, wall = timing.of_trial(trial), timing.wall(trial)
    hours: defaultdict[str, float] = defaultdict(float)
    lasted: defaultdict[int, float] = defaultdict(float)
    for span in found:
        hours[span.kind] += span.slot_s / HOUR_S
        if span.kind not in ("waiting", "paused"):
            lasted[span.attempt] += span.end - span.start
    used = hours["starting"] + hours["training"] + hours["lost"]
    row: View = {
        "id": f"{gathered.id}/{trial.number}",
        "trial": trial.number,
        "state": states.trial_state(trial, over),
        "slots": resources.slots_per_trial,
        "cpus": resources.cpus_per_slot,
        "cpu_cores": times.means.get("cpu_cores"),
        "memory_bytes": resources.memory_per_slot,
        "memory_peak_bytes": _memory(times, config),
        "gpu_percent": times.means.get("gpu_percent"),
        "gpu_memory_bytes": times.peaks.get("gpu_memory_bytes"),
        "walltime_s": resources.walltime_s,
        "longest_s": round(max(lasted.values()), 1) if lasted else None,
        "step_s": wall.step_s,
        "samples_per_s": wall.samples_per_s,
        "phases": {name: round(times.share(name), 4) for name in times.phases},
        "slot_hours": round(used, 6),
        "useful": round(hours["training"] / used, 4) if used else None,
        "waste": {kind: round(hours[kind], 6) for kind in ("starting", "lost", "waiting")},
    }
    return {**row, "suggestions": _suggestions(row, trial)}


def _beyond(trial: GatheredTrial, left: list[beyond.Beyond]) -> View:
    waits = [line for attempt in trial.attempts for line in attempt.of_kind("waited")]
    return {
        "trained_batches": beyond.trained(trial.attempts),
        "beyond_batches": sum(one.batches for one in left),
        "beyond_s": round(sum(one.seconds for one in left if one.batches), 3),
        "waited_s": round(sum(line["seconds"] for line in waits), 3),
    }


def _memory(times: timing.Times, config: Resolved) -> int | None:
    """Return the peak of one slot: the job's if its cgroup is known, else its processes'."""
    if "job_memory_bytes" in times.peaks:
        slots = config.resources.slots_per_node * config.lanes
        return int(times.peaks["job_memory_bytes"] / max(1, slots))
    peak = times.peaks.get("rss_bytes")
    return None if peak is None else int(peak)


def _suggestions(row: View, trial: GatheredTrial) -> list[View]:
    found = []
    cores, cpus = row["cpu_cores"], row["cpus"]
    if cores is not None and cpus > 1 and cores < _LITTLE * cpus:
        why = f"{cores:.1f} of {cpus} cores were busy"
        found.append(_suggestion("resources.cpus_per_slot", max(1, math.ceil(cores)), why))
    peak, memory = row["memory_peak_bytes"], row["memory_bytes"]
    if peak and memory:
        wanted = f"{math.ceil(_SPARE * peak / _GB)}G"
        why = f"{peak / _GB:.1f} of {memory / _GB:.1f} GB were used"
        if peak < _LITTLE * memory or peak > _FULL * memory:
            found.append(_suggestion("resources.memory_per_slot", wanted, why))
    if row["walltime_s"] and row["longest_s"] and row["state"] in states.ENDED:
        given, longest = row["walltime_s"], row["longest_s"]
        if _SPARE * longest < _GIVEN * given:
            why = f"the longest attempt took {longest / 60:.0f} of {given / 60:.0f} min"
            minutes = max(1, math.ceil(_SPARE * longest / 60))
            found.append(_suggestion("resources.walltime_s", f"{minutes}m", why))
    if row["gpu_percent"] is not None and row["gpu_percent"] < 100 * _LITTLE:
        why = f"the accelerator was busy {row['gpu_percent']:.0f} % of the time"
        found.append(_suggestion("", "", why))
    found += [_suggestion("", one.next, one.finding) for one in timing.findings(trial)]
    if row["useful"] is not None and row["slot_hours"]:
        lost = row["waste"]["lost"] / row["slot_hours"]
        if lost > 0.05:
            why = f"{lost:.0%} of the time was trained again"
            found.append(_suggestion("checkpoint_every_s", "less", why))
    return found


def _suggestion(key: str, value: Any, why: str) -> View:
    return {"key": key, "value": value, "why": why}
