"""Resources that trials requested and used, and suggestions for the next request."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from hpcdet import units
from hpcdet.read.experiment import changes, states, timing
from hpcdet.read.experiment.gather import Gathered, GatheredTrial, gather
from hpcdet.read.usage import beyond_rungs, costs, slot_hours
from hpcdet.read.usage.slot_hours import SlotHoursView, SlotPiece
from hpcdet.read.usage.spans import Span, spans
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import TrialState

_LITTLE = 0.5
"""Of what was asked for: using less of it is worth a suggestion."""
_FULL = 0.9
_SPARE = 1.25
_GB = 10**9
_GIVEN = 0.7
"""Of the time given: a shorter one is easier to place."""


@dataclass(frozen=True)
class WasteView:
    """Slot hours that trained nothing."""

    starting: float
    """Until first steps were done."""
    lost: float
    """After the last checkpoint of attempts that were preempted, timed out or lost."""
    failed: float
    """After the last checkpoint of attempts that ended with an error."""
    idle: float
    """Waiting at rungs for the search."""
    waiting: float
    """Waiting for allocations, which costs no slots."""


@dataclass(frozen=True)
class SuggestionView:
    """A suggestion for the next submission."""

    key: str
    """The config's key; "" if there is no single one."""
    value: Any
    """The value for it, or what to do."""
    why: str
    """Why."""


@dataclass(frozen=True)
class EfficiencyView:
    """Requested and used resources of a trial; null where nothing is known."""

    id: str
    """The trial, as ``ID/3``."""
    trial: int
    """Its number."""
    state: TrialState
    """Its state."""
    slots: int
    """Slots of the trial."""
    cpus: int
    """Cores requested for a slot."""
    cpu_cores: float | None
    """Cores busy in a slot, on average."""
    memory_bytes: int | None
    """Memory requested for a slot."""
    memory_peak_bytes: int | None
    """Peak of the memory used by a slot."""
    gpu_percent: float | None
    """Use of the accelerator, 0 to 100."""
    gpu_memory_bytes: float | None
    """Peak of the accelerator's memory."""
    walltime_s: int | None
    """Seconds requested for a job."""
    longest_s: float | None
    """Seconds of the longest attempt."""
    step_s: float | None
    """Seconds of a step, without validation and checkpoints."""
    samples_per_s: float | None
    """Samples trained on per second, by all ranks."""
    phases: dict[str, float]
    """Share of the time by phase, 0 to 1."""
    slot_hours: float
    """Slot hours of its attempts, as charged where the scheduler's accounting has spoken."""
    useful: float | None
    """Share of these that trained, validated or saved what was kept, 0 to 1."""
    waste: WasteView
    """Slot hours of what was not useful."""
    suggestions: list[SuggestionView]
    """What to change."""
    trained_batches: int
    """Batches trained in all attempts, repeated ones included."""
    beyond_batches: int
    """Of these, trained after a report on which the search let the trial leave, until it did."""
    beyond_s: float
    """Seconds of that."""
    waited_s: float
    """Seconds waited at rungs (``searcher.wait_at_rungs_s``)."""


def efficiency(
    source: ExperimentPaths | Gathered,
    trial: int = 0,
    now: float | None = None,
    pieces: Iterable[SlotPiece] | None = None,
) -> list[EfficiencyView]:
    """Return requested and used resources of one trial or all.

    Args:
        now: epoch seconds at which what goes on is looked at.
        pieces: what ``slot_hours.pieces`` returns for it, where that is known.
    """
    gathered = gather(source)
    config = changes.effective(gathered)
    now = costs.until(gathered, now)
    by_trial: dict[int, list[Span]] = defaultdict(list)
    for span in spans(gathered, now):
        by_trial[span.trial].append(span)
    held: dict[int, list[SlotPiece]] = defaultdict(list)
    for piece in slot_hours.pieces(gathered, now) if pieces is None else pieces:
        held[piece.trial].append(piece)
    state, _ = states.experiment_state(gathered)
    over = state if state in states.ENDED else ""
    left: dict[int, list[beyond_rungs.Beyond]] = defaultdict(list)
    for one in beyond_rungs.beyond(gathered):
        left[one.trial].append(one)
    return [
        _trial(
            gathered,
            each,
            config,
            by_trial[each.number],
            slot_hours.added(held[each.number], -math.inf, math.inf),
            left[each.number],
            over,
        )
        for each in gathered.trials
        if trial in (0, each.number)
    ]


