"""The timeline: one lane per trial, a bar per span, ticks for checkpoints, a mark per end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hpcdet import units
from hpcdet.read.experiment.gather import Gathered, GatheredTrial
from hpcdet.read.report.scale import Scale, times
from hpcdet.read.usage.spans import KINDS, Span, epoch

WIDTH = 960
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 8, 28
LANE = 22
LANES = 200
TICK_GAP = 4.0
"""Least distance of two ticks; of a dense row of checkpoints, every so many are drawn."""
MARKS = {
    "completed": "✓",
    "stopped": "■",
    "paused": "‖",
    "preempted": "↺",
    "walltime": "◷",
    "resized": "↗",
    "canceled": "⊘",
}
"""Sign of each end; whatever else ended an attempt went wrong: ``✗``."""
WRONG = "✗"


@dataclass(frozen=True)
class SpanBar:
    """A span of time of one kind, as a bar."""

    kind: str
    x: float
    width: float
    title: str


@dataclass(frozen=True)
class ChartMark:
    """A moment, as a sign."""

    x: float
    sign: str
    title: str


@dataclass(frozen=True)
class ChartLane:
    """The line of one trial."""

    trial: int
    y: float
    bars: list[SpanBar]
    checkpoints: list[ChartMark]
    ends: list[ChartMark]


@dataclass(frozen=True)
class Timeline:
    """The template's data on the lanes."""

    lanes: list[ChartLane]
    left_out: int
    x_ticks: list[tuple[float, str]]
    length: str
    height: float
    bottom: float
    width: int = WIDTH
    left: int = LEFT
    right: int = WIDTH - RIGHT
    lane: int = LANE


def timeline(gathered: Gathered, found: Sequence[Span]) -> Timeline | None:
    """Return the timeline of an experiment; None if nothing has happened yet."""
    if not found:
        return None
    begin = min(span.start for span in found)
    length = max(span.end for span in found) - begin
    x = Scale(begin, begin + length, LEFT, WIDTH - RIGHT)
    by_trial: dict[int, list[Span]] = defaultdict(list)
    for span in found:
        by_trial[span.trial].append(span)
    trials = [trial for trial in gathered.trials if trial.number in by_trial]
    lanes = [
        _lane(trial, TOP + LANE * n, by_trial[trial.number], x)
        for n, trial in enumerate(trials[:LANES])
    ]
    bottom = TOP + LANE * len(lanes)
    return Timeline(
        lanes=lanes,
        left_out=len(trials) - len(lanes),
        x_ticks=[(x(begin + tick), units.duration(tick)) for tick in times(length)],
        length=units.duration(length),
        height=bottom + BOTTOM,
        bottom=bottom,
    )


def _lane(trial: GatheredTrial, y: float, found: Sequence[Span], x: Scale) -> ChartLane:
    bars = [
        SpanBar(
            span.kind,
            x(span.start),
            round(max(x(span.end) - x(span.start), 0.5), 2),
            f"trial {trial.number}, attempt {span.attempt}: "
            f"{KINDS[span.kind].lower()}, {units.duration(span.end - span.start)}",
        )
        for span in found
    ]
    checkpoints: list[ChartMark] = []
    ends: list[ChartMark] = []
    for attempt in trial.attempts:
        for line in attempt.of_kind("checkpoint"):
            at = x(epoch(line["t"]))
            if not checkpoints or at - checkpoints[-1].x >= TICK_GAP:
                checkpoints.append(ChartMark(at, "", f"checkpoint {line['name']}"))
        if attempt.end is not None and attempt.end.at:
            reason = attempt.end.reason
            title = f"attempt {attempt.number} ended: {reason.replace('_', ' ')}"
            ends.append(ChartMark(x(epoch(attempt.end.at)), MARKS.get(reason, WRONG), title))
    return ChartLane(trial.number, y, bars, checkpoints, ends)
