"""The sections ``time``, ``timeline`` and ``efficiency``: where slots and hours went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from hpcdet.read.experiment import timing
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.sections.extent import ReportExtent, cut
from hpcdet.read.usage import efficiency as efficiency_views
from hpcdet.read.usage.efficiency import EfficiencyView
from hpcdet.read.usage.slot_hours import KINDS, SlotHoursView, SlotPiece
from hpcdet.read.usage.spans import Span, epoch
from hpcdet.read.views.trials import AttemptView
from hpcdet.store.cost.budget import HOUR_S


@dataclass(frozen=True)
class ShareView:
    """Slot-seconds of one kind, over all trials."""

    kind: str
    """The kind, as ``usage`` has it."""
    words: str
    """What it is, for people."""
    slot_s: float
    """Slot-seconds."""
    share: float | None
    """Share of what was held, 0 to 1; null for ``queued``, which holds nothing."""


@dataclass(frozen=True)
class StepView:
    """The time of a step of one trial."""

    trial: int
    """Its number."""
    step_s: float | None
    """Seconds of a step."""
    samples_per_s: float | None
    """Samples per second."""
    phases: dict[str, float]
    """Share of each phase, 0 to 1."""


@dataclass(frozen=True)
class TimeSection:
    """Where the time went."""

    shares: list[ShareView]
    """Time by kind."""
    steps: list[StepView]
    """Time inside training, of trials with records of it."""
    left_out: int
    """Trials with records that are not listed."""


@dataclass(frozen=True)
class SpanView:
    """A period of a trial's life."""

    kind: str
    """``waiting``, ``paused``, ``starting``, ``training`` or ``lost``."""
    attempt: int
    """The attempt, or the one that was waited for."""
    start: float
    """Seconds since the first trial was made."""
    end: float
    """Likewise."""


@dataclass(frozen=True)
class EndView:
    """The end of an attempt."""

    attempt: int
    """Its number."""
    at: float
    """Seconds since the first trial was made."""
    reason: str
    """Why it ended."""


@dataclass(frozen=True)
class LaneView:
    """The line of one trial in the timeline."""

    trial: int
    """Its number."""
    spans: list[SpanView]
    """What it did."""
    checkpoints: list[float]
    """When it saved, in seconds since the first trial was made."""
    ends: list[EndView]
    """Ends of its attempts."""


@dataclass(frozen=True)
class TimelineSection:
    """Attempts over time."""

    begin: str
    """When the first trial was made; "" before it."""
    length_s: float
    """Seconds from then to the last end, or until the report was made."""
    lanes: list[LaneView]
    """A lane for each trial; where there are very many, of the best, the failed, the running."""
    left_out: int
    """Trials without a lane."""
    attempts: list[AttemptView]
    """Every attempt."""
    attempts_left_out: int
    """Attempts that are not listed."""


@dataclass(frozen=True)
class EfficiencySection:
    """Requested and used resources."""

    rows: list[EfficiencyView]
    """A row for each trial."""
    left_out: int
    """Trials without a row."""


def time(
    gathered: Gathered, hours: SlotHoursView, order: Sequence[int], extent: ReportExtent
) -> TimeSection:
    """Return the section ``time``."""
    shares = [
        ShareView(
            kind,
            words,
            round(amount * HOUR_S, 3),
            round(amount / hours.allocated, 6) if kind != "queued" else None,
        )
        for kind, words in KINDS.items()
        if (amount := getattr(hours, kind))
    ]
    steps = [
        StepView(
            trial.number,
            timing.wall(trial).step_s,
            timing.wall(trial).samples_per_s,
            {name: round(times.share(name), 4) for name in times.phases},
        )
        for trial, times in timing.trials(gathered)
    ]
    rows, left_out = cut(_ordered(steps, order), extent.lanes)
    return TimeSection(shares, rows, left_out)


def _ordered(rows: Sequence[StepView], order: Sequence[int]) -> list[StepView]:
    place = {trial: n for n, trial in enumerate(order)}
    return sorted(rows, key=lambda row: place.get(row.trial, len(place)))


def lanes(trials: Sequence[int], order: Sequence[int], telling: set[int], most: int) -> list[int]:
    """Return the trials that have a lane, by number: the best and telling ones where not all do.

    Args:
        telling: those that failed or run.
    """
    if len(trials) <= most:
        return list(trials)
    first = [trial for trial in order[: most // 2] if trial in set(trials)]
    rest = [*sorted(telling), *order, *trials]
    return sorted(list(dict.fromkeys([*first, *rest]))[:most])


def timeline(
    gathered: Gathered,
    spans: Sequence[Span],
    attempts: Sequence[AttemptView],
    shown: Sequence[int],
    extent: ReportExtent,
) -> TimelineSection:
    """Return the section ``timeline``, with lanes of the trials ``shown``."""
    if not spans:
        return TimelineSection("", 0.0, [], 0, list(attempts), 0)
    begin = min(span.start for span in spans)
    own: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        own[span.trial].append(span)
    found = []
    for number in shown:
        trial = gathered.trial(number)
        assert trial is not None
        lines = [line for one in trial.attempts for line in one.of_kind("checkpoint")]
        ends = [
            EndView(one.number, round(epoch(one.end.at) - begin, 3), one.end.reason)
            for one in trial.attempts
            if one.end is not None and one.end.at
        ]
        found.append(
            LaneView(
                number,
                [
                    SpanView(s.kind, s.attempt, round(s.start - begin, 3), round(s.end - begin, 3))
                    for s in own[number]
                ],
                [round(epoch(line["t"]) - begin, 3) for line in lines],
                ends,
            )
        )
    rows, left_out = cut(attempts, extent.rows)
    start = datetime.fromtimestamp(begin, UTC).isoformat(timespec="seconds")
    return TimelineSection(
        begin=start.replace("+00:00", "Z"),
        length_s=round(max(span.end for span in spans) - begin, 3),
        lanes=found,
        left_out=len(own) - len(found),
        attempts=rows,
        attempts_left_out=left_out,
    )


def efficiency(
    gathered: Gathered,
    order: Sequence[int],
    extent: ReportExtent,
    now: float,
    pieces: Sequence[SlotPiece],
) -> EfficiencySection:
    """Return the section ``efficiency``, the best trials first."""
    place = {trial: n for n, trial in enumerate(order)}
    every = efficiency_views.efficiency(gathered, now=now, pieces=pieces)
    rows = [row for row in every if row.slot_hours]
    rows.sort(key=lambda row: (place.get(row.trial, len(place)), row.trial))
    return EfficiencySection(*cut(rows, min(extent.rows, 200)))