def _trial(
    gathered: Gathered,
    trial: GatheredTrial,
    config: Resolved,
    found: list[Span],
    hours: SlotHoursView,
    left: list[beyond_rungs.Beyond],
    over: str,
) -> EfficiencyView:
    resources = config.resources
    times, wall = timing.of_trial(trial), timing.wall(trial)
    lasted: defaultdict[int, float] = defaultdict(float)
    for span in found:
        if span.kind not in ("waiting", "paused"):
            lasted[span.attempt] += span.end - span.start
    used = hours.allocated
    kept = hours.training + hours.validating + hours.saving
    waits = [line for attempt in trial.attempts for line in attempt.of_kind("waited")]
    row = EfficiencyView(
        id=f"{gathered.id}/{trial.number}",
        trial=trial.number,
        state=states.trial_state(trial, over),
        slots=resources.slots_per_trial,
        cpus=resources.cpus_per_slot,
        cpu_cores=times.means.get("cpu_cores"),
        memory_bytes=resources.memory_per_slot,
        memory_peak_bytes=_memory(times, config),
        gpu_percent=times.means.get("gpu_percent"),
        gpu_memory_bytes=times.peaks.get("gpu_memory_bytes"),
        walltime_s=resources.walltime_s,
        longest_s=round(max(lasted.values()), 1) if lasted else None,
        step_s=wall.step_s,
        samples_per_s=wall.samples_per_s,
        phases={name: round(times.share(name), 4) for name in times.phases},
        slot_hours=round(used, 6),
        useful=round(kept / used, 4) if used else None,
        waste=WasteView(hours.starting, hours.lost, hours.failed, hours.idle, hours.queued),
        suggestions=[],
        trained_batches=beyond_rungs.trained(trial.attempts),
        beyond_batches=sum(one.batches for one in left),
        beyond_s=round(sum(one.seconds for one in left if one.batches), 3),
        waited_s=round(sum(line["seconds"] for line in waits), 3),
    )
    return replace(row, suggestions=_suggestions(row, trial))


def _memory(times: timing.Times, config: Resolved) -> int | None:
    """Return the peak of one slot: the job's if its cgroup is known, else its processes'."""
    if "job_memory_bytes" in times.peaks:
        slots = config.allocation.slots_per_node
        return int(times.peaks["job_memory_bytes"] / max(1, slots))
    peak = times.peaks.get("rss_bytes")
    return None if peak is None else int(peak)


def _suggestions(row: EfficiencyView, trial: GatheredTrial) -> list[SuggestionView]:
    found = []
    cores, cpus = row.cpu_cores, row.cpus
    # where the data is slow, idle cores are what its loading lacks
    fast = row.phases.get("data", 0.0) <= timing.SLOW_DATA
    if cores is not None and cpus > 1 and cores < _LITTLE * cpus and fast:
        why = f"{cores:.1f} of {cpus} cores were busy"
        found.append(SuggestionView("resources.cpus_per_slot", max(1, math.ceil(cores)), why))
    peak, memory = row.memory_peak_bytes, row.memory_bytes
    if peak and memory and not _LITTLE * memory <= peak <= _FULL * memory:
        wanted = f"{math.ceil(_SPARE * peak / _GB)}G"
        why = f"{peak / _GB:.1f} of {memory / _GB:.1f} GB were used"
        found.append(SuggestionView("resources.memory_per_slot", wanted, why))
    given, longest = row.walltime_s, row.longest_s
    ended = row.state in states.ENDED
    if ended and given and longest and _SPARE * longest < _GIVEN * given:
        why = f"the longest attempt took {longest / 60:.0f} of {given / 60:.0f} min"
        minutes = max(1, math.ceil(_SPARE * longest / 60))
        found.append(SuggestionView("resources.walltime_s", f"{minutes}m", why))
    if row.gpu_percent is not None and row.gpu_percent < 100 * _LITTLE:
        why = f"the accelerator was busy {row.gpu_percent:.0f} % of the time"
        found.append(SuggestionView("", "", why))
    found += [SuggestionView("", one.next, one.finding) for one in timing.findings(trial)]
    if row.slot_hours and (lost := row.waste.lost / row.slot_hours) > 0.05:
        why = f"{units.percent(lost)} of the time was trained again"
        found.append(SuggestionView("checkpoint_every_s", "less", why))
    return found
